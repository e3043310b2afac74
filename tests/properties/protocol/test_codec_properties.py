"""The codec decodes any input or raises BadMessage, and can encode everything that it decodes."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from migratory_protocol import messages as m
from migratory_protocol.codec import CODECS, JSON, MSGPACK, BadMessage, Codec
from migratory_protocol.messages import BrokerMessage, ClientMessage
from migratory_protocol.positions import LARGEST, Position, parse_position
from migratory_protocol.topics import BadTopic, check_topic, topic_group

texts = st.text(max_size=10)
integers = st.integers(0, m.LARGEST_INTEGER)
sequences = st.integers(0, LARGEST)
seconds = st.floats(0, 1e12)
times = st.none() | seconds
positions = st.builds(Position, sequences, sequences)
servers = st.lists(st.builds(m.Server, texts, integers), max_size=3)
afters = st.none() | positions.map(str)
ids = st.integers(1, m.LARGEST_INTEGER)

client_messages: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(m.Connect, integers, texts, st.none() | texts),
    st.builds(m.Subscribe, ids, st.lists(st.builds(m.TopicRequest, texts, afters, st.booleans()), max_size=3)),
    st.builds(m.Unsubscribe, ids, st.lists(texts, max_size=3)),
    st.builds(m.Publish, texts, st.binary(max_size=20) | texts.map(str.encode), sent=st.none() | seconds),
    st.builds(
        lambda topic, payload, publisher, pair: m.Publish(topic, payload, 1, publisher, max(pair), min(pair)),
        texts, st.binary(max_size=20), st.text(min_size=1, max_size=5), st.tuples(ids, ids),
    ),
    st.builds(m.Ping),
    st.builds(m.Bye),
)  # fmt: skip
receipts = st.builds(
    m.TopicReceipt, texts, st.sampled_from([None, *get_args(m.Receipt)]), st.none() | positions, sequences, sequences,
    texts, texts,
)  # fmt: skip
broker_messages: st.SearchStrategy[BrokerMessage] = st.one_of(
    st.builds(m.Welcome, integers, texts, texts, integers, servers, seconds, st.builds(m.Limits, *[integers] * 4)),
    st.builds(m.Subscribed, integers, st.lists(receipts, max_size=3)),
    st.builds(m.Unsubscribed, integers, st.lists(texts, max_size=3)),
    st.builds(m.Message, texts, positions, st.binary(max_size=20), times, times, st.booleans()),
    st.builds(m.Ack, texts, texts, integers, st.none() | positions),
    st.builds(m.Nack, texts, texts, integers, texts, texts, st.none() | seconds),
    st.builds(m.Servers, servers),
    st.builds(m.Drain, seconds, servers),
    st.builds(m.Error, texts, texts, st.none() | integers, st.none() | texts, st.booleans()),
    st.builds(m.Pong),
    st.builds(m.TokenExpiring, seconds),
)

# anything that JSON or MessagePack can hold, close to messages: operations, names of fields, odd numbers, odd text
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), texts,
    st.sampled_from(["\ud800", "publish", "subscribe", "1:2", 1, 2, 3, 4, 5, 0, -1, 2**53, math.inf]),
)  # fmt: skip
names = st.sampled_from(["op", "topic", "topics", "request", "data", "data64", "qos", "id", "mark", "after"])
values = st.recursive(
    atoms, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner, max_size=4), max_leaves=8
)
near_topics = st.lists(st.fixed_dictionaries({"topic": atoms, "after": values}), max_size=3)
near_objects = st.fixed_dictionaries(
    {"op": st.sampled_from(["publish", "subscribe", "unsubscribe", "connect", "ping"])},
    optional={
        "topic": values, "topics": values | near_topics,
        "request": atoms, "data": atoms, "data64": atoms, "qos": atoms, "client": atoms,
    },
)  # fmt: skip


def read(codec: Codec, data: bytes) -> None:
    """Decode `data` as frames of a client, and check that each decoded message or error survives being encoded and
    decoded again."""
    items: list[Any]
    try:
        items = list(codec.decode_client(data))
    except BadMessage as error:
        items = list(error.frame)
    assert items
    for item in items:
        if isinstance(item, BadMessage):
            assert len(item.text) <= 300
            item = m.Error(item.code, item.text, item.request, item.topic, item.closes)  # noqa: PLW2901
            assert codec.decode_broker(codec.encode(item)) == [item]
            continue
        if isinstance(item, m.Subscribe):
            for request in item.topics:
                with suppress(ValueError):
                    parse_position(request.after)
                request.after = None
        assert codec.decode_client(codec.encode(item)) == [item]


@given(st.lists(client_messages, min_size=1, max_size=20))
def test_client_messages_round_trip(messages: list[ClientMessage]) -> None:
    for codec in CODECS:
        assert codec.decode_client(codec.join([codec.encode(message) for message in messages])) == messages


@given(st.lists(broker_messages, min_size=1, max_size=20))
def test_broker_messages_round_trip(messages: list[BrokerMessage]) -> None:
    for codec in CODECS:
        assert codec.decode_broker(codec.join([codec.encode(message) for message in messages])) == messages


@given(values | near_objects | st.lists(near_objects, max_size=3))
def test_any_json_is_decoded_or_refused(value: object) -> None:
    read(JSON, json.dumps(value).encode())


@given(values | st.tuples(st.integers(1, 4), st.lists(values, max_size=9)).map(lambda pair: [pair[0], *pair[1]]))
def test_any_messagepack_is_decoded_or_refused(value: object) -> None:
    try:
        data = msgspec.msgpack.encode(value)
    except UnicodeEncodeError:  # a lone surrogate: sent as the bytes that a careless peer would send
        value = json.loads(json.dumps(value, ensure_ascii=False).replace("\ud800", "SURR"))
        data = msgspec.msgpack.encode(value).replace(b"SURR", b"a\xed\xa0\x80")
    read(MSGPACK, data)


@given(st.binary(max_size=60))
def test_random_bytes_are_decoded_or_refused(data: bytes) -> None:
    for codec in CODECS:
        read(codec, data)


@given(st.lists(client_messages, min_size=1, max_size=3), st.data())
def test_damaged_messages_are_decoded_or_refused(messages: list[ClientMessage], data: st.DataObject) -> None:
    for codec in CODECS:
        good = bytearray(codec.join([codec.encode(message) for message in messages]))
        for _ in range(data.draw(st.integers(1, 3))):
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        read(codec, bytes(good))
        read(codec, bytes(good[: data.draw(st.integers(0, len(good)))]))


@given(st.text(max_size=300), st.integers(1, 1000))
def test_topic_is_accepted_unchanged_or_refused(name: str, groups: int) -> None:
    try:
        assert check_topic(name) == name
    except BadTopic:
        assert not name or len(name.encode()) > 255 or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name)
        return
    assert 0 <= topic_group(name, groups) < groups
    for codec in CODECS:
        assert codec.decode_client(codec.encode(m.Unsubscribe(1, [name]))) == [m.Unsubscribe(1, [name])]
