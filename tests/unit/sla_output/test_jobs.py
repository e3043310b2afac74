"""The parts of the jobs that need no Spark: options, errors of the command line, files and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from migratory_cli.commands.sla import sla
from migratory_spark.jobs import outputs
from migratory_spark.jobs.command_line import BadInput, ExitOnError, MomentParam, SamplesUnreadable
from migratory_spark.jobs.inputs import PrometheusServers, RecorderFolder
from migratory_spark.jobs.recorder_compact import run_compact
from migratory_spark.jobs.sla_compare import main as compare_job
from migratory_spark.jobs.sla_report import ReportOptions, load_objectives, make_report, run_report
from migratory_spark.jobs.spark_errors import error_sentence
from migratory_spark.prometheus.options import parse_options
from migratory_spark.read import samples
from migratory_spark.render.page import render_page
from migratory_spark.render.tables import show
from migratory_spark.report import build
from migratory_spark.report.build import as_plain
from migratory_testing.fakeprometheus import JSON, FakePrometheus, Reply
from migratory_testing.reports import empty_report, sample_report
from pyspark.errors import PySparkException
from rich.console import Console

WINDOW = ["--start", "1000", "--end", "2000"]


def no_session() -> AbstractContextManager[Any]:
    raise AssertionError("Spark was started")


def question(**changes: Any) -> ReportOptions:
    values: dict[str, Any] = {
        "samples": None, "prometheus": None, "settings": (), "start": 1000.0, "end": 2000.0, "objectives": None,
        "cluster": None, "window": None, "zone": "UTC", "replica_labels": (), "json_file": None, "html_file": None,
        "history": None,
    }  # fmt: skip
    return ReportOptions(**(values | changes))


def test_wrong_options_are_reported_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    there = tmp_path / "there"
    there.mkdir()
    (there / "samples-0.parquet").write_bytes(b"")
    for changes, message in (
        ({}, "either --samples DIR or --prometheus URL"),
        ({"samples": there, "prometheus": "http://127.0.0.1:9"}, "either"),
        ({"samples": tmp_path / "none"}, "does not exist"),
        ({"samples": file}, "is a file"),
        ({"samples": there, "start": 3000.0}, "--end must be after"),
        ({"samples": there, "start": 1999.9999}, "--end must be after.*a millisecond"),
        ({"samples": there, "zone": "Europe/Atlantis"}, "Atlantis"),
        ({"samples": there, "settings": [("token", "x")]}, "needs --prometheus"),
        ({"samples": there, "json_file": tmp_path / "no" / "report.json"}, "--json.*No such file"),
        ({"samples": there, "html_file": there}, "--html.*directory"),
        ({"samples": there, "html_file": tmp_path / "x", "json_file": there / ".." / "x"}, "same file"),
        ({"samples": there, "history": file / "history"}, "--history.*is not a writable folder"),
        ({"prometheus": "ftp://x"}, "--prometheus.*ftp"),
        ({"prometheus": "http://127.0.0.1:9", "settings": [("matchers", "x")]}, "matchers is set by the report"),
        ({"prometheus": "http://127.0.0.1:9", "settings": [("MATCHERS", "x")]}, "matchers is set by the report"),
        (
            {"prometheus": "http://127.0.0.1:9", "settings": [("droplabels", "r")]},
            "dropLabels is set by.*--replica-label",
        ),
        ({"prometheus": "http://127.0.0.1:9", "settings": [("tokn", "x")]}, "tokn"),
    ):
        with pytest.raises(BadInput, match=message):
            run_report(question(**changes), no_session)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 0.0, "end": 1.7e9, "window": 1.0}, "19,675 intervals are more than 4,999: ask for longer rows or a"),
        ({"start": 0.0, "end": 3e8, "window": 1.0}, "300,000,000 intervals are more than 4,999: ask for longer rows"),
        ({"start": 0.0, "end": 2.5e11}, "2,893,518 intervals are more than 4,999: ask for longer rows or a shorter"),
        (
            {"start": 0.0, "end": 4e8, "samples": None, "prometheus": "http://127.0.0.1:9"},
            "--prometheus: the window is cut into 55,556 partitions of 2h, more than 20,000: shorten the window, or",
        ),
    ],
)
def test_a_window_that_is_too_long_is_refused_from_its_count(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Rows of a second in years, and a window from 1970, are refused before anything is read, in constant memory."""
    (tmp_path / "samples-0.parquet").write_bytes(b"")
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as caught:
            run_report(question(samples=tmp_path, **changes) if "samples" not in changes else question(**changes),
                       no_session)  # fmt: skip
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.message.startswith(message)


