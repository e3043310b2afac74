"""The supervisor restarts what dies, waits longer each time, forgives, and keeps its hands off what is held."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from migratory_local import supervisor as module
from migratory_local.process import Process
from migratory_local.supervisor import Happening, Supervisor, ending
from migratory_testing.waiting import until


@pytest.fixture
def happenings() -> list[Happening]:
    return []


@pytest.fixture
async def supervisor(happenings: list[Happening], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.02)
    watching = Supervisor(happenings.append)
    task = asyncio.create_task(watching.run())
    yield watching
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = Process("sleeper", ["sleep", "600"], tmp_path / "log")
    process.start()
    yield process
    process.kill()


async def test_what_dies_is_started_again(
    supervisor: Supervisor, happenings: list[Happening], sleeper: Process
) -> None:
    supervisor.watch(sleeper)
    first = sleeper.pid
    sleeper.kill()
    await until(lambda: sleeper.starts == 2)
    assert sleeper.pid != first
    await until(lambda: len(happenings) == 2)
    assert [happening.kind for happening in happenings] == ["died", "restarted"]
    assert "was ended by signal 9" in happenings[0].text


async def test_what_is_held_stays_dead_until_it_is_released(supervisor: Supervisor, sleeper: Process) -> None:
    other = Process("other", sleeper.command, sleeper.log)
    other.start()
    supervisor.watch(sleeper)
    supervisor.watch(other)
    supervisor.hold("sleeper")
    sleeper.kill()
    other.kill()
    # The other one's restart shows that the supervisor has looked at both.
    await until(lambda: other.starts == 2)
    assert sleeper.starts == 1
    supervisor.release("sleeper")
    await until(lambda: sleeper.starts == 2)
    supervisor.hold("other")
    other.kill()


async def test_what_a_file_keeps_away_is_started_when_the_file_is_gone(
    supervisor: Supervisor, happenings: list[Happening], sleeper: Process, tmp_path: Path
) -> None:
    mark = tmp_path / "sleeper"
    supervisor.watch(sleeper, mark)
    mark.touch()
    sleeper.kill()
    await until(lambda: [happening.kind for happening in happenings] == ["away"])
    assert "stays away until `migratory drain --back`" in happenings[0].text
    mark.unlink()
    await until(lambda: sleeper.starts == 2)
    assert [happening.kind for happening in happenings] == ["away", "restarted"]
    sleeper.kill()
    await until(lambda: sleeper.starts == 3)


async def test_waits_grow_while_it_keeps_dying(
    supervisor: Supervisor, happenings: list[Happening], tmp_path: Path
) -> None:
    failing = Process("failing", ["sh", "-c", "exit 3"], tmp_path / "log")
    failing.start()
    supervisor.watch(failing)
    await until(lambda: failing.starts == 5)
    supervisor.hold("failing")
    assert failing.wait(10)
    waits = [float(happening.text.split()[-2]) for happening in happenings if happening.kind == "died"]
    assert waits[:4] == [0.02, 0.04, 0.08, 0.16]


async def test_a_start_that_fails_is_told_and_tried_again(
    supervisor: Supervisor, happenings: list[Happening], tmp_path: Path
) -> None:
    process = Process("x", ["sleep", "600"], tmp_path / "logs" / "log")
    process.start()
    supervisor.watch(process)
    process.log = tmp_path  # a folder can't be appended to
    process.kill()
    await until(lambda: any(happening.kind == "failed" for happening in happenings))
    process.log = tmp_path / "log"
    await until(lambda: process.starts == 2)
    supervisor.hold("x")
    process.kill()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with 0"), (3, "ended with 3"), (-9, "was ended by signal 9"), (None, "never ran")]
)
def test_endings(code: int | None, words: str) -> None:
    assert ending(code) == words
