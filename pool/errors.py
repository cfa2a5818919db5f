"""What can go wrong, by name: the exceptions the API raises and the exit codes the command line returns."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``pool`` command; docs/reference.md lists them for people and for systemd."""

    OK = 0
    FAILED = 1  # the command worked, but a job it was asked to finish did not
    USAGE = 2  # wrong input; nothing was changed
    HANDLERS = 3  # handlers cannot be imported, or two claim one type
    DATABASE = 4  # not a database, a newer schema, no permission, no space to start
    DATABASE_LOST = 5  # the file was replaced or deleted under a running pool
    GAVE_UP = 6  # no worker became ready for five minutes
    EXCLUSIVE = 7  # --exclusive, and another pool already runs on this database


class PoolError(Exception):
    """Base of every error this package raises on purpose; its text is one line made for a person."""

    exit_code = ExitCode.FAILED


class UsageError(PoolError, ValueError):
    """A value from the caller that can never work, named together with what would."""

    exit_code = ExitCode.USAGE


class PayloadError(UsageError):
    """A payload JSON cannot hold; the text names the place, such as ``payload.images[3].width``."""


class HandlersError(PoolError):
    """Handler modules that cannot be imported, or two handlers of one type."""

    exit_code = ExitCode.HANDLERS


class DatabaseUnusable(PoolError):
    """The database cannot be used at all: wrong file, newer schema, no permission, old library."""

    exit_code = ExitCode.DATABASE


class DatabaseLost(PoolError):
    """The database file is no longer the one that was opened."""

    exit_code = ExitCode.DATABASE_LOST


class ExclusiveRefused(PoolError):
    """Another pool runs on the database and ``--exclusive`` was asked for."""

    exit_code = ExitCode.EXCLUSIVE


class GaveUp(PoolError):
    """No worker became ready for so long that going on would only hide the fault."""

    exit_code = ExitCode.GAVE_UP
