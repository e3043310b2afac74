"""The unit tests that execute a line, and running only those.

The map of lines to tests comes from one run under coverage. It is stored until a source or a test changes. A test
that executes none of the changed lines cannot detect the change.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from coverage import CoverageData
from migratory_simulation.patches import ROOT
from migratory_simulation.planted import environment

TESTS = ("tests/unit/core", "tests/unit/client", "tests/scenarios")
MEASURED = ("broker/migratory_broker/core", "clients/python/migratory_client")


def fingerprint() -> str:
    """Return a digest of all measured files and of the checkout's path, as the map names files by their whole paths."""
    digest = hashlib.sha256(str(ROOT).encode())
    for folder in (*TESTS, *MEASURED):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Covering:
    """The map of lines to tests: read from `folder`, or measured and stored there if a source or a test has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"tests-by-line-{fingerprint()}.coverage"
        if not self._path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._measure()
        self._data = CoverageData(str(self._path))
        self._data.read()
        if not any(
            Path(file).is_relative_to(ROOT / folder) for file in self._data.measured_files() for folder in MEASURED
        ):
            raise SystemExit(f"{self._path}: nothing of {ROOT} was measured; check which checkout is installed")

    def _measure(self) -> None:
        print(f"running {' '.join(TESTS)} once to see which test executes which line", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "--cov-context=test"]
        command += ["--cov-report=", *(f"--cov={ROOT / folder}" for folder in MEASURED)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(COVERAGE_FILE=str(self._path), MIGRATORY_COMPILED="0"),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            self._path.unlink(missing_ok=True)
            raise SystemExit(f"the unit tests fail before anything was changed:\n{done.stdout[-3000:]}")

    def tests(self, file: str, lines: Iterable[int]) -> list[str]:
        """Return the ids of the tests that execute any of these lines. `file` is relative to the repository."""
        contexts = self._data.contexts_by_lineno(str(ROOT / file))
        names = {name.split("|")[0] for line in lines for name in contexts.get(line, ())}
        return sorted(name for name in names if name)


class _FirstFailure:
    """A plugin of pytest that notes the first test that fails, or the module of tests that cannot be imported."""

    test = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def first_failure(tests: Sequence[str]) -> str:
    """Run `tests` in this process, up to the first failure. Return the id of the test that fails, a text about pytest's
    exit status if it ends otherwise, or "" if all pass or there are none."""
    if not tests:
        return ""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--timeout=60"]
    failure = _FirstFailure()
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), chdir(ROOT):
        status = pytest.main([*options, *tests], plugins=[failure])
    return failure.test or (f"pytest ends with {status!r}" if status else "")
