"""docs/client-python.md is right: each of its programs runs."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from migratory_testing.fakebroker import FakeBroker

PAGE = Path(__file__).parents[3] / "docs" / "client-python.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_has_programs() -> None:
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_of_the_page_runs(program: str) -> None:
    async with FakeBroker() as broker:
        code = re.sub(r"ws://127\.0\.0\.1:880\d/ws", broker.url, program)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0, err.decode()
        assert err == b""
        assert b"1.084" in out
