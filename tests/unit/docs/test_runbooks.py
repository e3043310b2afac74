"""docs/operations: every alert and every reason of the operator has a runbook of three parts, or a row that says
that nothing needs to be done; every runbook is about one of them; and tried.md names the test of each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "operations"
RULES = yaml.safe_load((ROOT / "manifests" / "monitoring" / "rules.yaml").read_text("utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
PARTS = ["Means", "Look", "Do"]
OPERATOR = ROOT / "operator" / "migratory_operator"
DRIVER = ROOT / "spark" / "migratory_spark" / "pod" / "driver.py"
OF_THE_KUBELET = {"ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError"}
"""Reasons of pods that Kubernetes gives and the operator passes on, and that the operator's code does not name."""
NO_REASONS = {
    # kinds
    "ClusterIP", "ConfigMap", "CustomResourceDefinition", "MigratoryCluster", "NetworkPolicy", "PersistentVolumeClaim",
    "PodDisruptionBudget", "RoleBinding", "ServiceAccount", "ServiceMonitor", "StatefulSet", "SLAReport",
    # types of conditions
    "CoordinationAvailable", "DisruptionTarget", "PodScheduled", "SLAMet",
    # values of fields
    "ContainerCreating", "FallbackToLogsOnError", "IfNotPresent", "LoadBalancer", "NodePort", "OnDelete",
    "OnRootMismatch", "PodInitializing", "ReadWriteOnce", "RuntimeDefault", "ScheduleAnyway",
    # of Kubernetes, and other words here
    "ErrImagePull", "InvalidImageName", "Evicted", "ControllerResizeError", "NodeResizeError",
}  # fmt: skip
OF_ONE_WORD = {
    "Accepted", "Coordinated", "Creating", "Paused", "Ready", "Restored", "Running", "Scaling", "Settled", "Starting",
    "Submitting", "Unschedulable", "Updating",
}  # fmt: skip
"""Reasons of the operator that consist of one word, as many other texts do. A test asserts that the code still has
each one."""


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading of a page of the operations guide, by heading."""
    parts = re.split(r"^##+ (.+)$", (PAGES / page).read_text("utf-8"), flags=re.M)
    assert len(parts) > 1, page
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parts(text: str) -> list[str]:
    return re.findall(r"^\*\*(\w+)\.\*\*", text, re.M)


def words() -> set[str]:
    """Return all text constants in the code of the operator and of the Spark driver."""
    names = set()
    for path in (*OPERATOR.rglob("*.py"), DRIVER):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
    return names


def reasons() -> set[str]:
    humps = {word for word in words() if re.fullmatch(r"SLA[A-Z][a-z]+|(?:[A-Z]+[a-z]+){2,}", word)}
    assert words() >= NO_REASONS, NO_REASONS - words()
    assert words() >= OF_ONE_WORD, OF_ONE_WORD - words()
    return humps - NO_REASONS | OF_ONE_WORD


def documented(page: str) -> set[str]:
    """Return the names on a page that have a section of three parts, or a row in the table "Nothing to do"."""
    runbooks = {name for name, text in sections(page).items() if parts(text)}
    needing_nothing = sections(page)["Nothing to do"]
    return runbooks | {
        name for row in re.findall(r"^\| (`.+?) \|", needing_nothing, re.M) for name in re.findall(r"`(\w+)`", row)
    }


def test_reasons_of_the_operator_and_documented_reasons_match() -> None:
    assert documented("conditions.md") | documented("reports.md") == reasons() | OF_THE_KUBELET


@pytest.mark.parametrize("page", ["conditions.md", "reports.md"])
def test_a_runbook_has_its_three_parts(page: str) -> None:
    sections_by_name = {name: parts(text) for name, text in sections(page).items() if parts(text)}
    assert len(sections_by_name) > 10
    assert dict.fromkeys(sections_by_name, PARTS) == sections_by_name


def test_tried_names_an_existing_test_for_each_reason_and_alert() -> None:
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", (PAGES / "tried.md").read_text("utf-8"), re.M)
    named = {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    alerts = {str(alert["alert"]) for alert in ALERTS}
    assert named == documented("conditions.md") | documented("reports.md") | alerts
    tests = {name for _, how in rows for name in re.findall(r"`([a-z0-9_/.]+\.(?:py|yaml))(?:::\w+)?`", how)}
    assert len(tests) > 5
    for name in tests:
        assert (ROOT / "tests" / name).is_file(), f"tried.md names tests/{name}"
    for names, how in rows:
        files = re.findall(r"`([a-z0-9_/.]+\.py)(?:::\w+)?`", how)
        # A unit test contains the reason; a test on a cluster may wait for another one.
        if any(name.startswith("unit/") for name in files):
            text = "".join((ROOT / "tests" / name).read_text("utf-8") for name in files)
            missing = [reason for reason in re.findall(r"`(\w+)`", names) if f'"{reason}"' not in text]
            assert missing == [], f"tried.md: {', '.join(files)}"
    for _, how in rows:
        for name, test in re.findall(r"`([a-z0-9_/.]+\.py)::(\w+)`", how):
            text = (ROOT / "tests" / name).read_text("utf-8")
            assert re.search(rf"^(?:async )?def {test}\(", text, re.M), f"tests/{name} has no {test}"


def test_alerts_and_sections_match() -> None:
    assert set(sections("alerts.md")) == {alert["alert"] for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_links_to_its_section_which_names_its_severity(alert: dict[str, dict[str, str]]) -> None:
    name = str(alert["alert"])
    assert alert["annotations"]["runbook_url"] == f"docs/operations/alerts.md#{name.lower()}"
    text = sections("alerts.md")[name]
    assert parts(text) == PARTS
    assert alert["labels"]["severity"] in text.partition("**Look.**")[0]


def test_links_of_the_pages_exist() -> None:
    for path in sorted(PAGES.glob("*.md")):
        for page, anchor in re.findall(r"\]\(([a-z_./-]*)(#[a-z-]+)?\)", path.read_text("utf-8")):
            target_path = (path.parent / page).resolve() if page else path
            assert target_path.is_file(), f"{path.name}: {page}"
            headings = re.findall(r"^#+ (.+)$", target_path.read_text("utf-8"), re.M)
            anchors = {f"#{heading.lower().replace(' ', '-')}" for heading in headings}
            assert not anchor or anchor in anchors, f"{path.name}: {page}{anchor}"
