"""Whatever a client sends, the edge raises no exception, another client is still answered, and nothing of the hostile
client is left once its socket is lost."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_protocol import frames
from migratory_protocol.messages import Connect, Ping, Pong
from migratory_testing.edges import MASK, Bench
from migratory_testing.onelogic import OneLogic

WORDS = st.sampled_from(
    ["t", "", "a\x00", "\ud800", "x" * 300, "1:2", "1:", "-1:0", "99999999999999999999:1", "p", "é", "\ufeff", "0:0"]
)
NUMBERS = st.sampled_from([0, 1, 2, -1, 2**53, 2**63, 2**64, 1.5, 1e308])
SCALARS = st.one_of(WORDS, NUMBERS, st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["topic", "after", "snapshot", "op", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
OPS = st.sampled_from(["connect", "subscribe", "unsubscribe", "publish", "ping", "message", "fly", 7])
FIELDS = ["version", "client", "token", "request", "topic", "data", "data64", "qos", "publisher", "id", "mark", "sent"]
TOPICS = st.lists(st.one_of(st.fixed_dictionaries({"topic": WORDS}, optional={"after": VALUES}), WORDS), max_size=4)
OBJECTS = st.builds(
    lambda op, fields, topics: {"op": op, **fields, **({"topics": topics} if topics is not None else {})},
    OPS,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8),
    st.one_of(st.none(), TOPICS),
)
ARRAYS = st.lists(st.one_of(st.sampled_from([1, 2, 3, 4, 5, 32, 36, 99]), VALUES), max_size=8)


def ready(wire: str) -> tuple[Bench, Any, Any]:
    bench = Bench(EdgeConfig(queue_per_client=20_000, subscriptions_per_client=5))
    hostile, other = bench.client(wire=wire), bench.client(wire=wire)  # type: ignore[arg-type]
    other.subscribe_live("t")
    other.received.clear()
    return bench, hostile, other


def finish(bench: Bench, hostile: Any, other: Any) -> None:
    """Answer the pending requests of the edge, and lose the hostile client's socket if it is open. Check that the other
    client gets a pong and nothing else, and that its subscription and connection are the only ones left."""
    logic = OneLogic()
    while bench.requests:
        request = bench.requests.pop(0)
        if isinstance(request, Attach | NextPage):
            assert request.topic
        for event in logic.answer(request):
            bench.step(event)
    other.send(Ping())
    assert other.received == [Pong()]
    assert other.close_code is None
    if hostile.socket == "open":
        hostile.lose_socket()
    assert bench.edge.subscriptions == 1
    assert bench.edge.clients == 1


@given(objects=st.lists(OBJECTS, min_size=1, max_size=4), together=st.booleans())
def test_json_input_does_not_affect_another_client(objects: list[Any], together: bool) -> None:
    bench, hostile, other = ready("json")
    for value in [objects] if together else objects:
        hostile.send_bytes(frames.text_frame(json.dumps(value).encode(), MASK))
    finish(bench, hostile, other)


@given(arrays=st.lists(ARRAYS, min_size=1, max_size=4), together=st.booleans())
def test_messagepack_input_does_not_affect_another_client(arrays: list[Any], together: bool) -> None:
    bench, hostile, other = ready("msgpack")
    for value in [arrays] if together else arrays:
        try:
            data = msgspec.msgpack.encode(value)
        except (OverflowError, UnicodeEncodeError):  # cannot be encoded in MessagePack
            continue
        hostile.send_bytes(frames.binary_frame(data, MASK))
    finish(bench, hostile, other)


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@given(chunks=st.lists(st.binary(max_size=200), max_size=6), welcomed=st.booleans())
def test_random_bytes_do_not_affect_another_client(wire: str, chunks: list[bytes], welcomed: bool) -> None:
    bench, hostile, other = ready(wire)
    if not welcomed:
        hostile.lose_socket()
        hostile = bench.open(wire)  # type: ignore[arg-type]
    for chunk in chunks:
        hostile.send_bytes(chunk)
        hostile.send_bytes(frames.text_frame(chunk, MASK) if wire == "json" else frames.binary_frame(chunk, MASK))
    if hostile.close_code is None and hostile.socket == "open" and not welcomed:
        hostile.send(Connect())
    bench.wait(25.0, tick=1.0)
    other.received.clear()
    other.controls.clear()
    finish(bench, hostile, other)
