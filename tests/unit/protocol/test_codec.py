"""The codec beyond the conformance vectors: several messages in a frame, limits, hostile input, the texts of errors,
and the derived JSON format."""

from __future__ import annotations

import json
import re
import tracemalloc

import msgspec
import pytest
from migratory_protocol import diagnosis, limits
from migratory_protocol import messages as m
from migratory_protocol.codec import CODECS, JSON, MSGPACK, BadMessage, Codec, find_codec
from migratory_protocol.diagnosis import MAX_BAD_MESSAGES, MAX_EXAMINED
from migratory_protocol.errors import BAD_MESSAGE, BAD_TOPIC, UNKNOWN_OP
from migratory_protocol.jsonwire import build_kinds
from migratory_protocol.messages import (
    BrokerMessage,
    Bye,
    ClientMessage,
    Message,
    Ping,
    Publish,
    Subscribe,
    TopicRequest,
)
from migratory_protocol.peer import PeerMessage
from migratory_protocol.positions import LARGEST, Position, parse_position
from msgspec import Struct

pack = msgspec.msgpack.encode


def refusal(codec: Codec, data: bytes, side: str = "client") -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        codec.decode_client(data) if side == "client" else codec.decode_broker(data)
    return caught.value


def items(codec: Codec, data: bytes) -> list[object]:
    """Return the messages of a client's frame and the errors of its bad ones, in order."""
    try:
        return list(codec.decode_client(data))
    except BadMessage as error:
        return list(error.frame)


def test_find_codec_accepts_names_and_subprotocols() -> None:
    assert [find_codec(codec.name) for codec in CODECS] == list(CODECS)
    assert [find_codec(codec.subprotocol) for codec in CODECS] == list(CODECS)
    assert (JSON.binary, MSGPACK.binary) == (False, True)
    with pytest.raises(ValueError, match="'yaml' is not a wire format"):
        find_codec("yaml")


def test_codec_decodes_bytearray_like_bytes() -> None:
    for codec in CODECS:
        assert codec.decode_client(bytearray(codec.encode(Ping()))) == [Ping()]
        assert codec.decode_client(bytearray(codec.join([codec.encode(Ping())] * 2))) == [Ping(), Ping()]


# A5: integers and numbers ------------------------------------------------------------------------------------------


def test_payload_keeps_its_digits_between_formats() -> None:
    typed = '{"v":[9007199254740993,18446744073709551615,18446744073709551616,1e400,-0,1.0]}'
    (publish,) = JSON.decode_client(json.dumps({"op": "publish", "topic": "t", "data": typed}).encode())
    assert isinstance(publish, Publish)
    message = Message("t", Position(1, 1), publish.payload)
    (packed,) = MSGPACK.decode_broker(MSGPACK.encode(message))
    assert isinstance(packed, Message)
    assert packed.payload == typed.encode()
    assert json.loads(JSON.encode(message))["data"] == typed


@pytest.mark.parametrize("codec", CODECS)
def test_positions_around_2_to_the_53_stay_distinct(codec: Codec) -> None:
    sent = [Message("t", Position(LARGEST, number), b"") for number in range(2**53 - 1, 2**53 + 2)]
    received = codec.decode_broker(codec.join([codec.encode(message) for message in sent]))
    assert received == sent
    assert len({message.position for message in received if isinstance(message, Message)}) == 3
    if codec is JSON:
        for message in sent:
            text = json.loads(codec.encode(message))["position"]
            assert text == f"{LARGEST}:{message.position.sequence}"
            assert parse_position(text) == message.position


@pytest.mark.parametrize("number", [2**53, 2**63, 2**64 - 1])
@pytest.mark.parametrize("codec", CODECS)
def test_integer_is_refused_above_2_to_the_53(codec: Codec, number: int) -> None:
    if codec is JSON:
        data = json.dumps({"op": "unsubscribe", "request": number, "topics": []}).encode()
    else:
        data = pack([3, number, []])
    error = refusal(codec, data)
    assert (error.code, error.closes) == (BAD_MESSAGE, False)
    assert error.text == "unsubscribe.request: Expected `int` <= 9007199254740991"


