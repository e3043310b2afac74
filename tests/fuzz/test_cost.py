"""The cost target detects mistakes that make a frame cost more than its limits allow, and gives the same count each
time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from migratory_broker.core.edge import inbox
from migratory_fuzz.targets import cost
from migratory_protocol import codec, diagnosis, shapes
from migratory_protocol import messages as m
from migratory_protocol.codec import MSGPACK

Plant = Callable[[pytest.MonkeyPatch], None]


def unlimited_topics(patch: pytest.MonkeyPatch) -> None:
    class Subscribe(m.Subscribe, array_like=True, tag_field="op", tag=2):
        topics: list[m.TopicRequest]

    decoders: Any = MSGPACK._client  # type: ignore[attr-defined]
    patch.setattr(decoders, "_one", msgspec.msgpack.Decoder(Subscribe | m.Connect))


def unlimited_lenient_topics(patch: pytest.MonkeyPatch) -> None:
    class Lenient(shapes.LenientSubscribe, array_like=True, tag_field="op", tag=2):
        topics: list[shapes.LenientTopicRequest]

    patch.setattr(codec, "_lenient_subscribe", msgspec.msgpack.Decoder(Lenient))


def bad_messages_examined_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(diagnosis, "MAX_EXAMINED", 10**9)
    patch.setattr(diagnosis, "MAX_BAD_MESSAGES", 10**9)


def bad_frames_count_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inbox, "BYTES_PER_BAD_MESSAGE", 10**9)


def turns_without_an_end(patch: pytest.MonkeyPatch) -> None:
    handle = inbox.Inbox._handle_messages

    def handle_all(self: inbox.Inbox, connection: Any, messages: Any, limited: object = None) -> bool:
        self._budget = 10**9
        return handle(self, connection, messages, limited)

    patch.setattr(inbox.Inbox, "_handle_messages", handle_all)


FAULTS: list[Plant] = [
    unlimited_topics,
    unlimited_lenient_topics,
    bad_messages_examined_without_a_limit,
    bad_frames_count_as_one,
    turns_without_an_end,
]


def _run_all() -> None:
    for data in cost.seeds():
        cost.run(data)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_fault_costs_more_than_the_bound(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="the bound is"):
        _run_all()


def test_same_input_has_the_same_cost() -> None:
    for data in [*cost.seeds()][::9]:
        cost.measure(data)  # caches are filled by the first
        assert cost.measure(data) == cost.measure(data)
