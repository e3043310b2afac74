"""Long runs: the result names a part that failed, and the results of the other parts remain.

Also failures in interleaved rounds, and the replacement of the result file in one step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import measure
from benchmarks.benchmark import TINY, Benchmark, NotMeasurable
from benchmarks.comparison import interleaved
from benchmarks.longrun import LongRun, write_json
from benchmarks.measurements import ALL, Measurement
from benchmarks.processes import MeasurementFailed


async def fails(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MeasurementFailed("nats: closed"), "nats: closed"),
        (ValueError("no round"), "ValueError: no round"),
        (TimeoutError("a socket's own"), "TimeoutError: a socket's own"),
        (ExceptionGroup("two", [OSError("gone"), KeyError("x")]), "OSError: gone; KeyError: 'x'"),
    ],
)
async def test_every_kind_of_failure_is_named(error: Exception, words: str) -> None:
    progress: list[str] = []
    parts = LongRun(progress.append)
    assert await parts.attempt("one", lambda: fails(error)) is None
    assert parts.failed == {"one": words}
    assert progress[0] == f"FAILED: one: {words}"


async def test_part_is_ended_at_its_time_limit() -> None:
    parts = LongRun(lambda _: None, 0.0001)
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    await parts.attempt("one", endless)
    assert (parts.failed, ended) == ({"one": "it took more than 0.0001 minutes"}, [True])


async def test_not_measurable_is_no_failure() -> None:
    parts = LongRun(lambda _: None)
    with pytest.raises(NotMeasurable):
        await parts.attempt("one", lambda: fails(NotMeasurable("no peer")))
    assert parts.failed == {}


async def test_measurements_continue_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def good(bench: Benchmark) -> dict[str, Any]:
        bench.drop("nats", MeasurementFailed("closed"))
        return {"us": 1.0}

    async def bad(bench: Benchmark) -> dict[str, Any]:
        raise ValueError("no round")

    async def absent(bench: Benchmark) -> dict[str, Any]:
        raise NotMeasurable("no peer")

    for name, function in {"memory": bad, "latency": absent, "publish": good}.items():
        monkeypatch.setitem(ALL, name, Measurement(name, function))
    written: list[dict[str, Any]] = []
    result = await measure(
        TINY, ["memory", "latency", "publish"], Console(quiet=True),
        lambda part: written.append(json.loads(json.dumps(part))), 1.0,
    )  # fmt: skip
    assert result["publish"] == {"us": 1.0}
    assert result["failed"] == {"memory": "ValueError: no round", "publish: nats": "closed"}
    assert result["not_measured"] == {"latency": "no peer"}
    assert [sorted(part["seconds"]) for part in written] == [
        ["memory"], ["latency", "memory"], ["latency", "memory", "publish"],
    ]  # fmt: skip


def parts(fail_in: int) -> dict[str, Callable[[], Awaitable[int]]]:
    """Return two measurements: each call of `a` or `b` returns how often it was called, except that call `fail_in`
    of `b` raises MeasurementFailed."""
    counts = {"a": 0, "b": 0}

    def one(name: str) -> Callable[[], Awaitable[int]]:
        async def part() -> int:
            counts[name] += 1
            if name == "b" and counts[name] == fail_in:
                raise MeasurementFailed("closed")
            return counts[name]

        return part

    return {"a": one("a"), "b": one("b")}


async def test_failed_system_is_dropped_or_ends_the_rounds() -> None:
    rounds: list[dict[str, int]] = []
    dropped: list[str] = []

    async def drop(name: str, reason: MeasurementFailed) -> None:
        dropped.append(f"{name}: {reason}")

    by_name = await interleaved(3, parts(2), lambda _, results: rounds.append(results), drop)
    assert by_name == {"a": [1, 2, 3]}
    assert dropped == ["b: closed"]
    assert rounds == [{"a": 1, "b": 1}, {"a": 2}, {"a": 3}]
    with pytest.raises(MeasurementFailed, match="closed"):
        await interleaved(3, parts(2), lambda *_: None)


def test_result_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for number in (1, 2):
        write_json(path, {"number": number})
        assert json.loads(path.read_text()) == {"number": number}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    write_json(None, {})
