"""Loads the named SQL statements, so that SQL stands in .sql files alone, in the order of a job's life."""

import functools
import os
import re

_FOLDER = os.path.dirname(__file__)
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW = re.compile(r"(?<=VALUES )\([?\d, ]+\)")


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


@functools.cache
def for_rows(statement: str, count: int) -> str:
    """An INSERT of one row of numbered values as an INSERT of so many, which takes the values of one after another."""
    found = _ROW.search(statement)
    assert found is not None
    row = found[0]
    width = max(map(int, re.findall(r"\d+", row)))
    rows = (re.sub(r"\d+", lambda number, n=n: str(int(number[0]) + n * width), row) for n in range(count))  # type: ignore[misc]
    return statement.replace(row, ", ".join(rows))


def load_migrations() -> list[str]:
    """The text of each migration, in order; the first takes an empty database to version 1."""
    folder = os.path.join(_FOLDER, "migrations")
    texts = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            texts.append(file.read())
    return texts
