"""Tables (no digit is cut, omitted columns are named), progress lines, and result files."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from migratory_cli import output, terminal
from migratory_cli.commands.bench_view import ProgressDisplay, print_summary
from migratory_cli.output import ResultNotWritten, check_result_file, report_write_errors
from migratory_loadtest import LoadEvent, LoadResult
from migratory_loadtest.result import DurationSummary, FaultRecovery, LatencyPhases, LatencySummary
from rich.console import Console
from rich.text import Text

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


# ---- text of others ---------------------------------------------------------------------------------------------

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u202e\u2066\u200b\r\udcffz €"
ESCAPED = "a\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\x7f\\u202e\\u2066\\u200b\\r\\udcffz €"
COMMANDS = Path(output.__file__).parent


def test_lines_have_what_does_not_print_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    assert terminal.printable(f"{HOSTILE}\n") == f"{ESCAPED}\\n"
    terminal.echo(f"{HOSTILE}\n{HOSTILE}", err=True)
    assert capfd.readouterr().err == f"{ESCAPED}\n{ESCAPED}\n"
    out = output.StdoutWriter()
    out.put_line(HOSTILE)
    out.flush(5)
    assert capfd.readouterr().out == f"{ESCAPED}\n"


def test_json_has_the_same_value_in_characters_that_print() -> None:
    text = terminal.to_json({"text": HOSTILE}, indent=1)
    assert json.loads(text) == {"text": HOSTILE}
    assert all(line.isprintable() for line in text.splitlines())
    assert terminal.to_json({"text": "1.0842 €"}) == '{"text": "1.0842 €"}'


def test_console_escapes_text_and_keeps_its_own_styles() -> None:
    for styled in (False, True):
        file = io.StringIO()
        console = output.PrintableConsole(
            file=file, width=200, force_terminal=styled, color_system="standard" if styled else None
        )
        console.print(HOSTILE, markup=False, highlight=False)
        console.print(Text(HOSTILE, style="red"))
        output.print_table(console, HOSTILE, ("name", "count"), [(HOSTILE, "1")])
        plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        assert all(line.isprintable() for line in plain.splitlines())
        assert plain.count("z €") == 4  # nothing is cut
        assert ("\x1b[31m" in file.getvalue()) == styled


def test_payload_is_one_line_on_a_terminal() -> None:
    assert terminal.printable_payload(b"1.0842\t\xe2\x82\xac") == "1.0842\t€".encode()
    assert terminal.printable_payload(b"\x1b[2J\n\xff") == b"\\x1b[2J\\n\\xff"


def test_commands_write_in_one_way() -> None:
    """Text of others reaches the terminal in one way only, which escapes it."""
    direct = [
        f"{path.name}: {line.strip()}"
        for path in COMMANDS.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\bclick\.s?echo\(|(?<![.\w])print\(|(?<![.\w])Console\(|sys\.std(out|err)\.write", line)
        and "INTERRUPTED_MESSAGE" not in line
    ]
    assert direct == ["terminal.py: click.echo(printable_lines(text), err=err)"]
