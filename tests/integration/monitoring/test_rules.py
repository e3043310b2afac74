"""The rule file equals the output of its generator, promtool accepts it, and its alerts fire when they should
(rules_test.yaml). Also the rules of a cluster's own objectives, and the dashboard's queries."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from migratory_cli.commands.sla import sla
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.alerting.__main__ import files
from migratory_spark.alerting.rules import rule_file
from migratory_testing.reports import EVERY_KIND

pytestmark = pytest.mark.real
MONITORING = Path(__file__).parents[3] / "manifests" / "monitoring"


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    executable = shutil.which("promtool")
    if executable is None:
        pytest.skip("no promtool on PATH: install Debian's prometheus (make debian)")
    return subprocess.run([executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", ["rules.yaml", "dashboard.json"])
def test_the_published_files_match_the_generator(name: str) -> None:
    made = files()[name]
    assert (MONITORING / name).read_text() == made, (
        f"manifests/monitoring/{name} is not up to date: python -m migratory_spark.alerting manifests/monitoring"
    )


def test_the_command_prints_the_rules_of_a_cluster_file(tmp_path: Path) -> None:
    plain = CliRunner().invoke(sla, ["rules"])
    assert plain.exit_code == 0
    assert (MONITORING / "rules.yaml").read_text().endswith(plain.output)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: q}\n"
        "spec:\n  sla:\n    objectives:\n"
        '      - {name: quick, type: latency, threshold: 70ms, target: "99"}\n'
    )
    own = CliRunner().invoke(sla, ["rules", "--objectives", str(cluster)])
    assert own.exit_code == 0
    assert 'le="0.07"' in own.output
    assert "objective: fast" not in own.output
    wrapped = yaml.safe_load(CliRunner().invoke(sla, ["rules", "--prometheus-rule", "own"]).output)
    assert (wrapped["kind"], wrapped["metadata"]) == ("PrometheusRule", {"name": "own"})
    assert wrapped["spec"] == yaml.safe_load(plain.output)
    cluster.write_text("kind: Nonsense\n")
    wrong = CliRunner().invoke(sla, ["rules", "--objectives", str(cluster)])
    assert wrong.exit_code == 2
    assert "Nonsense" in wrong.output


def test_rules_of_every_kind_of_objective_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rule_file(EVERY_KIND))
    done = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("rules_test.yaml"), tmp_path)
    shutil.copy(MONITORING / "rules.yaml", tmp_path)
    done = promtool("test", "rules", "rules_test.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('burn_rate_5m{objective="fast"} > 14.4', 'burn_rate_5m{objective="fast"} > 25'),
        (' and migratory_slo:events_1h{objective="fast"} >= 1000', ""),
        ('phase="live",le="0.25"', 'phase="live",le="0.3"'),
        ('{clock="same",phase="live"}[5m])) > 0)', '{clock="same",phase="live"}[5m])))'),
    ],
)
def test_promtool_finds_a_wrong_rule(tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copy(Path(__file__).with_name("rules_test.yaml"), tmp_path)
    text = (MONITORING / "rules.yaml").read_text()
    assert right in text
    (tmp_path / "rules.yaml").write_text(text.replace(right, wrong))
    assert promtool("test", "rules", "rules_test.yaml", folder=tmp_path).returncode == 1


def test_objectives_use_their_clocks_and_slices() -> None:
    rules = [rule for group in yaml.safe_load(rule_file(EVERY_KIND))["groups"] for rule in group["rules"]]

    def recorded(record: str, objective: str) -> str:
        names: list[str] = [
            rule["expr"]
            for rule in rules
            if rule.get("record") == record and rule.get("labels", {}).get("objective") == objective
        ]
        assert len(names) == 1
        return names[0]

    assert 'clock=~"same|estimated",phase="live"' in recorded("migratory_slo:bad_ratio_5m", "far")
    assert 'clock="same",phase="live"' in recorded("migratory_slo:bad_ratio_5m", "fast")
    assert recorded("migratory_slo:bad_ratio_1h", "serving").startswith(
        'avg_over_time((migratory_slo:slice_good_ratio{objective="serving"} < bool 0.995)[1h:10s]'
    )
    assert "> bool 0.25" in recorded("migratory_slo:bad_ratio_1h", "steady")


def test_two_objectives_with_one_name_are_rejected() -> None:
    with pytest.raises(ValueError, match="fast"):
        rule_file([*DEFAULT_OBJECTIVES, DEFAULT_OBJECTIVES[0]])


def test_the_dashboard_selects_a_cluster_and_every_panel_has_a_query() -> None:
    made = json.loads((MONITORING / "dashboard.json").read_text())
    assert {variable["name"] for variable in made["templating"]["list"]} == {"source", "cluster"}
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert len(panels) >= 30
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    for panel in panels:
        assert panel["description"]
        assert panel["targets"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
