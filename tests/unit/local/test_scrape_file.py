"""The file of `migratory up --scrape`: it may appear, change and disappear; invalid content causes one warning.

Also Prometheus' configuration for this file, and options that `migratory up` refuses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_cli.commands.local import up
from migratory_local import LocalError
from migratory_local.metrics.prometheus import prometheus_process
from migratory_local.metrics.scrape_file import InvalidTargets, ScrapeFile, ScrapeTarget, parse_targets

BENCH = '[{"targets": ["127.0.0.1:7001", "127.0.0.1:7002"], "labels": {"job": "migratory-bench"}}]'


def test_targets_of_the_load_generator_are_parsed() -> None:
    labels = {"job": "migratory-bench"}
    assert parse_targets(BENCH) == [ScrapeTarget("127.0.0.1:7001", labels), ScrapeTarget("127.0.0.1:7002", labels)]
    assert parse_targets('[{"targets": ["[::1]:80"]}]') == [ScrapeTarget("[::1]:80", {"job": "scrape"})]
    assert parse_targets("[]") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("{}", "is not a list"),
        ('["127.0.0.1:1"]', r"\[0\] is not"),
        ('[{"targets": []}, {"labels": {}}]', r"\[1\] is not"),
        ('[{"targets": ["localhost"]}]', r"\[0\].targets: 'localhost' is not HOST:PORT"),
        ('[{"targets": ["http://h:1"]}]', "is not HOST:PORT"),
        ('[{"targets": ["h:65536"]}]', "is not HOST:PORT"),
        ('[{"targets": [7]}]', "7 is not HOST:PORT"),
        ('[{"targets": [], "labels": ["a"]}]', ".labels"),
        ('[{"targets": [], "labels": {"a": 1}}]', "'a': 1"),
        ('[{"targets": [], "labels": {"__scheme__": "https"}}]', "__scheme__"),
    ],
)
def test_invalid_content_is_an_error_with_the_value(text: str, problem: str) -> None:
    with pytest.raises(InvalidTargets, match=problem):
        parse_targets(text)


def test_file_may_appear_change_become_invalid_recover_and_disappear(tmp_path: Path) -> None:
    path, warnings = tmp_path / "targets.json", list[str]()
    file = ScrapeFile(path, warnings.append)
    assert not file.read()
    path.write_text("")
    assert [file.read(), file.read(), warnings] == [False, False, []], "empty until the load generator knows its ports"
    path.write_text(BENCH)
    assert file.read()
    assert not file.read()
    assert [target.address for target in file.targets] == ["127.0.0.1:7001", "127.0.0.1:7002"]

    path.write_text("[")
    assert not file.read()
    assert warnings == [], "the file may be incomplete"
    for _ in range(3):
        assert not file.read()
    assert len(warnings) == 1
    assert f"--scrape {path} is not JSON" in warnings[0]
    assert len(file.targets) == 2

    path.write_text('[{"targets": ["127.0.0.1:7003"]}]')
    assert file.read()
    assert [target.address for target in file.targets] == ["127.0.0.1:7003"]
    path.write_text("[")
    file.read()
    file.read()
    assert len(warnings) == 2, "a new problem causes a new warning"
    path.unlink()
    assert file.read()
    assert file.targets == []


def test_folder_instead_of_a_file_is_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "targets.json").mkdir()
    file = ScrapeFile(tmp_path / "targets.json", warnings.append)
    file.read()
    file.read()
    assert "cannot be read: Is a directory" in warnings[0]


def test_prometheus_is_configured_to_read_the_file(tmp_path: Path) -> None:
    prometheus_process(Path("/bin/true"), tmp_path, 1, [2], tmp_path, scrape=tmp_path / "targets.json")
    config = json.loads((tmp_path / "prometheus.yml").read_text())
    assert config["scrape_configs"][1] == {
        "job_name": "scrape",
        "file_sd_configs": [{"files": [str(tmp_path / "targets.json")], "refresh_interval": "2s"}],
    }


def test_file_name_without_json_suffix_is_an_error() -> None:
    with pytest.raises(LocalError, match=r"must end with \.json"):
        ScrapeFile(Path("targets.txt"), print)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--scrape", "targets.txt"], "must end with .json"),
        (["--scrape", "targets.json", "--metrics", "none"], "is not allowed with --metrics none"),
        (["--metrics", "prometheus"], "there is no prometheus on PATH"),
    ],
)
def test_up_rejects_wrong_options_before_it_starts_anything(
    options: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(up, ["-f", str(file), "--workdir", str(tmp_path / "work"), *options])
    assert result.exit_code == 2
    assert problem in result.output
    assert not (tmp_path / "work").exists()
