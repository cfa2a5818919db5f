"""``pool run``: a pool in the foreground."""

from __future__ import annotations

import sys
from typing import Any

import click

from pool.cli.base import Seconds, Size, database_option, group, say
from pool.cli.live import LiveLine
from pool.cli.log import LogWriter
from pool.settings import PoolSettings
from pool.store import Store
from pool.supervisor import Supervisor


@group.command("run")
@database_option
@click.option(
    "--workers", type=int, default=None, metavar="N", help="Worker processes.  [default: the CPUs it may use]"
)
@click.option(
    "--handlers", "modules", multiple=True, metavar="MODULE", help="A module of your handlers; may be repeated."
)
@click.option("--drain", is_flag=True, help="End when nothing is left that could run; exit 1 if an attempt failed.")
@click.option("--grace", type=Seconds(), default=25, show_default=True, help="Seconds a running job gets after TERM.")
@click.option(
    "--lease", type=Seconds(), default=600, show_default=True, help="Age at which a foreign worker's lease is lost."
)
@click.option("--cancel-grace", type=Seconds(), default=5, show_default=True, help="Seconds a cancelled job gets.")
@click.option("--exclusive", is_flag=True, help="Refuse to run beside another pool on the database (exit 7).")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Replace a worker after about N jobs.")
@click.option("--max-age", type=Seconds(), metavar="DURATION", help="Replace a worker after about that long.")
@click.option("--soft-memory", type=Size(), metavar="SIZE", help="Replace a worker above it once its job ended: 500M.")
@click.option("--hard-memory", type=Size(), metavar="SIZE", help="End the job of a worker above it: 2G.")
@click.option(
    "--keep", multiple=True, metavar="RULE", help="How long ended jobs are kept: done=7d, report.done=1d, dead=never."
)
@click.option("--on-dead", metavar="TARGET", help="Tell of jobs that died: a job type, or an URL that gets JSON.")
@click.option("--on-degraded", metavar="TARGET", help="Tell that workers keep dying and nothing gets done.")
@click.option("--on-backlog", metavar="TARGET", help="Tell that the oldest due job waits for --backlog-age.")
@click.option("--backlog-age", type=Seconds(), default=600, show_default=True)
@click.option("--nice", type=int, default=0, metavar="N", help="Niceness added to the workers'.")
@click.option("--pin", is_flag=True, help="Give each worker a processor of its own.")
@click.option(
    "--threads",
    type=int,
    default=0,
    metavar="N",
    help="Threads of numeric libraries (OMP_NUM_THREADS ...); -1: as it is.  [default: processors / workers]",
)
@click.option("--traces", is_flag=True, help="Workers send OpenTelemetry traces, configured by OTEL_... variables.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def run(database: str, workers: int | None, log_format: str, **options: Any) -> int:
    """Work off the queue in the foreground.

    Ctrl-C (or TERM) lets running jobs end, a second one ends them now; unfinished jobs go back to the queue.
    HUP reloads, TTIN and TTOU add and remove a worker.

    \b
    pool run --workers 4
    pool run --handlers myapp.jobs --db /var/lib/myapp/jobs.db
    pool run --drain && echo all done
    """
    if workers is not None and workers < 1:
        raise click.BadParameter(f"at least 1, not {workers}", param_hint="--workers")
    given = {name: value for name, value in options.items() if value is not None}
    settings = PoolSettings(database, workers or 0, **given).checked()
    line = LiveLine(settings.database) if log_format == "text" and sys.stderr.isatty() else None
    with LogWriter(as_json=log_format == "json", live=line) as emit:
        supervisor = Supervisor(settings, emit)
        if line is not None:
            line.watch(supervisor)
        code = supervisor.run()
    if settings.drain:
        _summarize(database, *supervisor.counts)
    return code


def _summarize(database: str, done: int, failed: int) -> None:
    store = Store.open(database)
    waiting, dead = store.value("count_queued"), store.value("count_dead")
    store.close()
    left = f"; {waiting} wait for later" if waiting else ""
    gone = f"; {dead} dead (pool list --status dead)" if dead else ""
    attempts = "attempt" if failed == 1 else "attempts"
    say(f"drained: {done} done, {failed} {attempts} failed{left}{gone}")
