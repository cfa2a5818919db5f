"""What importing costs: an application that enqueues pays for no command line and no supervisor."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import environment


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


def test_the_package_is_typed_and_names_what_it_offers() -> None:
    import pool

    assert all(hasattr(pool, name) for name in pool.__all__)
    assert pool.__version__.count(".") == 2
