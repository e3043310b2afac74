"""The check of FORGET-ALIKE in each broker's state. A coordinator may forget only publishers that were silent for the
duplicate window, by its own clock. The other brokers may forget only publishers that the coordinator has forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.replication.topic_log import TopicLog

from migratory_simulation.external_checker import Violation

if TYPE_CHECKING:
    from migratory_simulation.internal_checker import InternalChecker
    from migratory_simulation.process import Process

SLACK = 0.001


def check(internal: InternalChecker, process: Process, group: int, state: tuple[int, int], log: TopicLog) -> None:
    """Check the publisher table of `log` at `process`, which has become shorter. `state` is (promised, synced). Raise a
    violation of 4 for a publisher that was forgotten too early."""
    term = internal.epochs.get((group, state[1]))
    if term is None or state[0] != state[1]:
        return
    rows = log.table.rows
    owner = internal.process_of(term.record.owner)
    if owner is process:
        now = process.local_now()
        for publisher, numbered in term.publishers.get(log.name, {}).items():
            silent = now - numbered
            if publisher not in rows and silent < internal.world.options.duplicate_window - SLACK:
                raise Violation(
                    4, f"{process.label} forgets {publisher} in {log.name} {silent:.1f} s after its last publication"
                )
    elif owner is not None:
        replica = owner.logic.groups[group].replica
        theirs = replica.topics.get(log.name)
        # With as much of the log it has been told of as many that are forgotten, and of no more.
        if (replica.promised, replica.synced) == state and theirs is not None and theirs.last == log.last:
            early = sorted(theirs.table.rows.keys() - rows.keys())
            if early:
                raise Violation(4, f"{process.label} has forgotten {early} in {log.name}, its coordinator has not")
