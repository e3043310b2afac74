"""Test the programs of docs/reference/client-python.md by running them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from migratory_testing.fakebroker import FakeBroker
from migratory_testing.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "client-python.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
AFTER_A_RESTART = PROGRAMS[3]


def test_page_of_the_client_contains_programs() -> None:
    assert len(PROGRAMS) == 4
    assert "positions.json" in AFTER_A_RESTART


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program != AFTER_A_RESTART])
async def test_documented_program_runs(program: str) -> None:
    async with FakeBroker() as broker:
        code = re.sub(r"ws://127\.0\.0\.1:880\d/ws", broker.url, program)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, err.decode()
        assert err == b""
        assert b"1.084" in out


async def test_documented_program_misses_nothing_after_a_restart(tmp_path: Path) -> None:
    async with FakeBroker() as broker:
        code = AFTER_A_RESTART.replace("ws://127.0.0.1:8800/ws", broker.url)

        async def lines_of_one_life(*published: bytes, expected: int) -> list[bytes]:
            """Run the documented program, publish the payloads, and kill the program once it has written `expected`
            lines and stored the last position. Return the lines."""
            await until(lambda: not broker.live, "the one before is gone")
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE, cwd=tmp_path)
            assert process.stdout is not None
            try:
                await until(lambda: broker.live and len(broker.live[0].topics) == 2, "subscribed")
                for payload in published:
                    broker.publish("quotes/eur", payload)
                lines = [await asyncio.wait_for(process.stdout.readline(), 10) for _ in range(expected)]
                last = list(broker.memory.position("quotes/eur"))
                store = tmp_path / "positions.json"
                await until(lambda: store.exists() and json.loads(store.read_text())["quotes/eur"] == last, "stored")
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()
            return lines

        assert await lines_of_one_life(b"1", b"2", expected=2) == [b"quotes/eur 1\n", b"quotes/eur 2\n"]
        for payload in (b"3", b"4"):
            broker.memory.append("quotes/eur", payload)
        assert await lines_of_one_life(expected=2) == [b"quotes/eur 3\n", b"quotes/eur 4\n"]
        broker.memory.epoch, broker.memory.topics = 9, {}
        first_line, *others = await lines_of_one_life(b"5", expected=3)
        assert first_line.startswith(b"missing: quotes/")
        assert others[-1] == b"quotes/eur 5\n"
