"""Loads the named SQL statements, so that SQL stands in .sql files alone, in the order of a job's life."""

import os
import re

_FOLDER = os.path.dirname(__file__)
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements() -> dict[str, str]:
    """Every statement of ``sql/*.sql`` by name, without its comments, which SQLite would parse each time anew."""
    found: dict[str, str] = {}
    folder = os.path.join(_FOLDER, "sql")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            pieces = _NAME.split(file.read())[1:]
        for key, body in zip(pieces[::2], pieces[1::2], strict=True):
            lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
            if key in found:
                raise ValueError(f"two statements named {key}")
            found[key] = "\n".join(lines).strip().removesuffix(";")
    return found


def load_migrations() -> list[str]:
    """The text of each migration, in order; the first takes an empty database to version 1."""
    folder = os.path.join(_FOLDER, "migrations")
    texts = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            texts.append(file.read())
    return texts
