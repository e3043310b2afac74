"""Rules for all tests: skips in CI, examples of properties, SIGINT, and the form of the cores.

In CI a skipped test is a failed one, unless it is about another platform. Properties are tried on the same examples in
every run, so that a run says something about the change it is for; `pytest tests/properties
--hypothesis-profile=thorough` looks for new ones, ten times as many.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Coverage, planted faults and mutants need the sources. `make compiled-check` chooses the compiled form.
os.environ.setdefault("MIGRATORY_COMPILED", "0")

# No deadline: the machine may be busy with other tests. "Too slow" is what the first text drawn on a machine is, which
# builds a table of all characters.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", COMMON, max_examples=100, derandomize=True)
settings.register_profile("thorough", COMMON, max_examples=1000)
settings.load_profile("quick")


# A shell that runs the tests in the background leaves SIGINT ignored, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("MIGRATORY_SKIPS_FAIL") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "platform:" not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped where skips are not allowed: {reason}"
    return report
