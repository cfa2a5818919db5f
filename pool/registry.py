"""Finding handlers: our own and other packages' through entry points, a user's through ``--handlers MODULE``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pool import declare
from pool.declare import Handler
from pool.errors import HandlersError

GROUP = "jobpool.handlers"

Handlers = Mapping[str, Handler[..., Any]]


def entry_points() -> list[str]:
    """``module:attribute`` of every installed handler, without importing any.

    The supervisor reads the packages' metadata once and passes these to its workers, which then need not
    import importlib.metadata (13 ms and 3 MB each).
    """
    from importlib.metadata import entry_points as installed

    return sorted({point.value for point in installed(group=GROUP)})


def load(points: Iterable[str], modules: Iterable[str], folder: str) -> Handlers:
    """Import what the entry points and the user's modules name, and return the handlers by job type.

    Entry points come first and are imported without the working folder in sight, so that a user's
    ``handlers.py`` does not hide our package of that name; his modules then see his folder first.

    Raises:
        HandlersError: a module cannot be imported (the cause is chained), declares no handler, or two
            handlers claim one type.
    """
    for point in points:
        module, _, attribute = point.partition(":")
        _import(module.strip(), f"entry point {point}")
        if attribute and not hasattr(sys.modules[module.strip()], attribute.strip().partition(" ")[0]):
            raise HandlersError(f"entry point {point}: the module has no such name")
    for module in modules:
        before = len(declare.declared)
        with _folder_first(folder, module):
            _import(module, f"--handlers {module}", folder)
        if len(declare.declared) == before and not _declared_in(module):
            raise HandlersError(
                f"--handlers {module}: the module declares no handler; decorate one with @handler(type)"
            )
    return by_type(declare.declared)


def by_type(handlers: Iterable[Handler[..., Any]]) -> dict[str, Handler[..., Any]]:
    """Handlers by job type; a function declared again (its module was reloaded) replaces its former self.

    Raises:
        HandlersError: two functions claim one type; both are named.
    """
    found: dict[str, Handler[..., Any]] = {}
    for each in handlers:
        other = found.get(each.type)
        if other is not None and other.where != each.where:
            raise HandlersError(f"two handlers of type {each.type!r}: {other.where} and {each.where}; rename one")
        found[each.type] = each
    return found


def _import(module: str, asked: str, folder: str | None = None) -> None:
    try:
        importlib.import_module(module)
    except HandlersError:
        raise
    except ModuleNotFoundError as error:
        if folder is not None and error.name is not None and f"{module}.".startswith(f"{error.name}."):
            # A typo, most likely: where it was looked for helps, a traceback through importlib does not.
            meant = f"; a module is named without .py: --handlers {module[:-3]}" if module.endswith(".py") else ""
            raise HandlersError(f"{asked}: no module {error.name} in {folder} or among the installed{meant}") from None
        raise HandlersError(f"{asked}: cannot be imported: {type(error).__name__}: {error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise HandlersError(f"{asked}: cannot be imported: {type(error).__name__}: {error}") from error


def _declared_in(module: str) -> bool:
    return any(each.__module__ == module or each.__module__.startswith(module + ".") for each in declare.declared)


class _folder_first:
    """Put the user's folder first on the path, and let his module take the name of an installed one."""

    def __init__(self, folder: str, module: str) -> None:
        self.folder = folder
        self.top = module.partition(".")[0]

    def __enter__(self) -> None:
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        loaded = sys.modules.get(self.top)
        if loaded is not None and self.top != "pool" and not _lies_in(loaded, self.folder) and self._has_own():
            for name in list(_family(self.top)):
                del sys.modules[name]
        importlib.invalidate_caches()

    def __exit__(self, *_: object) -> None:
        """The folder stays first: a handler may import more of the user's modules when it runs."""

    def _has_own(self) -> bool:
        path = os.path.join(self.folder, self.top)
        return os.path.isfile(path + ".py") or os.path.isdir(path)


def _family(top: str) -> Iterator[str]:
    return (name for name in list(sys.modules) if name == top or name.startswith(top + "."))


def _lies_in(module: Any, folder: str) -> bool:
    paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return any(os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep) for path in paths if path)
