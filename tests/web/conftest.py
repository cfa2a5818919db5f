"""Fixtures: a dashboard to ask in this process, and what a browser does to send a form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pool.store import Store
from pool.web import app
from tests.web import scene

HERE = "http://localhost:8090"


class Client(TestClient):
    """A browser without scripts: keeps cookies, sends forms with what the page held."""

    def form_token(self, path: str = "/jobs/1") -> str:
        """The token in a page's forms."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(path).text)
        assert found, f"no form on {path}"
        return found[1]

    def submit(self, path: str, page: str = "/", **fields: Any) -> Any:
        """Post a form as its page would, and follow to the answer."""
        return self.post(path, data={"form_token": self.form_token(page), **fields}, headers={"Origin": HERE})


MakeClient = Callable[..., Client]


@pytest.fixture
def client(database: Path) -> Iterator[MakeClient]:
    """``client(read_only=True)``: a browser at a dashboard of the test's database with these options."""
    opened: list[Client] = []

    def make(**options: Any) -> Client:
        Store.open(str(database)).close()
        made = app(str(database), **options)
        opened.append(Client(made, base_url=HERE, client=("127.0.0.1", 50_000), raise_server_exceptions=False))
        opened[-1].__enter__()
        return opened[-1]

    yield make
    for each in opened:
        each.__exit__(None, None, None)


@pytest.fixture
def filled(database: Path) -> Path:
    """A database after some busy days."""
    scene.fill(database)
    return database
