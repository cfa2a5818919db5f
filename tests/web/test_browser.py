"""The dashboard in a real browser: usable by everybody, live, and whole without a script. Needs Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from pool import Queue, Spec
from pool.clock import now_text
from pool.store import Store
from tests.support import rows, statuses
from tests.web import scene
from tests.web.browser import browser

expect.set_options(timeout=20_000)
#: One browser for all of them.
pytestmark = pytest.mark.xdist_group("browser")
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


class Seen:
    """A page, and whatever the browser complained of."""

    def __init__(self, opened: Browser, url: str, **options: Any) -> None:
        self.context = opened.new_context(base_url=url, **options)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "request", lambda request: None if request.url.startswith(url) else self.elsewhere.append(request.url)
        )

    def close(self, *, besides: str = "") -> None:
        """Nothing was complained of, and nothing fetched from elsewhere; a complaint may come as late as this."""
        self.context.close()
        assert [each for each in self.complaints if not besides or besides not in each] == [] == self.elsewhere


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """The browser."""
    with browser() as each:
        yield each


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard of a full database, for tests that change nothing in it."""
    folder = tmp_path_factory.mktemp("shown")
    scene.fill(folder / "jobs.db", count=40)
    web = scene.Web(folder, folder / "jobs.db")
    yield web.url
    web.stop()


@pytest.fixture
def own(tmp_path: Path, database: Path) -> Iterator[str]:
    """A dashboard of the test's own database."""
    Store.open(str(database)).close()
    web = scene.Web(tmp_path, database)
    yield web.url
    web.stop()


PATHS = (
    "/", "/?span=day", "/jobs", "/scheduled", "/dead", "/jobs/4", "/jobs/4/edit", "/jobs/3", "/archive", "/audit",
    "/bulk?action=retry&status=dead", "/bulk?action=retry&status=scheduled", "/jobs/999999",
)  # fmt: skip


def test_no_page_has_a_serious_fault_of_accessibility(opened: Browser, shown: str) -> None:
    seen = Seen(opened, shown, viewport=DESK, reduced_motion="reduce")
    faults = []
    for path in PATHS:
        seen.page.emulate_media(color_scheme="light")
        seen.page.goto(path)
        seen.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        faults += serious(seen.page, path)
        seen.page.emulate_media(color_scheme="dark")
        # The same document: what can differ in the dark is its colours.
        faults += serious(seen.page, f"{path} in the dark", {"runOnly": ["color-contrast"]})
    assert faults == []
    seen.close(besides="404")  # the page of a job that is not there


