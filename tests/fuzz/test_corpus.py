"""Every stored input, and every input of an earlier failure, passes its target. These tests need no fuzzer. Reading the
inputs again takes no more memory, and the corpus is small."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from migratory_fuzz import corpus, targets
from migratory_fuzz.targets import Target

GROWTH = 30_000
"""Bytes that a second and third reading of the same inputs may add to the memory, for caches of regular expressions
and types. A leak of one small object per input is several times that."""


@pytest.fixture(params=targets.NAMES)
def target(request: pytest.FixtureRequest) -> Target:
    return targets.load(request.param)


def test_every_stored_input_passes_its_target(target: Target) -> None:
    inputs = corpus.inputs(target)
    assert len(inputs) > 10
    for data in inputs:
        target.run(data)


def test_reading_inputs_again_needs_no_memory(target: Target) -> None:
    stored = corpus.inputs(target)
    inputs = stored[:: 1 + len(stored) // {"zookeeper": 10, "peers": 10, "cost": 5}.get(target.name, 100)]
    for data in inputs:
        target.run(data)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(3):  # the first passes replace objects from before the tracing
            for data in inputs:
                target.run(data)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2):
            for data in inputs:
                target.run(data)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH


def test_corpus_is_small() -> None:
    sizes = {name: sum(map(len, corpus.kept(name))) for name in targets.NAMES}
    assert all(size <= corpus.MOST_BYTES for size in sizes.values()), sizes
