"""What tables keep where there is no room: every digit of what they show, and a word about what they don't."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from migratory_cli import tables
from migratory_cli.bench_view import Progress, summary
from migratory_loadtest import LoadEvent, LoadResult
from migratory_loadtest.result import Latency, Phases, Resumed, Spread
from rich.console import Console

LATENCY = Latency(
    count=111_111_111, median=541_234.12, mean=541_235.34, stdev=987_654.32, p90=541_236.56, p95=541_237.78,
    p99=641_238.9, max=741_239.01,
)  # fmt: skip
SPREAD = Spread(count=222_222_222, p50=12_345.678, p99=12_346.789, max=12_347.89)
RESULT = LoadResult(
    published=10**12, latency_ms=Phases(before=LATENCY), publish_seconds=SPREAD, resume_seconds=SPREAD, verdict="met"
)


def shown(result: LoadResult, width: int) -> str:
    out = io.StringIO()
    summary(Console(file=out, width=width, force_terminal=True, color_system=None), result)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200, tables.UNLIMITED])
def test_no_digit_is_cut_whatever_the_width(width: int) -> None:
    text = shown(RESULT, width)
    assert "…" not in text
    left_out = set(re.findall(r"left out, as the terminal is narrow: (.*)", text))
    if width >= 80:
        assert {"541,234.12", "741,239.01", "1,000,000,000,000", "12,347.890"} <= set(re.findall(r"[\d,.]+", text))
    for name, value in (("stdev", "987,654.32"), ("P90", "541,236.56"), ("mean", "541,235.34")):
        assert (value in text) != any(name in names for names in left_out), (width, name)
    assert (width >= 120) == (not left_out)
    digits = re.sub(r"[^\d]", "", "".join(line.split("│")[-2] for line in text.splitlines() if line.count("│") > 2))
    assert "74123901" in digits  # folded over several lines at most: `max` is the last column
    if width < 120:
        assert max(map(len, (line for line in text.splitlines() if "│" in line))) <= width


def test_the_latency_is_that_of_the_whole_run_when_nothing_happened() -> None:
    assert re.search(r"│ all +│ 111,111,111 ", shown(RESULT, 200))
    mark = Resumed(name="kill", broker="b", clients=1, disconnected=1, resumed=1, within_limit=1)
    phases = Phases(before=LATENCY, during=LATENCY, after=LATENCY)
    text = shown(LoadResult(latency_ms=phases, marks=[mark], verdict="met"), 200)
    assert [name for name in ("before the fault", "during it", "after it", " all ") if name in text][-1] == "after it"
    assert "Times" not in text


def test_the_end_is_told_once() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=200)) as progress:
        for phase, elapsed in (("measuring", 1.0), ("measuring", 2.0), ("done", 8.0), ("done", 9.0), ("done", 11.0)):
            progress.show(
                LoadEvent(
                    phase=phase,  # type: ignore[arg-type]
                     elapsed=elapsed, total=9.0, connected=1, subscribers=1, published=1, acknowledged=1,
                    received=1, expected=1, reconnects=0, late=0,
                )
            )  # fmt: skip
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["measuring", "done"]


def test_a_pipe_has_no_width() -> None:
    code = "from migratory_cli.tables import open_console; print(open_console().width)"
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == tables.UNLIMITED
