"""Tables (no digit is cut, omitted columns are named), progress lines, and result files."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from migratory_cli import output
from migratory_cli.commands.bench_view import ProgressDisplay, print_summary
from migratory_cli.output import ResultNotWritten, check_result_file, report_write_errors
from migratory_loadtest import LoadEvent, LoadResult
from migratory_loadtest.result import DurationSummary, FaultRecovery, LatencyPhases, LatencySummary
from rich.console import Console

LATENCY = LatencySummary(
    count=111_111_111, median=541_234.12, mean=541_235.34, stdev=987_654.32, p90=541_236.56, p95=541_237.78,
    p99=641_238.9, max=741_239.01,
)  # fmt: skip
DURATIONS = DurationSummary(count=222_222_222, p50=12_345.678, p99=12_346.789, max=12_347.89)
RESULT = LoadResult(
    published=10**12,
    latency_ms=LatencyPhases(before=LATENCY),
    publish_seconds=DURATIONS,
    resume_seconds=DURATIONS,
    verdict="met",
)


def shown(result: LoadResult, width: int) -> str:
    text = io.StringIO()
    print_summary(Console(file=text, width=width, force_terminal=True, color_system=None), result)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200, output.UNLIMITED_WIDTH])
def test_table_cuts_no_digit_at_any_width(width: int) -> None:
    text = shown(RESULT, width)
    assert "…" not in text
    omitted = set(re.findall(r"columns omitted, because the terminal is narrow: (.*)", text))
    if width >= 80:
        assert {"541,234.12", "741,239.01", "1,000,000,000,000", "12,347.890"} <= set(re.findall(r"[\d,.]+", text))
    for name, value in (("stdev", "987,654.32"), ("P90", "541,236.56"), ("mean", "541,235.34")):
        assert (value in text) != any(name in names for names in omitted), (width, name)
    assert (width >= 120) == (not omitted)
    digits = re.sub(r"[^\d]", "", "".join(line.split("│")[-2] for line in text.splitlines() if line.count("│") > 2))
    assert "74123901" in digits  # at most folded over several lines: `max` is the last column
    if width < 120:
        assert max(map(len, (line for line in text.splitlines() if "│" in line))) <= width


def test_summary_has_one_latency_row_without_a_fault() -> None:
    assert re.search(r"│ all +│ 111,111,111 ", shown(RESULT, 200))
    mark = FaultRecovery(name="kill", broker="b", clients=1, disconnected=1, resumed=1, within_limit=1)
    phases = LatencyPhases(before=LATENCY, during=LATENCY, after=LATENCY)
    text = shown(LoadResult(latency_ms=phases, marks=[mark], verdict="met"), 200)
    assert [name for name in ("before the fault", "during it", "after it", " all ") if name in text][-1] == "after it"
    assert "Times" not in text


def test_progress_shows_the_end_once() -> None:
    text = io.StringIO()
    with ProgressDisplay(Console(file=text, width=200)) as progress:
        for phase, elapsed in (("measuring", 1.0), ("measuring", 2.0), ("done", 8.0), ("done", 9.0), ("done", 11.0)):
            progress.show(
                LoadEvent(
                    phase=phase,  # type: ignore[arg-type]
                     elapsed=elapsed, total=9.0, connected=1, subscribers=1, published=1, acknowledged=1,
                    received=1, expected=1, reconnects=0, late=0,
                )
            )  # fmt: skip
    assert [line.split()[0] for line in text.getvalue().splitlines()] == ["measuring", "done"]


def test_console_is_unlimited_on_a_pipe() -> None:
    code = "from migratory_cli.output import open_console; print(open_console().width)"
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == output.UNLIMITED_WIDTH


def test_unwritable_result_file_is_an_error_before_the_work(tmp_path: Path) -> None:
    check_result_file("--json", None)
    check_result_file("--json", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "old.json").write_text("kept until there is a new one")
    check_result_file("--json", tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept until there is a new one"
    with pytest.raises(ResultNotWritten, match=r"--json: cannot write .*/none/x: No such file or directory"):
        check_result_file("--json", tmp_path / "none" / "x")
    with pytest.raises(ResultNotWritten, match=r"--json: cannot write .*: Is a directory"):
        check_result_file("--json", tmp_path)


def test_full_disk_is_an_error_with_option_and_file() -> None:
    with (
        pytest.raises(ResultNotWritten, match="--account: cannot write /dev/full: No space left on device") as raised,
        report_write_errors("--account", Path("/dev/full")),
    ):
        Path("/dev/full").write_text("x")
    assert raised.value.exit_code == 2


def test_errors_other_than_oserror_pass() -> None:
    with pytest.raises(KeyError), report_write_errors("--json", Path("x")):
        raise KeyError