def serious(page: Page, where: str, options: dict[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """Serious and critical faults, by axe-core."""
    found = Axe().run(page, options=options).response["violations"]
    return [
        (where, each["id"], each["nodes"][0]["html"][:200])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_nothing_is_cut_off_on_a_phone(opened: Browser, shown: str) -> None:
    seen = Seen(opened, shown, viewport=PHONE, is_mobile=True, has_touch=True)
    for path in PATHS:
        seen.page.goto(path)
        wide = seen.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path
    seen.close(besides="404")  # the page of a job that is not there


def test_a_page_follows_the_queue_without_being_loaded_again(
    opened: Browser, own: str, queue: Queue, store: Store
) -> None:
    seen = Seen(opened, own)
    seen.page.goto("/")
    expect(seen.page.locator("#live")).to_have_text("Live")
    seen.page.evaluate("window.kept = true")
    queue.enqueue_many(Spec("t") for _ in range(3))
    expect(seen.page.locator("#figures")).to_contain_text("3 queued")
    store.change("pause", by="anna", reason="release", now=now_text(), until=None)
    expect(seen.page.locator("#alarm")).to_contain_text("Paused by anna")
    assert seen.page.evaluate("window.kept") is True
    seen.close()


def test_what_a_person_is_doing_outlives_an_update(opened: Browser, own: str, queue: Queue) -> None:
    queue.enqueue_many(Spec("t") for _ in range(3))
    seen = Seen(opened, own)
    seen.page.goto("/jobs")
    seen.page.get_by_label("job 2").check()
    seen.page.locator("#j3").focus()
    queue.enqueue("new")
    expect(seen.page.locator("#list")).to_contain_text("new")
    expect(seen.page.get_by_label("job 2")).to_be_checked()
    expect(seen.page.locator("#j3")).to_be_focused()
    seen.close()


def test_dead_jobs_are_mended_with_the_keyboard_alone(
    opened: Browser, own: str, queue: Queue, store: Store, database: Path
) -> None:
    queue.enqueue_many(Spec("t") for _ in range(2))
    store.connection.execute("UPDATE jobs SET status = 'dead', attempts = 5, last_error = 'no luck'")
    seen = Seen(opened, own)
    seen.page.goto("/dead")
    seen.page.get_by_role("link", name="Retry all…").focus()
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Retry 2 jobs?")
    seen.page.get_by_label("Reason, for the record").fill("fixed")
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("status").first).to_contain_text("Live")
    expect(seen.page.locator(".note")).to_have_text("2 queued again")
    assert statuses(database) == {"queued": 2}
    seen.close()


def test_everything_works_without_a_script(
    opened: Browser, own: str, queue: Queue, store: Store, database: Path
) -> None:
    queue.enqueue("t", {"password": "geheim", "n": 1})
    store.connection.execute("UPDATE jobs SET status = 'dead', last_error = 'no luck'")
    seen = Seen(opened, own, java_script_enabled=False)
    seen.page.goto("/dead")
    seen.page.locator("#j1").click()
    seen.page.get_by_role("link", name="Edit and requeue").click()
    text = seen.page.get_by_label("Payload, as JSON").input_value()
    seen.page.get_by_label("Payload, as JSON").fill(text.replace('"n": 1', '"n": 2'))
    seen.page.get_by_role("button", name="Save and requeue").click()
    expect(seen.page.locator(".note")).to_contain_text("Saved")
    assert rows(database)[0]["payload"] == '{"password":"geheim","n":2}'
    seen.page.locator("summary", has_text="Archive…").click()
    seen.page.get_by_label("Reason").fill("not needed")
    seen.page.get_by_role("button", name="Archive job 1").click()
    expect(seen.page.locator(".note")).to_contain_text("archive")
    seen.page.get_by_role("link", name="Audit").click()
    expect(seen.page.locator("#audit")).to_contain_text("not needed")
    seen.page.get_by_role("link", name="Overview").click()
    seen.page.get_by_label("Pause all claims, because").fill("release")
    seen.page.get_by_role("button", name="Pause").click()
    expect(seen.page.locator("#alarm")).to_contain_text("release")
    seen.page.get_by_role("button", name="Resume").click()
    expect(seen.page.locator(".note")).to_have_text("Resumed")
    seen.close()


def test_markup_from_a_job_stays_text_in_a_browser(opened: Browser, own: str, queue: Queue, store: Store) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    queue.enqueue(evil, {evil: evil}, key=evil)
    store.connection.execute("UPDATE jobs SET status = 'dead', last_error = ?", (evil,))
    seen = Seen(opened, own)
    queue.enqueue(evil, {evil: evil}, delay=3600)
    store.connection.execute("UPDATE jobs SET last_error = ?, attempts = 1 WHERE status = 'queued'", (evil,))
    for path in ("/", "/jobs", "/scheduled", "/dead", "/jobs/1", "/jobs/1/edit"):
        seen.page.goto(path)
        expect(seen.page.locator("#live")).to_have_text("Live")
        queue.enqueue("another")  # the update is made of the same text
        assert "owned" not in seen.page.title() and seen.page.locator("img").count() == 0
    seen.close()


def test_signing_in_and_out(opened: Browser, tmp_path: Path, filled: Path) -> None:
    web = scene.Web(tmp_path, filled, env={"POOL_WEB_TOKEN": "correct horse battery"})
    seen = Seen(opened, web.url)
    seen.page.goto("/dead")
    seen.page.get_by_label("Token or password").fill("correct horse battery")
    assert Axe().run(seen.page).violations_count == 0
    seen.page.keyboard.press("Enter")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    expect(seen.page.locator("#live")).to_have_text("Live")
    seen.page.get_by_role("button", name="Sign out").click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    seen.close()
    web.stop()
