"""What importing costs: an application that enqueues pays for no command line and no supervisor."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import environment

ROOT = Path(__file__).parents[2]


def imported(statement: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import pool", "from pool import Queue, handler", "import pool.worker"])
def test_importing_pool_imports_neither_the_command_line_nor_what_only_it_needs(statement: str) -> None:
    found = imported(statement)
    tops = {name.partition(".")[0] for name in found}
    assert not tops & {"click", "rich", "psutil", "PIL", "asyncio", "multiprocessing", "concurrent", "opentelemetry"}
    assert not {name for name in found if name.startswith(("pool.cli", "pool.supervisor"))}


def test_an_application_imports_no_worker_either() -> None:
    found = imported("import pool")
    assert "pool.worker" not in found and "setproctitle" not in found


def test_a_worker_holds_neither_tls_nor_images_before_a_job_needs_them() -> None:
    found = imported("import pool.boot, handlers.webhook, handlers.thumbnail")
    assert not found & {"ssl", "_ssl", "_hashlib", "http.client", "urllib.request", "PIL"}


def test_the_package_is_typed_and_names_what_it_offers() -> None:
    import pool

    assert all(hasattr(pool, name) for name in pool.__all__)
    assert pool.__version__.count(".") == 2


def test_a_file_imports_only_from_those_that_the_layout_names_above_it() -> None:
    layout = (ROOT / "docs/architecture.md").read_text().partition("    pool/\n")[2].partition("    handlers/")[0]
    modules = {
        path.stem for path in (ROOT / "pool").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    line_of: dict[str, int] = {}
    for number, line in enumerate(layout.splitlines()):
        for name in re.split(r"\s{3,}", line.strip())[0].split():
            line_of.setdefault(name.rstrip("/"), number)
    assert modules - {"__init__", "__main__"} <= line_of.keys()
    found = []
    for path in (ROOT / "pool").rglob("*.py"):
        own = path.relative_to(ROOT / "pool").parts[0].removesuffix(".py")
        # Not those within functions, nor those for types alone.
        for node in ast.parse(path.read_text()).body if own in line_of else []:
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "pool":
                names = (
                    [each.name for each in node.names] if node.module == "pool" else [str(node.module).split(".")[1]]
                )
                found += [(path.name, name) for name in names if line_of.get(name, -1) > line_of[own]]
    assert not found
