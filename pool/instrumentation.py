"""Has worker processes instrumented as the command ``opentelemetry-instrument`` has a program: by a module that Python
imports as it starts, from a folder that is first in PYTHONPATH."""

from __future__ import annotations

import importlib.util
import os
import sys

_MODULE = "opentelemetry.instrumentation.auto_instrumentation"


def is_installed() -> bool:
    """Whether that module is there."""
    try:
        return importlib.util.find_spec(_MODULE) is not None
    except ModuleNotFoundError:
        return False


def is_on() -> bool:
    """Whether this process was started by ``opentelemetry-instrument``."""
    return _MODULE in sys.modules


def switch_on(environment: dict[str, str]) -> None:
    """Have Python processes with this environment instrumented."""
    spec = importlib.util.find_spec(_MODULE)
    assert spec is not None and spec.origin is not None
    ours = os.path.dirname(spec.origin)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    # The command has put the working folder there, where a handlers.py of the user's would hide our package of that
    # name; his modules are found without it. Its own folder, some versions take out again and others leave.
    given = [path for path in paths if path and path != ours and not (is_on() and path == os.getcwd())]
    environment["PYTHONPATH"] = os.pathsep.join([ours, *given])
