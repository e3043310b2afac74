"""`migratory validate`: check resources of Kubernetes without a Kubernetes, by the operator's own rules."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from migratory_resources import ClusterFileError
from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.report.spec import REPORT_KIND
from migratory_resources.validation.custom_resources import read_report, unknown_report_fields
from migratory_resources.validation.document import DocumentError, parse_document, read_document
from migratory_resources.validation.loading import load_cluster

from migratory_cli.terminal import echo


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
def validate(files: tuple[Path, ...]) -> None:
    """Check files with a MigratoryCluster or an SLAReport for Kubernetes.

    Every error is reported at once, with its field, the value and what is allowed: those that the API server finds,
    and those that only the operator does, such as a name in a pod template that the operator uses itself. Nothing is
    sent anywhere. What a cluster has already, such as an immutable field or an image, is not checked.

    \b
    Example:
      migratory validate manifests/examples/*.yaml

    \b
    Exit codes: 0 all files are valid, 1 one is not, 2 wrong usage.
    """
    failed = False
    for path in files:
        try:
            warnings = _check(path)
        except ClusterFileError as error:
            failed = True
            echo(str(error), err=True)
            continue
        for warning in warnings:
            echo(f"{path}: warning: {warning}", err=True)
        echo(f"{path}: valid")
    sys.exit(1 if failed else 0)


def _check(path: Path) -> list[str]:
    """Return the warnings about a valid file, one for each field that is unknown and so has no effect. Raise
    ClusterFileError for an invalid file. A file of another kind than SLAReport is checked as a MigratoryCluster."""
    data = read_document(path)
    try:
        document = parse_document(data)
    except DocumentError:
        document = {}
    if document.get("kind") != REPORT_KIND:
        return load_cluster(data, str(path), KubernetesCluster).unknown
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    report = {"metadata": {"name": str(name)}, "spec": document.get("spec") or {}}
    try:
        read_report(report)
    except ClusterFileError as error:
        raise ClusterFileError(str(path), error.problems) from error
    return [f"{field} is not known and has no effect" for field in unknown_report_fields(report)]
