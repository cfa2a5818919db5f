"""The ``pool`` command: one file a family of subcommands; every error ends as one line and a named exit code."""

from __future__ import annotations

import io
import os
import sqlite3
import sys

import click

from pool.cli.base import group
from pool.errors import ExitCode, PoolError


def main() -> int:
    """Run the command a person typed; its exit code, see docs/reference.md."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's encoding lacks is spelled out, not an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        result = group.main(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
        return int(result or 0)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(error.format_message().replace("\n", " ") + hint, ExitCode.USAGE)
    except PoolError as error:
        return _fail(str(error), error.exit_code)
    except sqlite3.Error as error:
        return _fail(f"the database refused: {error}", ExitCode.DATABASE)
    except UnicodeError as error:
        return _fail(f"text that is not UTF-8: {error}", ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ExitCode.FAILED)
    except (BrokenPipeError, SystemExit):  # SystemExit is the answer of click and rich to a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads; exit without a word
        return ExitCode.OK
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter, trying once more at its end, exits with 120
        return _fail(str(error), ExitCode.FAILED)


def _open_missing_streams() -> None:
    """Standard streams that whoever started us has closed (``2>&-``) lead nowhere; else the database might get their
    numbers, and the first line printed would go into it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _fail(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return int(code)
