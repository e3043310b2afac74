"""Data sets with known truth without Spark, and the command that makes reports of many, which can be resumed."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import migratory_truth.__main__ as command
import pytest
from click.testing import CliRunner
from migratory_spark.report.build import as_plain
from migratory_testing.reports import batches, of_batches
from migratory_truth.data_sets import NOW, make_data_set
from migratory_truth.expected import differences


# A scrape between the links of a wave saw four of them (97); another broker lost a link at the time of a wave (77).
@pytest.mark.parametrize("number", [77, 97])
def test_a_wave_is_dated_and_named_as_far_as_scrapes_tell(number: int) -> None:
    data = make_data_set(number)
    samples = data.samples()
    report = of_batches(
        lambda: batches(samples), data.start / 1000, NOW / 1000, data.objectives, cluster=data.cluster, by=data.by
    )
    assert differences(data, as_plain(report)) == []


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    @contextmanager
    def no_session(*_: object, **__: object) -> Any:
        yield None

    def check(_session: object, data: Any, _folder: Path) -> list[str]:
        checked.append(data.number)
        if len(checked) == 3:
            raise KeyboardInterrupt
        return ["a count"] if data.number == 2 and len(checked) < 3 else []

    monkeypatch.setattr(command, "local_session", no_session)
    monkeypatch.setattr(command, "spark_home", lambda *_: None)
    monkeypatch.setattr(command, "find_java", lambda: None)
    monkeypatch.setattr(command, "check", check)
    file = tmp_path / "truth.json"
    arguments = ["--sets", "4", "--first", "1", "--json", str(file), "--resume"]
    assert CliRunner().invoke(command.main, arguments).exit_code == 1
    assert json.loads(file.read_text())["failed"] == [2]
    result = CliRunner().invoke(command.main, arguments)
    assert (result.exit_code, checked) == (0, [1, 2, 3, 2, 3, 4])
    assert "1 of 4 were right in an earlier run" in result.output
    assert [each["set"] for each in json.loads(file.read_text())["results"]] == [1, 2, 3, 4]
    assert CliRunner().invoke(command.main, ["--resume"]).exit_code == 2
