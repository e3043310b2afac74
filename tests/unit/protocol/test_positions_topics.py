"""Positions, topic names, close codes and limits beyond the conformance vectors."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge.config import EdgeConfig
from migratory_protocol import limits
from migratory_protocol.errors import FATAL, SAME_BROKER, CloseCode, is_valid_close_code
from migratory_protocol.positions import LARGEST, Position, parse_position
from migratory_protocol.topics import BadTopic, check_topic, topic_group


def test_positions_compare_by_epoch_then_sequence() -> None:
    assert Position(1, 9) < Position(2, 0) < Position(2, 1)
    assert str(Position(2, 1)) == "2:1"


@pytest.mark.parametrize("value", ["0:0", "3:12", f"{LARGEST}:{LARGEST}"])
def test_position_text_is_parsed_back(value: str) -> None:
    assert str(parse_position(value)) == value
    assert parse_position([int(part) for part in value.split(":")]) == parse_position(value)
    assert parse_position(tuple(parse_position(value))) == parse_position(value)


@pytest.mark.parametrize(
    "value",
    ["", ":", "1", "1:", ":1", "1:2:3", "-1:2", "1:-2", "1.5:2", "+1:2", "1_0:2", " 1:2", "1:2\n", "1e3:2", "\u0661:2",
     f"{LARGEST + 1}:0", "1" * 5000 + ":1"],
)  # fmt: skip
def test_malformed_position_text_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"position|epoch") as caught:
        parse_position(value)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [None, 5, 1.5, True, b"1:2", {}, [], [1], [1, 2, 3], [1, None], [True, 1], [1, 2.0],
                                   [-1, 0], [0, LARGEST + 1], ["1", "2"]])  # fmt: skip
def test_malformed_position_value_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"position|epoch"):
        parse_position(value)


@pytest.mark.parametrize("limit", [255, 512])
def test_topic_length_is_counted_in_bytes(limit: int) -> None:
    """Case A3: the length of a topic's name is counted in bytes of UTF-8: half as many two-byte characters as the
    limit are accepted, and one byte more raises BadTopic."""
    half = "\u00e9" * (limit // 2)
    assert check_topic(half + "x" * (limit % 2), limit)
    for name in (half + "x" * (1 + limit % 2), "x" * (limit + 1)):
        with pytest.raises(BadTopic, match=f"has {limit + 1} bytes in UTF-8; a name has 1 to {limit}"):
            check_topic(name, limit)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a\0b", "the control character U\\+0000 at character 1"),
        ("\ud800", "a lone surrogate U\\+D800"),
        ("x\udfff", "a lone surrogate U\\+DFFF at character 1"),
        ("a\x1f", "U\\+001F"),
        ("\x7f", "U\\+007F"),
        ("\x9f", "U\\+009F"),
        ("", "is empty"),
    ],
)
def test_invalid_topic_name_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadTopic, match=text) as caught:
        check_topic(name)
    assert caught.value.code == "bad_topic"
    assert str(caught.value).isascii()


def test_topic_names_are_not_normalised() -> None:
    names = ["caf\u00e9", "cafe\u0301", "\ufefft", "t", "T", " t", "t "]
    assert [check_topic(name) for name in names] == names
    assert topic_group(names[0], 10**9) != topic_group(names[1], 10**9)
    assert topic_group(names[2], 10**9) != topic_group(names[3], 10**9)


def test_topics_spread_over_the_groups() -> None:
    counts = [0] * 100
    for number in range(10_000):
        counts[topic_group(f"quotes/{number:06}", 100)] += 1
    assert min(counts) > 50
    assert max(counts) < 150


def test_close_codes_are_valid() -> None:
    assert all(is_valid_close_code(code) for code in CloseCode)
    assert set(CloseCode) > FATAL
    assert set(CloseCode) > SAME_BROKER
    assert not FATAL & SAME_BROKER


def test_edge_defaults_are_the_protocol_limits() -> None:
    edge = EdgeConfig()
    assert (edge.max_payload, edge.envelope, edge.max_message) == (limits.PAYLOAD, limits.ENVELOPE, limits.MESSAGE)
    assert (edge.max_topic, edge.subscriptions_per_client) == (limits.TOPIC, limits.SUBSCRIPTIONS)
    assert (edge.queue_per_client, edge.handshake, edge.heartbeat) == (limits.QUEUE, limits.HANDSHAKE, limits.HEARTBEAT)
