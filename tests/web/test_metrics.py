"""The metrics: by their names and units, right over restarts, and the ones the Grafana dashboard asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool import Queue, Spec
from pool.clock import now_text, utc_text
from pool.store import Store
from tests.contract.test_opening import make_old
from tests.support import eventually, rows, stranger
from tests.web import scene
from tests.web.conftest import MakeClient

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
UNITS = ("_total", "_seconds", "_bytes")
#: Gauges that count things, which have no unit to end with.
COUNTS = {"jobpool_jobs", "jobpool_queue_due", "jobpool_paused", "jobpool_pools", "jobpool_workers"}


def read(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and label values, in the order of the labels' names."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type != "unknown", family
        for sample in family.samples:
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return found


def test_they_count_what_the_database_holds(client: MakeClient, filled: Path) -> None:
    found = read(client().get("/metrics").text)
    for status, n in (
        (each["status"], each["n"]) for each in rows(filled, "SELECT status, count(*) n FROM jobs GROUP BY 1")
    ):
        assert found["jobpool_jobs", status] == n
    counters = {(c["name"], c["label"], c["bucket"]): c["value"] for c in rows(filled, "SELECT * FROM counters")}
    for type in scene.TYPES:
        assert found["jobpool_jobs_done_total", type] == counters["done", type, 0]
        assert found["jobpool_attempts_failed_total", type] == counters["failed", type, 0]
        waits = {bits: value for (name, label, bits), value in counters.items() if (name, label) == ("wait", type)}
        assert found["jobpool_wait_seconds_count", type] == sum(waits.values())
        assert found["jobpool_wait_seconds_bucket", "+Inf", type] == sum(waits.values())
        assert found["jobpool_wait_seconds_bucket", "0.004096", type] == sum(
            n for bits, n in waits.items() if bits <= 12
        )
    assert found["jobpool_restarts_total", "crashed"] == 3
    assert found["jobpool_queue_due",] > 0 and 0 < found["jobpool_oldest_age_seconds",] < 300
    assert found["jobpool_database_bytes",] == filled.stat().st_size


def test_sums_are_exact_over_processes_restarts_and_a_death(
    pool: Callable[..., Any], database: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    """A nap of 0.5 s counts as 0.26 to 0.52 s: what is estimated from the bucket is less than it was."""
    for life in (1, 2):
        with Queue(database) as queue:
            queue.enqueue_many(Spec("nap", {"seconds": 0.5}) for _ in range(3))
            queue.enqueue("nap", {"seconds": 0}, max_attempts=1)  # kills its worker
        pool("--drain", handlers=NAP, workers=2).wait()
        slept = sum(float(each["result"]) for each in rows(database, "SELECT result FROM jobs WHERE status = 'done'"))
        found = read(command("metrics", "--db", str(database)).ok().out)
        assert found["jobpool_run_seconds_count", "nap"] == found["jobpool_jobs_done_total", "nap"] == 3 * life
        assert slept - 0.001 <= found["jobpool_run_seconds_sum", "nap"] < slept + 5
        writes, count = found["jobpool_db_write_seconds_sum",], found["jobpool_db_write_seconds_count",]
        assert 0 < writes / count < 1


NAP = """
@handler("nap")
def nap(seconds):
    if not seconds:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began
