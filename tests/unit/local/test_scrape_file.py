"""The file of `migratory up --scrape`: it may come later, change and go; bad content is said once, changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from migratory_cli.local import up
from migratory_local.errors import LocalError
from migratory_local.prometheus import prometheus_process
from migratory_local.scrape_file import BadTargets, ScrapeFile, Target, parse_targets

BENCH = '[{"targets": ["127.0.0.1:7001", "127.0.0.1:7002"], "labels": {"job": "migratory-bench"}}]'


def test_what_the_bench_writes() -> None:
    labels = {"job": "migratory-bench"}
    assert parse_targets(BENCH) == [Target("127.0.0.1:7001", labels), Target("127.0.0.1:7002", labels)]
    assert parse_targets('[{"targets": ["[::1]:80"]}]') == [Target("[::1]:80", {"job": "scrape"})]
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
def test_bad_content_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadTargets, match=problem):
        parse_targets(text)


def test_it_appears_changes_goes_bad_recovers_and_goes(tmp_path: Path) -> None:
    path, said = tmp_path / "targets.json", list[str]()
    file = ScrapeFile(path, said.append)
    assert not file.look()
    path.write_text("")
    assert [file.look(), file.look(), said] == [False, False, []], "empty until the bench knows its ports"
    path.write_text(BENCH)
    assert file.look()
    assert not file.look()
    assert [target.address for target in file.targets] == ["127.0.0.1:7001", "127.0.0.1:7002"]

    path.write_text("[")
    assert not file.look()
    assert said == [], "its writer may be in the middle of it"
    for _ in range(3):
        assert not file.look()
    assert len(said) == 1
    assert f"--scrape {path} is not JSON" in said[0]
    assert len(file.targets) == 2

    path.write_text('[{"targets": ["127.0.0.1:7003"]}]')
    assert file.look()
    assert [target.address for target in file.targets] == ["127.0.0.1:7003"]
    path.write_text("[")
    file.look()
    file.look()
    assert len(said) == 2, "bad again is said again"
    path.unlink()
    assert file.look()
    assert file.targets == []


def test_a_folder_in_its_place_is_a_warning(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "targets.json").mkdir()
    file = ScrapeFile(tmp_path / "targets.json", said.append)
    file.look()
    file.look()
    assert "cannot be read: Is a directory" in said[0]


def test_prometheus_follows_it_by_itself(tmp_path: Path) -> None:
    prometheus_process(Path("/bin/true"), tmp_path, 1, [2], tmp_path, scrape=tmp_path / "targets.json")
    config = json.loads((tmp_path / "prometheus.yml").read_text())
    assert config["scrape_configs"][1] == {
        "job_name": "scrape",
        "file_sd_configs": [{"files": [str(tmp_path / "targets.json")], "refresh_interval": "2s"}],
    }


def test_a_name_that_prometheus_would_not_read_is_refused() -> None:
    with pytest.raises(LocalError, match=r"must end with \.json"):
        ScrapeFile(Path("targets.txt"), print)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--scrape", "targets.txt"], "must end with .json"),
        (["--scrape", "targets.json", "--metrics", "none"], "not with --metrics none"),
        (["--metrics", "prometheus"], "no prometheus on PATH"),
    ],
)
def test_up_refuses_before_it_starts_anything(
    more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(up, ["-f", str(file), "--workdir", str(tmp_path / "work"), *more])
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "work").exists()
