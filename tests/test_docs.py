"""The documents say what is: their code compiles and runs, their links lead somewhere, the reference is current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pool import Queue
from pool.testing import run_inline

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_python_in_a_document_compiles(path: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        compile(code, str(path), "exec")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_the_tutorial_s_first_job_does_what_it_says(tmp_path: Path) -> None:
    code = re.search(r"```python\n(import time\n.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert code
    script = tmp_path / "tasks.py"
    script.write_text(code[1].replace("time.sleep(0.2)", "time.sleep(0)"))
    use = """
import tasks
from pool import Queue
from pool.testing import result_of, run_inline
queue = Queue("jobs.db")
tasks.report.enqueue(queue, month="2026-10")
tasks.report.enqueue(queue, month="November")
(_, good), (_, bad) = run_inline(queue)
assert result_of(good)["rows"] == 1234
assert bad.permanent and "no month" in bad.error
"""
    subprocess.run([sys.executable, "-c", use], cwd=tmp_path, check=True, timeout=30)


def test_run_inline_runs_what_is_due_at_an_instant(tmp_path: Path) -> None:
    with Queue(tmp_path / "jobs.db") as queue:
        queue.enqueue("nobody's", delay=3600)
        assert not run_inline(queue)
        [(job, outcome)] = run_inline(queue, at=4_000_000_000)
        assert job.type == "nobody's"
        assert "no handler" in str(outcome)


def test_the_reference_shows_the_commands_as_they_are() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from reference import with_commands
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    text = (ROOT / "docs" / "reference.md").read_text()
    assert text == with_commands(text), "run scripts/reference"
