"""The targets by name.

Each module has `run(data)`, which raises when an oracle does not hold, and describes its test in its docstring.
`seeds()` are the first inputs, `TOKENS` words that a fuzzer would take long to find.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Shape = Literal["bytes", "values", "lines"]


@dataclass(frozen=True)
class Target:
    """A fuzz target. `shape` selects the mutator; the first `skip` bytes of an input select a mode; inputs have at
    most `max_len` bytes. The fuzzer counts coverage in the `product` modules."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    tokens: tuple[bytes, ...]
    product: tuple[str, ...]
    shape: Shape
    skip: int
    max_len: int


PRODUCT: dict[str, tuple[str, ...]] = {
    "frames": ("migratory_protocol.frames", "migratory_protocol.errors"),
    "codec": (
        "migratory_protocol.codec",
        "migratory_protocol.diagnosis",
        "migratory_protocol.jsonwire",
        "migratory_protocol.errors",
        "migratory_protocol.positions",
    ),
    "handshake": (
        "migratory_protocol.handshake",
        "migratory_protocol.origins",
        "migratory_broker.runtime.clients.handshake",
    ),
    "peer": ("migratory_protocol.peer", "migratory_broker.runtime.peers.link", "migratory_broker.runtime.peers.links"),
    "peers": (
        "migratory_broker.core.logic.logic",
        "migratory_broker.core.logic.membership.epochs",
        "migratory_broker.core.logic.replication.group",
        "migratory_broker.core.logic.replication.replica",
        "migratory_broker.core.logic.replication.snapshot",
        "migratory_broker.core.logic.replication.takeover",
        "migratory_broker.core.logic.replication.sequencer",
    ),
    "clusterfile": (
        "migratory_resources.validation.document",
        "migratory_resources.validation.loading",
        "migratory_resources.validation.problems",
        "migratory_resources.cluster.spec",
        "migratory_resources.fields",
        "migratory_resources.quantities",
        "migratory_resources.validation.rules",
        "migratory_resources.objectives",
        "migratory_resources.cluster.process_config",
    ),
    "tokens": (
        "migratory_broker.core.security.tokens",
        "migratory_broker.core.security.rules",
        "migratory_broker.core.security.authorizer",
    ),
    "zookeeper": (
        "migratory_broker.core.logic.membership.records",
        "migratory_broker.core.logic.membership.membership",
        "migratory_broker.core.logic.election.election",
        "migratory_broker.core.logic.election.ephemerals",
    ),
}
"""The modules of each target whose branches count. They are listed here because the fuzzer must know them before it
imports them."""

FUZZED = tuple(PRODUCT)
NAMES = (*FUZZED, "cost")
"""The targets that atheris fuzzes, and all. `cost` has a search of its own: calls of atheris's instrumentation would
count as the product's."""


def load(name: str) -> Target:
    """Return the target of this name, or in the module `name` when it has a dot (for tests of the fuzzing itself)."""
    module = importlib.import_module(name if "." in name else f"migratory_fuzz.targets.{name}")
    return Target(
        name.rpartition(".")[2],
        module.run,
        module.seeds,
        module.TOKENS,
        PRODUCT.get(name, (module.__name__,)),
        module.SHAPE,
        module.SKIP,
        module.MAX_LEN,
    )