def test_an_empty_folder_is_reported_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no \*.parquet files"):
        run_report(question(samples=tmp_path), no_session)


def test_a_server_that_does_not_answer_has_its_own_exit_code() -> None:
    with pytest.raises(SamplesUnreadable, match=r"127\.0\.0\.1:9"):
        run_report(question(prometheus="http://127.0.0.1:9", settings=[("retries", "0")]), no_session)


def test_objectives_that_are_wrong_are_named(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("kind: Nonsense\n")
    with pytest.raises(BadInput, match=r"(?s)--objectives.*Nonsense"):
        run_report(question(samples=tmp_path, objectives=file), no_session)


@pytest.mark.parametrize("cluster", [None, "quotes", 'odd"}\\name'])
def test_servers_are_asked_for_what_a_report_reads(cluster: str | None) -> None:
    options = parse_options(
        PrometheusServers("http://a:9090,http://b:9090", cluster, 123_456, 200_000, {"timeout": "5s"}).options
    )
    assert options.urls == ("http://a:9090", "http://b:9090")
    # The source leaves the end out, the report counts what was scraped exactly then.
    assert (options.start_ms, options.end_ms) == (123_456, 200_001)
    assert options.by_source
    assert options.access.timeout == 5
    named = [matcher for selector in options.selectors for matcher in selector if matcher.label == "cluster"]
    assert [matcher.value for matcher in named] == ([] if cluster is None else [cluster])
    assert not parse_options(PrometheusServers("http://a:9090", None, 0, 1, {}).options).by_source


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1000.5", 1000.5),
        ("2026-11-27T10:00:00Z", 1795773600.0),
        ("2026-11-27T10:00:00", 1795773600.0),
        ("2026-11-27T12:00:00+02:00", 1795773600.0),
    ],
)
def test_moment_is_parsed_from_every_form(text: str, seconds: float) -> None:
    assert MomentParam().convert(text, None, None) == seconds


@pytest.mark.parametrize(("text", "ago"), [("now", 0.0), ("-5m", 300.0), ("-1h30m", 5400.0), ("-500ms", 0.5)])
def test_moment_before_now_is_parsed_from_a_duration(text: str, ago: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert MomentParam().convert(text, None, None) == 10_000.0 - ago


def test_command_accepts_a_moment_before_now_as_start(tmp_path: Path) -> None:
    """`-5m` is accepted as a start time and not taken as an option. The end is the current time unless it is given."""
    command = ["report", "--samples", str(tmp_path / "none"), "--start", "-5m"]
    result = CliRunner().invoke(sla, command)
    assert result.exit_code == 2
    assert "none does not exist; where a Prometheus keeps the metrics" in result.output
    assert "--prometheus URL" in result.output
    result = CliRunner().invoke(sla, [*command, "--end", "-10m"])
    assert "--end must be after --start" in result.output


def test_help_names_the_objectives_that_are_judged_by_default() -> None:
    shown = " ".join(CliRunner().invoke(sla, ["report", "--help"]).output.split())
    assert "By default: latency within 250ms 99.9%, delivery 100%, resume within 5s 99%." in shown


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "-5",
        "-",
        "-5x",
        "-m",
        "now-5m",
        "-60000d",
        "nan",
        "inf",
        "-1",
        "1e15",
        "",
        "0001-01-01",
        "1969-12-31",
        "9999-12-31T23:00:00Z",
    ],
)
def test_invalid_moments_are_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        MomentParam().convert(text, None, None)


def test_crash_exits_with_a_code_that_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, ExitOnError():
        raise ZeroDivisionError("a fault of this software")
    assert ended.value.code == 70
    assert "a fault of this software" in capsys.readouterr().err
    for error in (BadInput("x"), SystemExit(1)):
        with pytest.raises(type(error)), ExitOnError():
            raise error


