"""Writes the help of every command into docs/reference.md, between two markers; the tests check that it is current."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pool.cli.base import COMMANDS, group

BEGIN, END = "<!-- commands: written by scripts/reference -->\n", "<!-- end of commands -->\n"


def commands() -> str:
    """The help of every command, as Markdown."""
    parts = []
    context = click.Context(group, info_name="pool", terminal_width=100, **group.context_settings)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=context, terminal_width=100) as inner:
            parts.append(f"### pool {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)


def with_commands(text: str) -> str:
    """A reference with its commands written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{commands()}\n{END}{after}"


def main() -> int:
    """Rewrite the file that is named."""
    path = Path(sys.argv[1])
    path.write_text(with_commands(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
