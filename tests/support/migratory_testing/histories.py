"""A correct history of `make chaos`, for tests that break it and run the checker."""

from __future__ import annotations

from migratory_chaos.processes.checker import Finding, Verdict, check
from migratory_chaos.processes.history import Delivered, Gap, Position, Sent, Stream, TopicHistory, digest

TOPIC = "topic-1"
COUNT = 12
CHANGE = 8
"""The sequence number at which the next epoch begins, after a takeover."""


def position(sequence: int) -> Position:
    return (1 if sequence < CHANGE else 2, sequence)


def content(sequence: int) -> str:
    return digest(f"{TOPIC} {sequence}".encode())


def perfect(subscribers: int = 3) -> TopicHistory:
    """Return a history with two alternating publishers, in which everything is acknowledged, and delivered to every
    subscriber once and in order."""
    history = TopicHistory(TOPIC, {"a": [], "b": []})
    for sequence in range(1, COUNT + 1):
        entries = history.publishers["a" if sequence % 2 else "b"]
        now = 100 * sequence
        entries.append(Sent(len(entries) + 1, content(sequence), now, True, position(sequence), "", now + 50))
    for number in range(subscribers):
        events: list[Delivered | Gap] = [Delivered(position(n), content(n)) for n in range(1, COUNT + 1)]
        history.subscribers[f"s{number}"] = Stream((1, 0), events)
    return history


def judge(history: TopicHistory) -> Verdict:
    return check([history])[0]


def only(verdict: Verdict, kind: str, count: int = 1) -> list[Finding]:
    """Check that the verdict has `count` findings of this kind and no others, all of `TOPIC`, and return them. Raise
    AssertionError otherwise."""
    counts = {name: getattr(verdict, name) for name in ("lost", "duplicate", "reordered", "unexpected")}
    assert counts == dict.fromkeys(counts, 0) | {kind: count}
    assert not verdict.clean
    assert {finding.topic for finding in verdict.findings} == {TOPIC}
    assert {finding.kind for finding in verdict.findings} == {kind}
    return verdict.findings


def stream(history: TopicHistory) -> list[Delivered | Gap]:
    """Return the events of the subscriber `s1`, which tests damage in place."""
    return history.subscribers["s1"].events


def sent(history: TopicHistory, sequence: int) -> Sent:
    """Return the publication that was acknowledged at this sequence number."""
    return next(
        entry for entries in history.publishers.values() for entry in entries if entry.position == position(sequence)
    )
