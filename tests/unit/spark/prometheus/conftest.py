"""Fixtures: servers that send the replies of a test and end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from migratory_testing.fakeprometheus import FakePrometheus, Reply, Request, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FakePrometheus] = []

    def start(answer: Callable[[Request], Reply]) -> FakePrometheus:
        servers.append(FakePrometheus(answer).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)
