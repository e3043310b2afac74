"""The recorder: it writes rows as scraped, `up` for each scrape, and complete files, and reports a full disk.

It follows targets that are added, replaced and removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from aiohttp import web
from migratory_local import LocalError
from migratory_local.metrics import recorder as recorder_module
from migratory_local.metrics.recorder import SCHEMA, Recorder
from migratory_local.metrics.scrape_file import ScrapeTarget
from migratory_testing.waiting import until


class FakeTarget:
    text = 'hits_total{code="200"} 1\n'
    status = 200
    port = 0


@pytest.fixture
async def target() -> AsyncIterator[FakeTarget]:
    state = FakeTarget()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=state.text, status=state.status)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    state.port = runner.addresses[0][1]
    yield state
    await runner.cleanup()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rows(folder: Path) -> list[tuple[str, dict[str, str], int, float]]:
    samples = []
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        samples += [(row["metric"], dict(row["labels"]), row["timestamp"], row["value"]) for row in table.to_pylist()]
    return samples


async def test_rows_are_the_scraped_samples(tmp_path: Path, target: FakeTarget) -> None:
    clock = iter([1.0, 2.5, 3.0])
    recorder = Recorder(tmp_path, now=lambda: next(clock))
    recorder.add(target.port, "broker")
    instance = f"127.0.0.1:{target.port}"
    await recorder.scrape()
    await recorder.flush()
    target.text = 'hits_total{code="200"} 5\nnew 7\n'
    await recorder.scrape()
    target.status = 500
    await recorder.scrape()
    await recorder.flush()
    await recorder.aclose()
    extra = {"job": "broker", "instance": instance}
    assert rows(tmp_path) == [
        ("hits_total", {"code": "200", **extra}, 1000, 1.0),
        ("up", extra, 1000, 1.0),
        ("hits_total", {"code": "200", **extra}, 2500, 5.0),
        ("new", extra, 2500, 7.0),
        ("up", extra, 2500, 1.0),
        ("up", extra, 3000, 0.0),
    ]
    assert names(tmp_path) == ["samples-00000.parquet", "samples-00001.parquet"]


async def test_recorder_scrapes_periodically_and_writes_the_rest_at_the_end(tmp_path: Path, target: FakeTarget) -> None:
    (tmp_path / "samples-00099.parquet").write_bytes(b"of an earlier run")
    async with Recorder(tmp_path, interval=0.05) as recorder:
        recorder.add(target.port, "broker")
        await until(lambda: len(recorder._values) >= 10)
        recorder.check()
    samples = rows(tmp_path)
    assert len(samples) == recorder.rows >= 12
    stamps = [row[2] for row in samples if row[0] == "up"]
    assert stamps == sorted(set(stamps))


async def test_target_with_an_invalid_answer_is_down(tmp_path: Path, target: FakeTarget) -> None:
    target.text = "<html>\n"
    async with Recorder(tmp_path, interval=60) as recorder:
        recorder.add(target.port, "broker")
    assert [(row[0], row[3]) for row in rows(tmp_path)] == [("up", 0.0)]


async def test_removed_target_is_not_scraped(tmp_path: Path, target: FakeTarget) -> None:
    async with Recorder(tmp_path, interval=60) as recorder:
        recorder.add(target.port, "broker")
        recorder.remove(target.port)
    assert rows(tmp_path) == []


async def test_followed_targets_have_their_own_labels_until_replaced(tmp_path: Path, target: FakeTarget) -> None:
    target.text = "hits_total 1\n"
    clock = iter([1.0, 2.0])
    recorder = Recorder(tmp_path, now=lambda: next(clock))
    address = f"127.0.0.1:{target.port}"
    for job in ("bench", "other"):
        recorder.follow([ScrapeTarget(address, {"job": job})])
        await recorder.scrape()
    recorder.follow([])
    await recorder.scrape()
    await recorder.flush()
    await recorder.aclose()
    assert rows(tmp_path) == [
        (metric, {"job": job, "instance": address}, at, 1.0)
        for job, at in (("bench", 1000), ("other", 2000))
        for metric in ("hits_total", "up")
    ]


async def test_full_disk_is_an_error(tmp_path: Path, target: FakeTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    monkeypatch.setattr(recorder_module, "_FLUSH_SECONDS", 0.0)
    recorder = Recorder(tmp_path, interval=0.02)
    await recorder.__aenter__()
    recorder.add(target.port, "broker")
    await until(lambda: recorder._task and recorder._task.done())
    with pytest.raises(LocalError, match="No space left on device"):
        recorder.check()
    with pytest.raises(LocalError, match="No space left on device"):
        await recorder.__aexit__()
    assert names(tmp_path) == []


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write metrics into"):
        Recorder(tmp_path / "file")