@pytest.mark.parametrize("digits", [20, 5000, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_integer_of_any_length_is_refused_or_ignored(digits: int, sign: str) -> None:
    error = refusal(JSON, b'{"op":"unsubscribe","topics":[],"request":' + sign.encode() + b"7" * digits + b"}")
    assert error.text.startswith("unsubscribe.request: Expected `int` ")
    ignored = b'{"op":"ping","unknown":' + sign.encode() + b"7" * digits + b"}"
    assert JSON.decode_client(ignored) == [Ping()]
    (message,) = JSON.decode_client(
        b'{"op":"subscribe","request":1,"topics":[{"topic":"t","after":' + sign.encode() + b"7" * digits + b"}]}"
    )
    assert isinstance(message, Subscribe)
    with pytest.raises(ValueError, match="a position must be"):
        parse_position(message.topics[0].after)


# A3: ill-formed text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ['"publisher":"\\udfff"', '"topic":"a\\ud800b"'])
def test_error_text_can_be_encoded_when_message_is_ill_formed(field: str) -> None:
    base = {"op": "publish", "topic": "t", "data": "", "qos": 1, "id": 1, "mark": 1, "publisher": "p"}
    data = json.dumps(base).encode()[:-1] + b"," + field.encode() + b"}"
    error = refusal(JSON, data)
    assert error.code == (BAD_TOPIC if "topic" in field else BAD_MESSAGE)
    for codec in CODECS:
        reply = m.Error(error.code, error.text, error.request, error.topic, error.closes)
        assert codec.decode_broker(codec.encode(reply)) == [reply]


def test_unknown_operation_with_surrogate_is_named_in_ascii() -> None:
    error = refusal(JSON, b'{"op":"\\ud800"}')
    assert error.code == UNKNOWN_OP
    assert '"\\ud800"' in error.text


def test_surrogate_in_unknown_field_is_ignored() -> None:
    assert JSON.decode_client(b'[{"op":"ping","x":"\\ud800"},{"op":"bye"}]') == [Ping(), Bye()]


@pytest.mark.parametrize(
    ("data", "side", "place"),
    [
        (b'{"op":"subscribe","request":"\\ud800","topics":[]}', "client", "subscribe.request"),
        (b'{"op":"subscribe","request":1,"topics":[{"snapshot":"\\ud800"}]}', "client", "subscribe.topics[0].snapshot"),
        (b'{"op":"publish","topic":"t","data64":"\\ud800"}', "client", "publish.data64"),
        (b'{"op":"servers","servers":[{"url":"\\ud800"}]}', "broker", "servers.servers[0].url"),
        (b'{"op":"welcome","limits":{"queue":"\\ud800"}}', "broker", "welcome.limits.queue"),
        (b'{"op":"ping","\\ud800":1}', "client", "ping: the name of a field"),
    ],
)
def test_surrogate_error_names_its_path(data: bytes, side: str, place: str) -> None:
    error = refusal(JSON, data, side)
    assert (error.code, error.closes) == (BAD_MESSAGE, False)
    assert error.text.startswith(place)
    assert "lone surrogate" in error.text


def test_surrogate_is_found_behind_fields_of_wrong_type() -> None:
    odd = b'"cluster":{"a":"\\ud800"},"limits":{"payload":1},"servers":[{"x":"\\ud800"},7]'
    data = b'{"op":"welcome",' + odd + b',"broker":"\\ud800"}'
    assert refusal(JSON, data, "broker").text.startswith("welcome.broker: holds a lone surrogate")


def test_surrogate_is_found_behind_items_of_wrong_type() -> None:
    error = refusal(JSON, b'{"op":"unsubscribe","request":1,"topics":[{"x":1},"\\ud800"]}')
    assert (error.code, error.text[:22]) == (BAD_TOPIC, "unsubscribe.topics[1]:")


def test_surrogate_in_position_fails_one_topic() -> None:
    (message,) = JSON.decode_client(b'{"op":"subscribe","request":1,"topics":[{"topic":"t","after":"\\ud800"}]}')
    assert message == Subscribe(1, [TopicRequest("t", "\ud800")])
    with pytest.raises(ValueError, match=r"position '\\ud800' is not"):
        parse_position("\ud800")


def test_ill_formed_utf_8_is_located_behind_other_errors() -> None:
    # the unknown field of the first entry cannot be decoded alone; the error is in the text of the second
    ill = bytes.fromhex("9226" + "92" + "93a17501" + "8181010203" + "92a1ff01")
    error = refusal(MSGPACK, ill, "broker")
    assert error.text.startswith("servers: ")
    # behind a topic to leave that is well-formed
    assert refusal(MSGPACK, bytes.fromhex("93030592a174a1ff")).text.startswith("unsubscribe.topics[1]: holds text")
    # not even an array where topics are expected
    assert refusal(MSGPACK, bytes.fromhex("930205a1ff")).text.startswith("subscribe.topics: Expected `array`")
    # topics that are text, not arrays
    error = refusal(MSGPACK, bytes.fromhex("9403059192a174a1ff" + "c0"))
    assert error.code == BAD_MESSAGE
    assert error.text.startswith("unsubscribe.topics[0]: Expected `str`")


# deep, wide and hostile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [10, 100, 400])
@pytest.mark.parametrize("codec", CODECS)
def test_nested_position_is_malformed(codec: Codec, depth: int) -> None:
    if codec is JSON:
        data = b'{"op":"subscribe","request":1,"topics":[{"topic":"t","after":' + b"[" * depth + b"]" * depth + b"}]}"
    else:
        data = b"\x93\x02\x01\x91\x92\xa1t" + b"\x91" * depth + b"\xc0"
    (message,) = codec.decode_client(data)
    assert isinstance(message, Subscribe)
    with pytest.raises(ValueError, match="position"):
        parse_position(message.topics[0].after)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("place", ["frame", "position", "unknown field"])
def test_frame_closes_when_nested_too_deeply(codec: Codec, place: str) -> None:
    deep = b"[" * 200_000 if codec is JSON else b"\x91" * 200_000 + b"\xc0"
    if codec is JSON:
        deep += b"]" * 200_000
    heads = {
        "frame": (b"", b"", b""),
        "position": (
            b'{"op":"subscribe","request":1,"topics":[{"topic":"t","after":',
            b"}]}",
            b"\x93\2\1\x91\x92\xa1t",
        ),
        "unknown field": (b'{"op":"ping","x":', b"}", b"\x92\x05"),
    }
    before, behind, packed = heads[place]
    error = refusal(codec, before + deep + behind if codec is JSON else packed + deep)
    assert (error.code, error.closes) == (BAD_MESSAGE, True)
    assert "nested too deeply" in error.text


def test_frame_closes_when_it_has_many_bad_messages() -> None:
    for codec, bad in ((JSON, b'{"op":"x"}'), (MSGPACK, b"\x91\x63")):
        assert not refusal(codec, codec.join([bad] * MAX_BAD_MESSAGES)).closes
        error = refusal(codec, codec.join([bad] * (MAX_BAD_MESSAGES + 1)))
        assert error.closes
        assert error.text.startswith("more than 16 bad messages in one frame, the first: unknown operation")


@pytest.mark.parametrize("codec", CODECS)
def test_frame_holds_at_most_4096_messages(codec: Codec) -> None:
    ping = codec.encode(Ping())
    assert len(codec.decode_client(codec.join([ping] * 4096))) == 4096
    for last in (ping, codec.join([])):
        error = refusal(codec, codec.join([ping] * 4096 + [last]))
        assert error.closes
        assert error.text == "the frame holds 4097 messages, expected at most 4096"


@pytest.mark.parametrize("codec", CODECS)
def test_few_messages_of_a_frame_are_examined(codec: Codec) -> None:
    """A frame with more than MAX_EXAMINED messages that need a closer look is refused and closes the connection.
    Regression: one bad message among 4096 made a broker examine all of them for 200 ms."""
    request = codec.encode(Subscribe(1, [TopicRequest("t", "1:1")]))
    odd = request.replace(b'"1:1"', b'"\\ud800"') if codec is JSON else request.replace(b"\xa31:1", b"\x91\x91\xc0")
    assert len(codec.decode_client(codec.join([odd] * MAX_EXAMINED))) == MAX_EXAMINED
    error = refusal(codec, codec.join([odd] * (MAX_EXAMINED + 1)))
    assert (error.closes, error.text) == (
        True,
        "more than 64 messages in one frame are bad or have malformed positions",
    )


def packed_list(head: bytes, item: bytes, size: int) -> bytes:
    """Return a MessagePack message of about `size` bytes: `head` followed by a list of equal items."""
    count = size // len(item)
    return head + b"\xdd" + count.to_bytes(4) + item * count


def json_list(head: bytes, item: bytes, size: int, tail: bytes) -> bytes:
    return head + b",".join([item] * (size // (len(item) + 1))) + tail


LONG_LISTS = {
    "topics": packed_list(b"\x93\x02\x01", b"\x91\xa0", 1_000_000),
    "topics and one bad position": packed_list(b"\x93\x02\x01", b"\x92\xa0\x90", 1_000_000),
    "topics to leave": packed_list(b"\x93\x03\x01", b"\xa0", 1_000_000),
    "messages": packed_list(b"", b"\x91\x05", 1_000_000),
    "requests of a few topics": b"\xdc\x0f\x00" + packed_list(b"\x93\x02\x01", b"\x91\xa0", 250) * 0x0F00,
    "requests with bad positions": b"\xdc\x0a\x00" + packed_list(b"\x93\x02\x01", b"\x92\xa0\x90", 250) * 0x0A00,
    "fields": b"\xdd" + (900_000).to_bytes(4) + b"\x04" + b"\xc0" * 899_999,
    "parts of a position": packed_list(b"\x93\x02\x01\x91\x92\xa1t", b"\x00", 1_000_000),
    "parts of a position that are text": packed_list(b"\x93\x02\x01\x91\x92\xa1t", b"\xa0", 1_000_000)[:-1] + b"\xc1",
}


@pytest.mark.parametrize("name", LONG_LISTS)
def test_decoder_stops_at_the_first_excess(name: str) -> None:
    """A decoder stops at the first excess item of a very long list: it gives one message or error and needs less
    than 8 MB. Regression: a frame with 370,000 topics cost half a second of a broker's loop, and 100 MB of objects."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        found = items(MSGPACK, LONG_LISTS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert len(found) == 1


@pytest.mark.parametrize(
    ("data", "field", "text"),
    [
        (packed_list(b"\x93\x02\x01", b"\x91\xa0", 9000), "subscribe.topics", "`array` of length <= 4096, got 4500"),
        (packed_list(b"\x93\x03\x01", b"\xa0", 4097), "unsubscribe.topics", "`array` of length <= 4096, got 4097"),
        (pack([4, "t" * 65_537, b""]), "publish.topic", "`str` of length <= 65536, got 65537"),
        (pack([1, 1, "c", "t" * 70_000]), "connect.token", "`str` of length <= 65536, got 70000"),
    ],
)
def test_refusal_names_limit_and_value_and_closes_nothing(data: bytes, field: str, text: str) -> None:
    text = f"{field}: Expected {text}"
    error = refusal(MSGPACK, data)
    assert (error.text, error.closes) == (text, False)
    both = items(MSGPACK, MSGPACK.join([data, MSGPACK.encode(Ping())]))
    assert both[1] == Ping()
    assert isinstance(both[0], BadMessage)
    assert both[0].text == text


def test_refusal_in_json_names_limit_and_value() -> None:
    names = b",".join([b'""'] * 4097)
    error = refusal(JSON, b'{"op":"unsubscribe","request":7,"topics":[' + names + b"]}")
    assert error.text == "unsubscribe.topics: Expected `array` of length <= 4096, got 4097"
    assert (error.request, error.closes) == (7, False)
    error = refusal(JSON, b'{"op":"publish","data":"","topic":"' + b"t" * 65_537 + b'"}')
    assert error.text == "publish.topic: Expected `str` of length <= 65536, got 65537"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [10, 200])  # in a frame below, and above, what is decoded at once
def test_topics_of_all_requests_of_a_frame_are_limited(codec: Codec, size: int) -> None:
    def frame(topics: int) -> bytes:
        parts = [min(1000, topics - start) for start in range(0, topics, 1000)]
        return codec.encode_all([m.Unsubscribe(1, ["x" * (size // 10)] * part) for part in parts])

    assert len(codec.decode_client(frame(limits.ITEMS - 9))) == 9
    error = refusal(codec, frame(limits.ITEMS - 8))
    assert error.closes
    assert error.text == "the frame holds more than 8192 messages and topics together, expected at most 8192"


@pytest.mark.parametrize(
    "data",
    [
        json_list(b'{"op":"subscribe","request":1,"topics":[', b'{"topic":""}', 1_000_000, b"]}"),
        json_list(b'{"op":"subscribe","request":1,"topics":[{"topic":"","after":[', b"[]", 1_000_000, b"]}]}"),
        json_list(b'{"op":"unsubscribe","request":1,"topics":[', b'""', 1_000_000, b',"\\ud800"]}'),
        json_list(b'[{"op":"publish","topic":"t","data":""},', b"1", 1_000_000, b"]"),
    ],
)
def test_json_frame_of_many_values_closes_undecoded(data: bytes) -> None:
    error = refusal(JSON, data)
    assert error.closes
    assert re.fullmatch(
        r"the frame holds \d+ commas, expected at most 32768 in a frame over 65536 bytes .+", error.text
    )


def test_publications_may_hold_any_number_of_commas() -> None:
    publication = Publish("t", b"," * 100_000)
    assert JSON.decode_client(JSON.encode(publication)) == [publication]
    assert JSON.decode_client(JSON.encode_all([publication] * 5)) == [publication] * 5
    assert refusal(JSON, JSON.encode_all([publication, Ping()])).closes


def test_large_frame_of_several_messages_is_decoded_message_by_message() -> None:
    messages = [Publish("t", b"x" * 1000, 1, "p", id, 1) for id in range(1, 200)]
    frame = MSGPACK.encode_all([*messages, m.Unsubscribe(1, ["t"])])
    assert MSGPACK.decode_client(frame) == [*messages, m.Unsubscribe(1, ["t"])]
    found = items(MSGPACK, MSGPACK.encode_all([*messages, Publish("t", b"", 1)]))
    assert found[:-1] == messages
    assert isinstance(found[-1], BadMessage)
    answers = [m.Ack("t", "p", id, None) for id in range(1, 4000)]
    assert MSGPACK.decode_broker(MSGPACK.encode_all([*answers, m.Nack("t", "p", 1, "x" * 60_000)])) == [
        *answers,
        m.Nack("t", "p", 1, "x" * 60_000),
    ]


def test_client_refuses_a_broker_that_sends_too_much() -> None:
    """A client's decoder has the same limits: it refuses a broker's message with too many topics or servers."""
    data = packed_list(b"\x93\x21\x01", b"\x92\xa0\xc0", 20_000)
    assert refusal(MSGPACK, data, "broker").text == "subscribed.topics: Expected `array` of length <= 4096, got 6666"
    data = packed_list(b"\x92\x26", b"\x91\xa0", 20_000)
    assert refusal(MSGPACK, data, "broker").text == "servers.servers: Expected `array` of length <= 4096, got 10000"


def test_valid_messages_of_a_broker_are_kept_beside_a_bad_one() -> None:
    error = refusal(MSGPACK, MSGPACK.join([MSGPACK.encode(m.Pong()), pack([35, "t", [1, -1], b""])]), "broker")
    assert error.frame == (m.Pong(), error)


def test_error_text_is_cut_to_its_limit() -> None:
    assert len(BadMessage("x", "y" * 1000).text) == 300
    assert "k" * 41 not in refusal(JSON, b'{"op":"' + b"k" * 1000 + b'"}').text


def test_nested_array_is_refused_as_message() -> None:
    assert (
        refusal(JSON, b'[[{"op":"ping"}]]').text
        == 'expected an object with the field "op", or an array of such objects'
    )
    assert refusal(MSGPACK, pack([[[5]]])).code == UNKNOWN_OP
    assert refusal(MSGPACK, pack([[5], 7])).text.startswith("expected an array that begins")


@pytest.mark.parametrize("header", ["92", "dc0002", "dd00000002"])
@pytest.mark.parametrize("inner", ["91", "dc0001", "dd00000001"])
def test_array_header_of_any_form_begins_several_messages(header: str, inner: str) -> None:
    assert MSGPACK.decode_client(bytes.fromhex(header + (inner + "05") * 2)) == [Ping(), Ping()]
    assert MSGPACK.decode_client(bytes.fromhex(inner + "05")) == [Ping()]


@pytest.mark.parametrize("data", ["90", "dc0000", "dd00000000", "05", "dc", "dd0000"])
def test_frame_without_message_is_refused(data: str) -> None:
    assert refusal(MSGPACK, bytes.fromhex(data)).code == BAD_MESSAGE


def test_bad_message_from_broker_names_its_field() -> None:
    for position, text in (("1", "is not"), ("1:99999999999999999999", "is not"), ("9223372036854775808:1", "from 0")):
        data = json.dumps({"op": "message", "topic": "t", "data": "", "position": position}).encode()
        error = refusal(JSON, data, "broker")
        assert error.text.startswith("message.position: ")
        assert text in error.text
    for number in ("-1", "x", "9223372036854775808", "1" * 20, "\u0661"):
        receipt = {"topic": "t", "receipt": "truncated", "position": "1:1", "first": number}
        data = json.dumps({"op": "subscribed", "request": 1, "topics": [receipt]}).encode()
        assert refusal(JSON, data, "broker").text.startswith("subscribed.first: expected a sequence number from 0")
    error = refusal(MSGPACK, pack([35, "t", [1, -1], b""]), "broker")
    assert error.text == "message.position[1]: Expected `int` >= 0"
    assert refusal(MSGPACK, pack([32, 1, "c", "b", 1, [], 15, [1, 2, 3, "x"]]), "broker").text == (
        "welcome.limits.queue: Expected `int`, got `str`"
    )


def test_codec_refuses_operations_of_the_other_end() -> None:
    for codec in CODECS:
        assert refusal(codec, codec.encode(Ping()), "broker").code == UNKNOWN_OP
        assert refusal(codec, codec.encode(m.Pong())).code == UNKNOWN_OP


# QoS 1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("publish", "field"),
    [
        (Publish("t", b"", 1, "", 1, 1), "publisher"),
        (Publish("t", b"", 1, "p", 0, 0), "id"),
        (Publish("t", b"", 1, "p", 1, 0), "mark"),
        (Publish("t", b"", 1, "p", 1, 2), "mark"),
    ],
)
def test_qos_1_publication_requires_publisher_id_and_mark(codec: Codec, publish: Publish, field: str) -> None:
    for data in (codec.encode(publish), codec.join([codec.encode(Ping()), codec.encode(publish)])):
        error = refusal(codec, data)
        assert error.text.startswith(f"publish.{field}: ")
        assert error.topic == "t"


@pytest.mark.parametrize("codec", CODECS)
def test_empty_payload_is_accepted(codec: Codec) -> None:
    for publish in (Publish("t", b""), Publish("t", b"", 1, "p", 1, 1)):
        assert codec.decode_client(codec.encode(publish)) == [publish]


# the derivation of the formats ----------------------------------------------------------------------------------------


def test_message_tags_are_unique() -> None:
    kinds = [kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, Struct)]
    tags = [kind.__struct_config__.tag for kind in kinds if kind.__struct_config__.tag is not None]
    assert len(tags) == len(set(tags)) == 17
    assert all(kind.__struct_config__.array_like for kind in kinds if kind is not Struct)


def test_json_kind_keeps_payload_field_that_is_not_bytes() -> None:
    (kind,) = build_kinds((m.Limits,), ()).values()
    assert msgspec.to_builtins(kind.to_wire(m.Limits(1, 2, 3, 4))) == {
        "payload": 1,
        "topic": 2,
        "subscriptions": 3,
        "queue": 4,
    }


def test_encode_raises_for_surrogates() -> None:
    for codec in CODECS:
        with pytest.raises(UnicodeEncodeError):
            codec.encode(m.Unsubscribed(1, ["\ud800"]))


@pytest.mark.parametrize("union", [ClientMessage, BrokerMessage, PeerMessage], ids=["client", "broker", "peer"])
def test_messages_have_no_field_of_any_type(union: object) -> None:
    """No message has a field of a free or map type. MessagePack's maps may have arrays as keys, which become tuples
    with unsalted hashes: a dict of a megabyte of tuples with one hash takes a minute to build."""
    kinds: set[type] = set()
    ids: set[int] = set()
    references: list[object] = []  # keeps the ids unique
    pending: list[object] = [msgspec.inspect.type_info(union)]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in ids:
            ids.add(id(info))
            references.append(info)
            kinds.add(type(info))
            pending += [getattr(info, name) for name in info.__struct_fields__]
        elif isinstance(info, tuple):
            pending += info
    assert msgspec.inspect.StrType in kinds
    assert not kinds & {msgspec.inspect.AnyType, msgspec.inspect.DictType, msgspec.inspect.RawType}


def test_map_as_position_is_not_decoded() -> None:
    data = b"\x93\x02\x01\x92\x92\xa1t\x82\x92\x01\x02\x00\x92\x03\x04\x00\x92\xa1u\x92\x05\x06"
    (message,) = MSGPACK.decode_client(data)
    assert isinstance(message, Subscribe)
    bad, good = message.topics
    assert not isinstance(bad.after, dict)
    with pytest.raises(ValueError, match="a position must be"):
        parse_position(bad.after)
    assert parse_position(good.after) == Position(5, 6)


# frames longer than any message but a publication ------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE", 100)


@pytest.mark.interpreted
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
class TestLargeFrames:
    def test_large_frame_with_one_publication_is_accepted(self, codec: Codec) -> None:
        publication = Publish("t", b"x" * 200, 1, "p", 1, 1)
        assert codec.decode_client(codec.encode(publication)) == [publication]

    def test_large_frame_with_other_messages_closes_undecoded(self, codec: Codec) -> None:
        """A frame over the limit of ordinary frames that is not a single publication is refused before it is
        decoded, and closes the connection: from 64 MiB of short topic requests a decoder would make gigabytes of
        objects. A broker's long frame is decoded."""
        subscribe = Subscribe(1, [TopicRequest("t")] * 100)
        for data in (codec.encode(subscribe), codec.encode_all([Publish("t", b"x" * 60)] * 2), b" " * 101):
            error = refusal(codec, data)
            assert (error.code, error.closes) == (BAD_MESSAGE, True)
            assert error.text == f"a frame of {len(data)} bytes: a frame over 100 bytes must be a single publication"
        assert codec.decode_broker(codec.encode(m.Unsubscribed(1, ["t" * 200])))

    def test_large_bad_publication_is_refused_without_diagnosis(
        self, codec: Codec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(diagnosis, "read_all", None)  # no message by message
        error = refusal(codec, codec.encode(Publish("t", b"x" * 200, 1, "p", 1, 7)))
        assert (error.code, error.closes) == (BAD_MESSAGE, False)
        assert error.text.endswith(" bytes: mark: expected 1 to 1: the lowest unanswered id, at most `id`")
        error = refusal(codec, codec.encode(Publish("t", b"x" * 200, 7)))
        assert (error.code, error.closes) == (BAD_MESSAGE, False)
        assert "Expected `int` <= 1" in error.text
        broken = codec.encode(m.Unsubscribed(1, ["t" * 200]))[:-5]
        assert refusal(codec, broken, "broker").closes


def test_resume_position_is_text_in_json() -> None:
    request = Subscribe(1, [TopicRequest("t", Position(3, 2**53 + 1)), TopicRequest("u")])
    text = b'{"op":"subscribe","request":1,"topics":[{"topic":"t","after":"3:9007199254740993"},{"topic":"u"}]}'
    assert JSON.encode(request) == text