def test_interruption_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted command exits with 130 and prints "Interrupted"; click alone would exit with 1, which means
    "missed"."""
    for error in (KeyboardInterrupt(), click.Abort()):
        with pytest.raises(SystemExit) as ended, ExitOnError():
            raise error
        assert ended.value.code == 130
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[NO_SUCH] a table is not there\n\tat org.apache.X(Y.scala)\n\tat Z", "[NO_SUCH] a table is not there"),
        (
            "Job aborted: Task 0\nLost task\nand more\nTraceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n    process()\n    name: int = 3\n'
            "a.b.BadSamples: /x/y.parquet is none\n\n\tat org.apache.X\nCaused by: z",
            "/x/y.parquet is none",
        ),
        (
            "An error occurred\n: org.X: not made\n\tat a\nCaused by: B\n\tat b\nCaused by: io.K: it timed out\n\tat c",
            "An error occurred : org.X: not made Caused by: io.K: it timed out",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py"\npyarrow.lib.ArrowInvalid: footer\n\nThe above error '
            'was the direct cause:\n\nTraceback (most recent call last):\n  File "b.py"\n'
            "migratory_spark.errors.BadSamples: /x/y.parquet is no\x9f \x1b[31m file\nJVM stacktrace:\norg.X: no",
            "/x/y.parquet is no [31m file",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            "Java does not start; install Java 17 or newer, or let JAVA_HOME name one",
        ),
        ("", "no reason given"),
    ],
)
def test_spark_errors_are_shortened_to_a_line(text: str, line: str) -> None:
    assert error_sentence(text) == line


@pytest.mark.parametrize(
    ("end", "settings", "seconds"),
    [
        (1_000_000.0, [], 15),
        (999_990.0, [], 5),
        (999_985.0, [], 0),
        (999_985.0, [("delay", "60s")], 45),
        (999_940.0, [("delay", "60s")], 0),
    ],
)
def test_a_report_up_to_now_is_provisional(
    end: float, settings: list[tuple[str, str]], seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report whose window ended less than `delay` ago by the server's clock says that it may change, and when
    it does not any more."""
    monkeypatch.setattr(time, "time", lambda: 1_000_007.0)
    monkeypatch.setattr(PrometheusServers, "check", lambda _: None)
    monkeypatch.setattr(PrometheusServers, "samples", lambda *_: None)
    monkeypatch.setattr(build, "build_report", lambda *_, **__: empty_report())
    clock = Reply(b'{"status":"success","data":{"resultType":"scalar","result":[1000000,"1000000"]}}', kind=JSON)
    with FakePrometheus(lambda _: clock) as server:
        options = question(prometheus=server.url, settings=settings, start=end - 60, end=end)
        report = make_report(options, load_objectives(None), lambda: nullcontext(None))  # type: ignore[arg-type]
    assert report.window.provisional == (seconds > 0)
    provisional = [note for note in report.notes if note.startswith("provisional")]
    assert [f"the last {seconds} s of the window" in note for note in provisional] == [True] * (seconds > 0)
    shown = Console(file=io.StringIO(), width=200)
    show(as_plain(report), shown)
    assert isinstance(shown.file, io.StringIO)
    assert ("(provisional)" in shown.file.getvalue()) == (seconds > 0)
    assert ("(provisional)" in render_page(report)) == (seconds > 0)


