"""``pool backup``, ``restore``, ``doctor`` and ``completion``: keeping the file well, and the shell helpful."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import click
from click.shell_completion import get_completion_class

from pool import audit
from pool import backup as backups
from pool import restore as restores
from pool.cli import render
from pool.cli.base import database_option, group, json_option, say, say_json
from pool.cli.choose import many
from pool.clock import now_text
from pool.doctor import Level, examine
from pool.errors import ExitCode, UsageError

_COMPLETE = "_POOL_COMPLETE"


@group.command("backup", short_help="Copy the live database, verified.")
@database_option
@json_option
@click.argument("dest")
@click.option("--force", is_flag=True, help="Overwrite DEST, once the new backup is verified.")
def backup(database: str, as_json: bool, dest: str, force: bool) -> None:
    """Copy the live database to DEST, verified and synced; pools go on meanwhile.

    DEST is a file, or a folder, in which the copy is named after the time. Everything acknowledged before the command
    began is in it.

    \b
    pool backup /backups/jobs.db --force
    pool backup /backups/
    """
    shown = not as_json and sys.stderr.isatty()
    made = backups.backup(database, dest, now_text(), force=force, progress=_tell if shown else None)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if as_json:
        say_json(asdict(made))
    else:
        say(f"{made.path}: {made.bytes:,} bytes in {made.seconds:.1f} s, verified; {_jobs(made.jobs)}")


@group.command("restore", short_help="Put a backup in the place of the database.")
@database_option
@json_option
@click.argument("source")
@click.option("--force", is_flag=True, help="Replace the database; it is kept aside under a dated name.")
def restore(database: str, as_json: bool, source: str, force: bool) -> None:
    """Put the backup SOURCE in the place of the database, whole or not at all.

    Refused while a pool, or anything else, has the database open. Jobs that ran when the backup was taken are queued
    again with the attempt given back. A job runs at least once: those that ended after the backup was taken run again.
    What was enqueued after it is only in the file that is kept aside, which pool restore takes, too.

    \b
    pool restore /backups/jobs.db --force
    pool restore /backups/jobs.db --db look.db
    """
    done = restores.restore(source, database, audit.who(), now_text(), force=force)
    if as_json:
        say_json(asdict(done))
        return
    say(f"{done.path} restored in {done.seconds:.1f} s: {_jobs(done.jobs)}")
    if done.returned:
        say(f"{many(done.returned)} that ran when the backup was taken queued again")
    if done.kept is not None:
        say(f"the database before it is kept as {done.kept}")


@group.command("doctor", short_help="Look for what is known to go wrong, and say what to do.")
@database_option
@json_option
@click.option("--full", is_flag=True, help="Compare each index with its table, too.")
def doctor(database: str, as_json: bool, full: bool) -> int:
    """Look at everything around the queue that is known to go wrong, and say what to do. Changes nothing.

    Exit code 1 when something fails, 0 when all is well or only may matter.

    \b
    pool doctor
    pool doctor --json | jq '.[] | select(.level != "ok")'
    """
    found = examine(database, now_text(), os.environ, _variables(), full=full)
    if as_json:
        say_json([each._asdict() for each in found])
    else:
        render.findings(found)
    return ExitCode.FAILED if any(each.level == Level.FAIL for each in found) else ExitCode.OK


@group.command("completion", short_help="Complete commands and options in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """The script that makes a shell complete commands and options.

    \b
    pool completion bash > ~/.local/share/bash-completion/completions/pool
    pool completion zsh > "${fpath[1]}/_pool"
    pool completion fish > ~/.config/fish/completions/pool.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"this version of click knows no completion for {shell}")
    # Not .source(), which for bash starts one to ask its version.
    made = kind(group, {}, "pool", _COMPLETE)
    say((kind.source_template % made.source_vars()).strip())


def _tell(done: int, total: int) -> None:
    text = (
        f"copied {done / max(total, 1):.0%} of {total / 2**20:,.0f} MB"
        if done < total
        else "copied; verifying the copy"
    )
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _jobs(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {'archived' if name == 'archive' else name}" for name, number in counts.items())


def _variables() -> frozenset[str]:
    """The environment variables that commands read, those that are no option among them."""
    found = {"POOL_WEB_TOKEN"}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for option in command.params if command is not None else ():
            names = option.envvar or ()
            found.update([names] if isinstance(names, str) else names)
    return frozenset(found)
