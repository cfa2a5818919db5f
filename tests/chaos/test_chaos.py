"""Half a minute of the chaos script: a real pool under random faults loses, doubles and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "chaos.py"


@pytest.mark.timeout(240)
def test_a_pool_under_random_faults_keeps_every_promise() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "30", "--workers", "3", "--rate", "60", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert not report["breaches"], report
    assert done.returncode == 0
    assert report["jobs"] >= report["acknowledged"] > 100
    assert sum(fault["given"] for fault in report["faults"]) > 20


def test_an_unknown_fault_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--faults", "meteor"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "unknown fault meteor" in done.stderr
