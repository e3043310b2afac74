"""Checks that a Hypothesis state machine detects a fault that is planted in the product."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from migratory_broker.core.logic.context import InvariantError


def load_machine(beside: str, file: str, name: str) -> Any:
    """Return the state machine `name` from `file`.py in the folder of the file `beside`. It is loaded by its path
    because tests are not a package."""
    spec = util.spec_from_file_location(file, Path(beside).with_name(f"{file}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[file] = module  # dataclasses resolve their annotations there
    spec.loader.exec_module(module)
    return getattr(module, name)


def assert_caught(machine: Any, examples: int = 300, steps: int = 50) -> None:
    """Run the Hypothesis state machine until it fails with AssertionError, InvariantError, KeyError or ValueError. Fail
    the test when it does not within `examples` runs of `steps` steps."""
    quick = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    with pytest.raises((AssertionError, InvariantError, KeyError, ValueError)):
        run_state_machine_as_test(machine, settings=quick)
