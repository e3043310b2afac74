"""`migratory validate`: every error of a cluster's and a report's file, with the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from migratory_cli.main import main

ROOT = Path(__file__).parents[3]
CLUSTER = "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: q, namespace: market}\n"
POD = "{env: [{name: POD_NAME}]}"
REPORT = "apiVersion: migratory.dev/v1alpha1\nkind: SLAReport\nmetadata: {name: r}\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["validate", *map(str, arguments)])


def write(folder: Path, text: str) -> Path:
    path = folder / "resource.yaml"
    path.write_text(text)
    return path


def test_the_examples_are_valid() -> None:
    examples = sorted((ROOT / "manifests" / "examples").glob("*.yaml"))
    assert len(examples) >= 5
    result = run(*examples)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [f"{path}: valid" for path in examples]


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            f"{CLUSTER}spec: {{brokers: {{replicas: 2, expose: {{type: NodePort}}, pod: {POD}}}}}",
            ["spec.brokers.replicas: 2", "spec.brokers.expose.host: None", "spec.brokers.pod.env[0].name: 'POD_NAME'"],
        ),
        (
            f"{CLUSTER}spec: {{brokers: {{replica: 3}}}}",
            ["spec.brokers.replica: no such field (value 3); did you mean"],
        ),
        (f"{REPORT}spec: {{cluster: q, spark: {{executors: -1}}}}", ["spec.spark.executors: -1 is not allowed"]),
        (f"{REPORT}spec: {{}}", ["spec.cluster: is required"]),
        ("a: [", ["not valid YAML"]),
        ("kind: Pod", ["apiVersion: is required", "kind: 'Pod' is not allowed", "metadata: is required"]),
    ],
)
def test_errors_name_the_file_and_the_field(tmp_path: Path, text: str, errors: list[str]) -> None:
    path = write(tmp_path, text)
    result = run(path)
    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert len(lines) == len(errors), result.stderr
    assert all(line.startswith(f"{path}: ") for line in lines)
    for error, line in zip(errors, lines, strict=True):
        assert error in line


def test_a_field_that_nobody_knows_is_a_warning(tmp_path: Path) -> None:
    for text in (f"{CLUSTER}spec: {{color: red}}", f"{REPORT}spec: {{cluster: q, color: red}}"):
        path = write(tmp_path, text)
        result = run(path)
        assert (result.exit_code, result.stdout) == (0, f"{path}: valid\n")
        assert result.stderr == f"{path}: warning: spec.color is not known and has no effect\n"


def test_what_kubectl_prints_has_no_warnings(tmp_path: Path) -> None:
    """No warning is about what the API server adds to a resource (`kubectl get -o yaml`). Regression: one said that the
    status has no effect on one machine, and others that `metadata.uid` is not known."""
    metadata = (
        "{name: q, namespace: market, uid: a, generation: 3, creationTimestamp: '2026-01-01T00:00:00Z', "
        "resourceVersion: '7', finalizers: [a], labels: {a: b}, annotations: {a: b}, "
        "managedFields: [{manager: a, operation: Apply}], ownerReferences: [{kind: A, name: a, uid: a}]}"
    )
    for text in (f"{CLUSTER}spec: {{color: red}}\n", f"{REPORT}spec: {{cluster: q, color: red}}\n"):
        head, _, rest = text.partition("metadata: ")
        path = write(tmp_path, f"{head}metadata: {metadata}\n{rest.partition(chr(10))[2]}status: {{phase: a}}\n")
        result = run(path)
        assert (result.exit_code, result.stdout) == (0, f"{path}: valid\n")
        assert result.stderr == f"{path}: warning: spec.color is not known and has no effect\n"


def test_a_misspelled_field_of_the_metadata_is_an_error(tmp_path: Path) -> None:
    result = run(write(tmp_path, f"{CLUSTER.replace('namespace', 'namespce')}spec: {{}}"))
    assert (result.exit_code, "did you mean metadata.namespace?" in result.stderr) == (1, True)


def test_a_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path / "none.yaml").exit_code == 2
