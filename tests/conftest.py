"""What all tests share: in CI a skipped test is a failed one, unless it is about another platform."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


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