class ErrorOfSession(PySparkException):
    """An error whose text comes from Spark's JVM, and cannot be had once the session has ended."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.session_ended = False

    def __str__(self) -> str:
        assert not self.session_ended
        return self.text


def test_a_read_that_fails_on_an_executor_names_the_file_after_the_session_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of an executor becomes one sentence while the session lives: the exit code is 4 and not 70. The same
    holds for `sla compact`, and for a session that does not start."""
    error = ErrorOfSession(
        "Traceback (most recent call last):\nmigratory_spark.errors.BadSamples: /x/y.parquet is cut off\n"
    )

    @contextmanager
    def session() -> Iterator[Any]:
        try:
            yield None
        finally:
            error.session_ended = True

    def fail(*_: object, **__: object) -> None:
        raise error

    def no_java() -> AbstractContextManager[Any]:
        raise ErrorOfSession("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    (tmp_path / "samples-0.parquet").write_bytes(b"")
    monkeypatch.setattr(build, "build_report", fail)
    monkeypatch.setattr(samples, "parquet_source", lambda *_: None)
    monkeypatch.setattr(RecorderFolder, "read", fail)
    runs: list[Callable[[], int]] = [
        partial(run_report, question(samples=tmp_path), session),
        partial(run_compact, tmp_path, tmp_path.parent / "compact", session),
    ]
    for run in runs:
        error.session_ended = False
        with pytest.raises(SamplesUnreadable) as caught:
            run()
        assert caught.value.message == "Spark could not read the samples: /x/y.parquet is cut off"
    with pytest.raises(SamplesUnreadable, match="Java does not start; install Java 17"):
        run_report(question(samples=tmp_path), no_java)


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outputs.check_file("--json", path)
    assert not path.exists()
    outputs.write("--json", path, "one")
    outputs.write("--json", path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["report.json"]
    outputs.check_file("--json", path)
    assert path.read_text() == "two"
    with pytest.raises(BadInput, match="--json"):
        outputs.write("--json", tmp_path / "none" / "report.json", "x")
    outputs.write("--json", Path("/dev/null"), "x")
    assert not Path("/dev/null").is_file()


@pytest.fixture
def reports(tmp_path: Path) -> tuple[str, str]:
    for name, report in (("good", sample_report()), ("bad", sample_report(lost=3)), ("none", empty_report())):
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(report))
    return str(tmp_path / "good.json"), str(tmp_path / "bad.json")


def test_compare_runs_as_a_command_and_as_a_job(reports: tuple[str, str], tmp_path: Path) -> None:
    good, bad = reports
    target, page = tmp_path / "comparison.json", tmp_path / "comparison.html"
    for command, before in ((sla, ["compare"]), (compare_job, [])):
        assert CliRunner().invoke(command, [*before, good, good]).exit_code == 0
        worse = CliRunner().invoke(command, [*before, good, bad, "--json", str(target), "--html", str(page)])
        assert worse.exit_code == 1
        assert "the second is worse" in worse.output
        # Nothing is cut where there is no terminal.
        assert "publish gap, s" in worse.output
        assert max(map(len, worse.output.splitlines())) > 120
        assert json.loads(target.read_text())["verdict"] == "worse"
        assert "The second is worse" in page.read_text()
        page.unlink()
        # A result never takes the place of what it is made of.
        for options in (["--html", good], ["--json", bad], ["--json", str(page), "--html", str(page)]):
            assert CliRunner().invoke(command, [*before, good, bad, *options]).exit_code == 2
        none = CliRunner().invoke(command, [*before, good, str(tmp_path / "none.json")])
        assert none.exit_code == 3
        assert "not known" in none.output
        assert CliRunner().invoke(command, [*before, bad, good]).exit_code == 0
        odd = CliRunner().invoke(command, [*before, good, __file__])
        assert odd.exit_code == 2
        assert __file__ in odd.output


def test_a_piped_table_is_not_cut_at_eighty_columns(reports: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "migratory_cli.main", "sla", "compare", *reports],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "…" not in done.stdout
    assert "latency b1, ms" in done.stdout


def test_wrong_options_exit_with_two() -> None:
    for arguments in (
        ["report", *WINDOW],
        ["report", "--samples", "/nowhere", *WINDOW],
        ["report", "--samples", "/nowhere", "--start", "soon", "--end", "5"],
        ["report", "--prometheus", "http://x", "--prometheus-option", "nonsense", *WINDOW],
        ["report", "--prometheus", "http://x", "--window", "nan", *WINDOW],
        ["report", "--prometheus", "http://x", "--window", "inf", *WINDOW],
        ["compact", "--samples", "/nowhere", "--to", "/nowhere2"],
        ["compare", "/nowhere", "/nowhere"],
    ):
        done = CliRunner().invoke(sla, arguments)
        assert done.exit_code == 2, (arguments, done.output)
