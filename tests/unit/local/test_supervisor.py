"""The supervisor: restarts with backoff, holds, files that prevent a restart, probes, and exits described in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from migratory_local.processes import supervisor as supervisor_module
from migratory_local.processes.process import Process, describe_exit
from migratory_local.processes.supervisor import Supervisor, SupervisorEvent
from migratory_testing.waiting import until


@pytest.fixture
def events() -> list[SupervisorEvent]:
    return []


@pytest.fixture
async def supervisor(events: list[SupervisorEvent], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF", 0.02)
    monkeypatch.setattr(supervisor_module, "PROBE_SECONDS", 0.02)
    instance = Supervisor(events.append)
    task = asyncio.create_task(instance.run())
    yield instance
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = Process("sleeper", ["sleep", "600"], tmp_path / "log")
    process.start()
    yield process
    process.kill()


async def test_process_that_dies_is_started_again(
    supervisor: Supervisor, events: list[SupervisorEvent], sleeper: Process
) -> None:
    supervisor.watch(sleeper)
    first = sleeper.pid
    sleeper.kill()
    await until(lambda: sleeper.starts == 2)
    assert sleeper.pid != first
    await until(lambda: len(events) == 2)
    assert [event.kind for event in events] == ["died", "restarted"]
    assert "was ended by signal 9" in events[0].text


async def test_held_process_is_started_again_after_release(supervisor: Supervisor, sleeper: Process) -> None:
    other = Process("other", sleeper.command, sleeper.log)
    other.start()
    supervisor.watch(sleeper)
    supervisor.watch(other)
    supervisor.hold("sleeper")
    sleeper.kill()
    other.kill()
    # The restart of the other process shows that the supervisor has checked both.
    await until(lambda: other.starts == 2)
    assert sleeper.starts == 1
    supervisor.release("sleeper")
    await until(lambda: sleeper.starts == 2)
    supervisor.hold("other")
    other.kill()


async def test_process_stays_away_until_its_file_is_removed(
    supervisor: Supervisor, events: list[SupervisorEvent], sleeper: Process, tmp_path: Path
) -> None:
    away_file = tmp_path / "sleeper"
    supervisor.watch(sleeper, away_file)
    away_file.touch()
    sleeper.kill()
    await until(lambda: [event.kind for event in events] == ["away"])
    assert "stays away until `migratory drain --back`" in events[0].text
    away_file.unlink()
    await until(lambda: sleeper.starts == 2)
    assert [event.kind for event in events] == ["away", "restarted"]
    sleeper.kill()
    await until(lambda: sleeper.starts == 3)


async def test_backoff_grows_while_the_process_keeps_dying(
    supervisor: Supervisor, events: list[SupervisorEvent], tmp_path: Path
) -> None:
    failing = Process("failing", ["sh", "-c", "exit 3"], tmp_path / "log")
    failing.start()
    supervisor.watch(failing)
    await until(lambda: failing.starts == 5)
    supervisor.hold("failing")
    assert failing.wait(10)
    backoffs = [float(event.text.split()[-2]) for event in events if event.kind == "died"]
    assert backoffs[:4] == [0.02, 0.04, 0.08, 0.16]


async def test_failed_start_is_reported_and_retried(
    supervisor: Supervisor, events: list[SupervisorEvent], tmp_path: Path
) -> None:
    process = Process("x", ["sleep", "600"], tmp_path / "logs" / "log")
    process.start()
    supervisor.watch(process)
    process.log = tmp_path  # a folder cannot be appended to
    process.kill()
    await until(lambda: any(event.kind == "failed" for event in events))
    process.log = tmp_path / "log"
    await until(lambda: process.starts == 2)
    supervisor.hold("x")
    process.kill()


async def test_process_that_stops_answering_is_killed_and_started_again(
    supervisor: Supervisor, events: list[SupervisorEvent], sleeper: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False] * 9 + [True, False, False, True, False, False, False])
    asked: list[int | None] = []

    async def probe() -> bool:
        asked.append(sleeper.pid)
        return next(answers, False)

    monkeypatch.setattr(supervisor_module, "HUNG_PROBES", 3)
    supervisor.watch(sleeper, probe=probe)
    first = sleeper.pid
    await until(lambda: sleeper.starts == 2)
    assert asked[:16] == [first] * 16  # unanswered probes before the first answer do not count
    assert [event.kind for event in events[:3]] == ["hung", "died", "restarted"]
    assert events[0].text == "sleeper does not answer any more and was killed"
    await until(lambda: len(asked) >= 26)
    assert sleeper.starts == 2  # the new process has not answered yet


async def test_probes_of_a_held_process_are_left_out(
    supervisor: Supervisor, sleeper: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def probe(name: str) -> bool:
        asked.append(name)
        return True

    supervisor.watch(sleeper, probe=lambda: probe("sleeper"))
    other = Process("other", sleeper.command, sleeper.log)
    supervisor.watch(other, probe=lambda: probe("other"))  # does not run
    supervisor.hold("sleeper")
    supervisor.hold("other")
    third = Process("third", sleeper.command, sleeper.log)
    third.start()
    supervisor.watch(third, probe=lambda: probe("third"))
    await until(lambda: len(asked) == 3)
    assert asked == ["third"] * 3
    supervisor.hold("third")
    third.kill()


@pytest.mark.parametrize(
    ("code", "words"), [(0, "ended with 0"), (3, "ended with 3"), (-9, "was ended by signal 9"), (None, "never ran")]
)
def test_exit_is_described_in_words(code: int | None, words: str) -> None:
    assert describe_exit(code) == words