"""


def test_a_sum_never_contradicts_its_count(client: MakeClient, store: Store) -> None:
    """It may be too small beside a pool of an older version, which counts without adding."""
    with store.transaction():
        scene.count(store, "run", "t", 20, 5)
        scene.count(store, "run", "small", 20, 5)
        scene.count(store, "run_us", "small", 0, 17)
        scene.count(store, "wait", "large", 20, 5)
        scene.count(store, "wait_us", "large", 0, 2**40)
        scene.count(store, "wait", "exact", 20, 2)
        scene.count(store, "wait_us", "exact", 0, 1_234_567)
    found = read(client().get("/metrics").text)
    assert found["jobpool_run_seconds_sum", "t"] == found["jobpool_run_seconds_sum", "small"] == 5 * 2**19 / 1e6
    assert found["jobpool_wait_seconds_sum", "large"] == 5 * (2**20 - 1) / 1e6
    assert found["jobpool_wait_seconds_sum", "exact"] == 1.234567


def test_a_database_that_counted_before_sums_were_kept_begins_with_an_estimate(
    database: Path, command: Callable[..., Any]
) -> None:
    make_old(database, version=2)
    counted = {
        ("run", "t", 0): 9,
        ("run", "t", 3): 2,
        ("run", "t", 40): 10**7,
        ("wait", "t", 20): 1,
        ("write", "", 16): 4,
    }
    with stranger(database) as connection:
        for (name, label, bucket), value in counted.items():
            connection.execute("INSERT INTO counters VALUES (?, ?, ?, ?)", (name, label, bucket, value))
        connection.execute("INSERT INTO counters VALUES ('done', 't', 0, 12)")
    found = read(command("metrics", "--db", str(database)).ok().out)
    assert found["jobpool_run_seconds_sum", "t"] == pytest.approx((2 * 6 + 10**7 * 0.75 * 2**40) / 1e6)
    assert found["jobpool_wait_seconds_sum", "t"] == 0.75 * 2**20 / 1e6
    assert found["jobpool_db_write_seconds_sum",] == 4 * 0.75 * 2**16 / 1e9
    assert rows(database, "SELECT * FROM counters WHERE name GLOB '*_[un]s'") == [
        {"name": "run_us", "label": "t", "bucket": 0, "value": int(2 * 6 + 10**7 * 0.75 * 2**40)},
        {"name": "wait_us", "label": "t", "bucket": 0, "value": 786_432},
        {"name": "write_ns", "label": "", "bucket": 0, "value": 196_608},
    ]


def test_names_and_units_follow_the_conventions(client: MakeClient, filled: Path) -> None:
    for family in text_string_to_metric_families(client().get("/metrics").text):
        assert re.fullmatch(r"jobpool_[a-z_]+", family.name)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        elif family.name not in COUNTS:
            assert family.name.endswith(UNITS), family.name
        for sample in family.samples:
            if "le" in sample.labels and sample.labels["le"] != "+Inf":
                assert 1e-6 < float(sample.labels["le"]) < 1e6


def test_odd_type_names_are_escaped(client: MakeClient, store: Store) -> None:
    with store.transaction():
        scene.count(store, "done", 'a"b\\c\nd', 0, 7)
    assert read(client().get("/metrics").text)["jobpool_jobs_done_total", 'a"b\\c\nd'] == 7


def test_counters_go_on_over_the_restart_of_a_pool(
    pool: Callable[..., Any], database: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    for life in (1, 2):
        with Queue(database) as queue:
            queue.enqueue_many(Spec("note", {"path": f"{tmp_path}/notes"}) for _ in range(3))
        pool("--drain").wait()
        found = read(command("metrics", "--db", str(database)).ok().out)
        assert found["jobpool_jobs_done_total", "note"] == 3 * life
        assert found["jobpool_run_seconds_count", "note"] == 3 * life
        assert found["jobpool_wait_seconds_count", "note"] == 3 * life
        assert found["jobpool_db_write_seconds_count",] > 0


def test_living_pools_and_workers_are_counted_by_state(
    client: MakeClient, pool: Callable[..., Any], database: Path
) -> None:
    pool(workers=2).ready(2)
    browser = client()

    def seen() -> bool:
        found = read(browser.get("/metrics").text)
        memory = [value for key, value in found.items() if key[0] == "jobpool_worker_memory_bytes"]
        assert (found["jobpool_pools", "running"], found["jobpool_workers", "idle"]) == (1, 2)
        return len(memory) == 2 and all(1 << 20 < value < 1 << 30 for value in memory)

    eventually(seen)
    ready = browser.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")


def test_the_command_writes_them_whole_for_a_textfile_collector(
    command: Callable[..., Any], filled: Path, tmp_path: Path
) -> None:
    target = tmp_path / "jobpool.prom"
    command("metrics", "--db", str(filled), "--output", str(target)).ok()
    assert read(target.read_text())["jobpool_restarts_total", "crashed"] == 3
    assert target.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir() if "prom" in each.name] == ["jobpool.prom"]
    command("metrics", "--db", str(filled), "--output", str(tmp_path / "no" / "x.prom")).refused(1, "no")


def test_ready_means_a_pool_no_pause_and_nothing_that_waits_for_long(client: MakeClient, store: Store) -> None:
    browser = client(ready_age=60)
    store.connection.execute(
        "INSERT INTO jobs (type, payload, run_at) VALUES ('t', '{}', ?)", (utc_text(1_700_000_000),)
    )
    store.change("pause", by="a", reason="r", now=now_text(), until=None)
    answer = browser.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {"database": True, "pool": False, "not_paused": False, "oldest_due": False}
    assert answer.json()["oldest_due_age_seconds"] > 1e6


def test_health_is_that_the_database_can_be_read(client: MakeClient, database: Path) -> None:
    browser = client()
    assert browser.get("/healthz").json() == {"status": "ok", "database": "readable"}
    database.write_bytes(b"no database at all, but of some length" * 100)
    Path(f"{database}-wal").unlink(missing_ok=True)
    database.unlink()
    for path in ("/healthz", "/readyz"):
        assert browser.get(path).status_code == 503 and browser.get(path).json()["status"] != "ok"


def test_the_grafana_dashboard_asks_for_these_names_and_no_others(client: MakeClient, filled: Path) -> None:
    exported = set()
    for family in text_string_to_metric_families(client().get("/metrics").text):
        exported |= {sample.name for sample in family.samples} or {family.name}
    text = GRAFANA.read_text()
    dashboard = json.loads(text)
    asked = set(re.findall(r"\bjobpool_[a-z_]+", " ".join(target["expr"] for panel in dashboard["panels"]
                                                          for target in panel.get("targets", []))))  # fmt: skip
    assert asked <= exported, asked - exported
    whole = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == whole
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", ["prometheus_client"])
def test_without_its_package_the_command_says_what_to_install(name: str, tmp_path: Path, filled: Path) -> None:
    import subprocess
    import sys

    script = f"import sys; sys.modules[{name!r}] = None; import pool.cli; sys.exit(pool.cli.main())"
    for arguments, extra in ((["metrics"], "metrics"), (["web"], "web")):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, "--db", str(filled)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"error: [^\n]*pip install 'jobpool\[{extra}\]'\n", done.stderr), done.stderr
