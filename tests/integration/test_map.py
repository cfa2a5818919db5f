"""``pool map``: one job a file, and never the same work twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Command
from tests.support import rows

COPY = """
import shutil


@handler("copy")
def copy(source, dest, **options):
    os.makedirs(os.path.dirname(dest), exist_ok=True)
    shutil.copy(source, dest + ".part")
    os.replace(dest + ".part", dest)
    append("ran", os.path.basename(source))


@handler("refuse", max_attempts=1)
def refuse(source, dest):
    raise Discard("never: " + os.path.basename(source))
"""


@pytest.fixture
def photos(tmp_path: Path, tasks: Callable[[str], Path]) -> Path:
    """A folder with files, some of them hidden, below it, and the handlers to map with."""
    tasks(COPY)
    folder = tmp_path / "photos"
    for name in ("a.jpg", "b.PNG", "sub/c.jpeg", ".hidden.jpg", ".git/d.jpg", "sub/.e.jpg"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def payloads(database: Path) -> list[dict[str, Any]]:
    return [json.loads(each["payload"]) for each in rows(database)]


def test_each_file_below_a_folder_but_the_hidden_ones_is_a_job(
    photos: Path, command: Command, database: Path, tmp_path: Path
) -> None:
    assert command("map", "copy", "photos", "--dest", "out", "--set", "size=512", "--set", "name=x=y").ok().out == (
        "3 files: 3 queued\n"
    )
    assert payloads(database) == [
        {"size": 512, "name": "x=y", "source": str(photos / name), "dest": str(tmp_path / "out" / name)}
        for name in ("a.jpg", "b.PNG", "sub/c.jpeg")
    ]


def test_the_same_command_again_queues_nothing_and_a_changed_file_again(
    photos: Path, command: Command, database: Path
) -> None:
    arguments = ("map", "copy", "photos", "--dest", "out", "--json")
    assert command(*arguments).ok().json() == {"files": 3, "queued": 3, "known": 0}
    assert command(*arguments).ok().json() == {"files": 3, "queued": 0, "known": 3}
    (photos / "a.jpg").write_text("changed")
    assert command(*arguments).ok().json() == {"files": 3, "queued": 1, "known": 2}
    assert command(*arguments, "--set", "size=1").ok().json()["queued"] == 3
    assert len(rows(database)) == 7


def run(command: Command, *more: str, type: str = "copy") -> Any:
    return command(
        "map", type, "photos", "--dest", "out", "--run", "--workers", "1", "--handlers", "tasks", "--json", *more
    )


def test_with_run_the_files_are_worked_off_once(photos: Path, command: Command, tmp_path: Path) -> None:
    first = run(command).ok().json()
    assert (first["done"], first["done_now"], first["failed"], first["left"]) == (3, 3, [], 0)
    assert (tmp_path / "out/sub/c.jpeg").read_text() == "sub/c.jpeg"
    second = run(command).ok().json()
    assert (second["done"], second["done_now"]) == (3, 0)
    assert sorted((tmp_path / "ran").read_text().split()) == ["a.jpg", "b.PNG", "c.jpeg"]


def test_a_result_that_vanished_is_made_again(photos: Path, command: Command, tmp_path: Path) -> None:
    run(command).ok()
    (tmp_path / "out/a.jpg").unlink()
    assert run(command).ok().json()["done_now"] == 1
    assert (tmp_path / "out/a.jpg").read_text() == "a.jpg"


def test_files_that_fail_are_named_and_the_exit_code_is_1(photos: Path, command: Command) -> None:
    done = run(command, type="refuse")
    assert done.code == 1 and done.err.count("Traceback") == 0
    assert {each["error"] for each in done.json()["failed"]} == {"never: a.jpg", "never: b.PNG", "never: c.jpeg"}
    assert done.json()["done"] == 0
    said = command("map", "refuse", "photos", "--dest", "out", "--run", "--workers", "1", "--handlers", "tasks")
    assert said.code == 1 and "never: b.PNG" in said.out and "3 failed" in said.out


def test_a_suffix_is_added_where_the_name_has_another(photos: Path, command: Command, database: Path) -> None:
    command("map", "copy", "photos", "--dest", "out", "--suffix", ".jpg").ok()
    assert sorted(os.path.basename(each["dest"]) for each in payloads(database)) == ["a.jpg", "b.PNG.jpg", "c.jpeg"]


def test_only_names_that_match_are_included_whatever_their_case(photos: Path, command: Command, database: Path) -> None:
    command("map", "copy", "photos", "--dest", "out", "--include", "*.png", "--include", "c.*").ok()
    assert sorted(os.path.basename(each["source"]) for each in payloads(database)) == ["b.PNG", "c.jpeg"]


def test_results_below_the_source_are_not_mapped_again(photos: Path, command: Command, database: Path) -> None:
    (photos / "out").mkdir()
    (photos / "out/old.jpg").touch()
    command("map", "copy", "photos", "--dest", "photos/out").ok()
    assert len(payloads(database)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photos", "other", "--dest", "out"], ["a.jpg", "would both become"]),
        (["photos", "--dest", "photos"], ["would replace it"]),
        (["photos/a.jpg", "--dest", "photos"], ["would replace it"]),
        (["missing", "--dest", "out"], ["missing: no such file or folder"]),
        (["empty", "--dest", "out"], ["no files to map in empty"]),
        (["photos", "--dest", "out", "--include", "*.gif"], ["no files to map"]),
        (["photos", "--dest", "out", "--set", "size"], ["key=value", "'size'"]),
        (["photos", "--dest", "out", "--set", "size=1", "--set", "size=2"], ["size is given twice"]),
        (["photos", "--dest", "out", "--set", "dest=x"], ["--set dest"]),
        (["photos", "--dest", "out", "--set", "size=NaN"], ["size"]),
        (["photos", "--dest", "out", "--run", "--workers", "0"], ["--workers"]),
        (["photos", "--dest", "out", "--run", "--workers", "100000"], ["--workers"]),
        (["photos", "--dest", "out", "--run", "--handlers", "no/module"], ["--handlers"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_mapped_is_refused_before_anything_is_queued(
    arguments: list[str], words: list[str], photos: Path, command: Command, database: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.jpg").write_text("another")
    (tmp_path / "empty").mkdir()
    command("map", "copy", *arguments).refused(2, *words)
    assert not database.exists() or rows(database) == []


def test_a_name_that_is_not_utf_8_is_refused_by_name(photos: Path, command: Command) -> None:
    Path(os.fsdecode(os.fsencode(photos) + b"/bad\xff.jpg")).touch()
    command("map", "copy", "photos", "--dest", "out").refused(2, "not UTF-8", "rename it")
