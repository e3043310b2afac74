"""A report that is made in a pod: the request for it, its requests to the API server, and its result with the limits
of its size."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migratory_resources.report.status import ReportOutcome
from migratory_spark.document import SlaReport
from migratory_spark.jobs.command_line import BadInput, SamplesUnreadable
from migratory_spark.pod import driver, request, result
from migratory_spark.prometheus.errors import NoSamplesFound
from migratory_testing.reports import empty_report, sample_report

ASKED = {
    "run": "sla-7",
    "namespace": "market",
    "config_map": "sla-7",
    "cluster": "quotes",
    "prometheus": "http://127.0.0.1:1",
    "start": "2026-01-02T03:00:00Z",
    "end": "2026-01-02T03:30:00Z",
    "zone": "UTC",
    "history": None,
    "objectives": [{"name": "fast", "type": "latency", "threshold": "250ms", "target": "99.9"}],
}


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(ASKED))
    return path


def page(report: SlaReport) -> str:
    """Return 40 kB of text that hardly compresses, in place of a report's page, which would take seconds to draw."""
    return random.Random(report.cluster).randbytes(20_000).hex()


def unpacked(data: str) -> bytes:
    return gzip.decompress(base64.b64decode(data))


def account(answer: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(answer["data"][result.ACCOUNT])
    return content


@pytest.mark.parametrize("report", [sample_report(), sample_report(lost=3), empty_report()])
def test_the_account_fits_the_status_and_the_files_are_complete(report: SlaReport) -> None:
    answer = result.success("sla-7", report, page)
    content = account(answer)
    assert (content.pop("run"), content.pop("files")) == ("sla-7", [result.PAGE, result.REPORT])
    outcome = ReportOutcome.model_validate(content)
    assert outcome.verdict == report.verdict
    assert outcome.delivery.lost == report.delivery.lost
    assert [objective.good for objective in outcome.objectives] == [objective.good for objective in report.objectives]
    assert outcome.latency[0].broker == ""
    assert outcome.latency[0].count == report.latency_ms.all.count
    assert msgspec.json.decode(unpacked(answer["binaryData"][result.REPORT]), type=SlaReport) == report
    assert unpacked(answer["binaryData"][result.PAGE]).decode() == page(report)
    # an object's bound, as the API server counts it
    assert len(json.dumps(answer)) < 2**20


def test_large_results_are_shortened_in_steps() -> None:
    report = sample_report()
    sizes = {name: len(data) for name, data in result.success("r", report, page)["binaryData"].items()}
    both = sum(sizes.values())
    assert len(result.success("r", report, page, both)["binaryData"]) == 2
    without = result.success("r", report, page, both - 1)
    assert list(without["binaryData"]) == [result.REPORT]
    assert account(without)["files"] == [result.REPORT]
    assert account(without)["notes"][-1] == "the page was too large to be stored"
    short = result.success("r", report, page, sizes[result.REPORT] - 1)
    stored = msgspec.json.decode(unpacked(short["binaryData"][result.REPORT]), type=SlaReport)
    assert stored.latency_ms.by_window == stored.windows == []
    assert stored.delivery == report.delivery
    assert "lists over time" in account(short)["notes"][-1]
    nothing = result.success("r", report, page, 100)
    assert nothing["binaryData"] == {}
    assert account(nothing)["verdict"] == report.verdict
    assert "only this account is left" in account(nothing)["notes"][-1]


def test_shares_below_one_are_rounded_down() -> None:
    report = sample_report()
    (first, *others) = report.objectives
    almost = msgspec.structs.replace(first, compliance=0.99999999)
    content = account(result.success("r", msgspec.structs.replace(report, objectives=[almost, *others]), page))
    assert content["objectives"][0]["compliance"] == "99.9999"


def test_lists_are_bounded() -> None:
    report = sample_report()
    many = msgspec.structs.replace(report, incidents=report.incidents * 50, notes=["x" * 5000] * 50)
    content = account(result.success("r", many, page))
    assert (len(content["gaps"]), len(content["notes"]), len(content["notes"][0])) == (20, 10, 1000)


def test_a_failure_has_its_reason_and_a_bounded_text() -> None:
    content = account(result.failure("sla-7", "InvalidInput", "x" * 5000))
    assert content["run"] == "sla-7"
    assert (content["failure"]["reason"], len(content["failure"]["message"])) == ("InvalidInput", 1000)


def test_the_request_is_read_with_its_objectives(asked: Path) -> None:
    parsed = request.read(asked)
    question = request.report_options(parsed, [("tokenFile", "/t")])
    assert (question.end - question.start, question.cluster, question.history) == (1800.0, "quotes", None)
    assert [objective.name for objective in request.objectives(parsed)] == ["fast"]
    wrong = msgspec.structs.replace(parsed, objectives=[{"name": "fast"}])
    with pytest.raises(BadInput, match="objectives"):
        request.objectives(wrong)


def test_files_of_the_secret_are_options_of_the_data_source(tmp_path: Path) -> None:
    assert request.prometheus_settings(tmp_path / "none") == []
    folder = tmp_path / "secret"
    folder.mkdir()
    with pytest.raises(BadInput, match="none of the keys"):
        request.prometheus_settings(folder)
    for name, content in (("username", "scraper\n"), ("password", "p"), ("ca.crt", "c")):
        (folder / name).write_text(content)
    assert dict(request.prometheus_settings(folder)) == {
        "user": "scraper", "passwordFile": str(folder / "password"), "caFile": str(folder / "ca.crt")
    }  # fmt: skip


@dataclass
class Api:
    """A fake API server that answers with these status codes in order, and repeats the last one."""

    codes: list[int]
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api([200])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked.append((self.path, self.headers["Authorization"], body))
            code = made.codes.pop(0) if len(made.codes) > 1 else made.codes[0]
            self.send_response(code)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing, so that the test's output has no line for each request."""

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield made
    listener.shutdown()
    thread.join(10)
    listener.server_close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_text("")
    return tmp_path


def test_the_result_is_patched_into_the_config_map_with_retries(api: Api, own: Path) -> None:
    api.codes = [503, 429, 200]
    driver.patch_config_map("market", "sla-7", {"data": {"a": "b"}}, own, api.url)
    path = "/api/v1/namespaces/market/configmaps/sla-7"
    assert api.asked == [(path, "Bearer secret", {"data": {"a": "b"}})] * 3


def test_a_rejected_patch_is_not_retried(api: Api, own: Path) -> None:
    api.codes = [403]
    with pytest.raises(driver.ResultRejected, match="sla-7: 403"):
        driver.patch_config_map("market", "sla-7", {}, own, api.url)
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (BadInput("wrong"), "InvalidInput"),
        (SamplesUnreadable("silent"), "SamplesUnreadable"),
        (RuntimeError("broken"), "InternalError"),
        (None, "met"),
    ],
)
def test_every_outcome_is_stored_in_the_config_map(
    raised: Exception | None, reason: str, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched: list[Any] = []

    def answer(*_: object) -> SlaReport:
        if raised is not None:
            raise raised
        return sample_report()

    monkeypatch.setattr(driver, "make_report", answer)
    monkeypatch.setattr("migratory_spark.render.page.render_page", page)
    monkeypatch.setattr(driver, "patch_config_map", lambda *given: patched.append(given))
    assert driver.main(asked) == 0
    ((namespace, name, data),) = patched
    assert (namespace, name) == ("market", "sla-7")
    content = account(data)
    assert content.get("verdict") == reason or content["failure"]["reason"] == reason


@pytest.mark.parametrize(("after_end", "seconds"), [(-100.0, 15.0), (3.0, 12.0), (15.0, 0.0), (1000.0, 0.0)])
def test_a_pod_waits_until_its_report_is_final(
    after_end: float, seconds: float, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    end = request.read(asked).end.timestamp()
    monkeypatch.setattr(time, "time", lambda: end + after_end)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(driver, "make_report", lambda *_: sample_report())
    monkeypatch.setattr("migratory_spark.render.page.render_page", page)
    monkeypatch.setattr(driver, "patch_config_map", lambda *_: None)
    assert driver.main(asked) == 0
    assert slept == [pytest.approx(seconds)]


def test_unwritable_history_is_reported_as_invalid_input(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    asked.write_text(json.dumps({**ASKED, "history": str(tmp_path)}))
    patched: list[Any] = []
    monkeypatch.setattr(driver, "make_report", lambda *_: sample_report())
    monkeypatch.setattr("migratory_spark.report.history.append", full)
    monkeypatch.setattr(driver, "patch_config_map", lambda *given: patched.append(given))
    assert driver.main(asked) == 0
    failure = account(patched[0][2])["failure"]
    assert failure["reason"] == "InvalidInput"
    assert "No space left" in failure["message"]


def test_a_rejected_result_is_a_failure(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise driver.ResultRejected("no")

    monkeypatch.setattr(driver, "make_report", lambda *_: sample_report())
    monkeypatch.setattr("migratory_spark.render.page.render_page", page)
    monkeypatch.setattr(driver, "patch_config_map", refuse)
    assert driver.main(asked) == 70


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_a_request_that_cannot_be_read_is_no_verdict(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "request.json"
    if content is not None:
        path.write_bytes(content)
    command = [sys.executable, "-m", "migratory_spark.pod.driver", str(path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 70
    assert "Traceback" in ended.stderr


ANSWER = "root:x:0:0 of HTTP 777"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SamplesUnreadable(f"--prometheus: http://p: answers HTTP 500: {ANSWER}"), " (HTTP 500)"),
        (SamplesUnreadable(f"http://p: refuses access (HTTP 401): {ANSWER}"), " (refuses access, HTTP 401)"),
        (SamplesUnreadable(f"http://p: redirects to {ANSWER}: is that right?"), " (redirects)"),
        (SamplesUnreadable(f"http://p: cannot be reached (4 tries): {ANSWER}"), " (cannot be reached)"),
        (SamplesUnreadable(ANSWER), ""),
    ],
)
def test_what_prometheus_answers_stays_in_the_pods_log(
    raised: Exception, expected: str, asked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failure_of(raised, asked, monkeypatch) == (
        f"the samples could not be read{expected}; the log of the driver's pod says more"
    )
    assert ANSWER in capsys.readouterr().err


def failure_of(raised: Exception, asked: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a pod whose report fails with the error, and return the message of its result."""
    patched: list[Any] = []

    def fail(*_: object) -> SlaReport:
        raise raised

    monkeypatch.setattr(driver, "make_report", fail)
    monkeypatch.setattr(driver, "patch_config_map", lambda *given: patched.append(given))
    assert driver.main(asked) == 0
    message: str = account(patched[0][2])["failure"]["message"]
    return message


def test_names_that_prometheus_has_and_text_of_unexpected_errors_stay_in_the_log(
    asked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_samples = BadInput(f"--prometheus: no samples; did you mean {ANSWER}?")
    no_samples.__cause__ = NoSamplesFound("no")
    for raised in (no_samples, RuntimeError(ANSWER)):
        assert ANSWER not in failure_of(raised, asked, monkeypatch)
        assert ANSWER in capsys.readouterr().err
    assert failure_of(BadInput("objectives: wrong"), asked, monkeypatch) == "objectives: wrong"
