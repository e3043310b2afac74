"""The configuration file: its fields and defaults reach the broker, and errors name the field's path, its value and
what is allowed. Also the options that identify a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_broker.core.edge.config import ConflationRule
from migratory_broker.runtime.clients.service import client_byte_limits, edge_config, unhandled_bytes
from migratory_broker.runtime.config import BrokerConfig, Identity, check_identity, load, parse, split_address
from migratory_broker.runtime.errors import EXIT_CONFIG, ConfigError
from msgspec.inspect import DictType, StructType, UnionType, VarTupleType, type_info

GOOD: dict[str, Any] = {
    "cluster": "quotes",
    "brokers": ["quotes-broker-0", "quotes-broker-1", "quotes-broker-2"],
    "zookeeper": {"servers": "127.0.0.1:2181", "sessionTimeout": 4.0},
    "topics": {
        "groups": 100,
        "maxTopics": 1000,
        "cache": {"messagesPerTopic": 300, "minAge": 60.0, "maxAge": 600.0, "maxBytes": 268435456},
    },
    "limits": {
        "connectsPerSecond": 5000,
        "maxPayload": 1048576,
        "queuePerClient": 1048576,
        "queueTotal": 268435456,
        "subscriptionsPerClient": 1000,
        "topicsPerClient": 10000,
        "heartbeat": 15.0,
        "handshake": 10.0,
    },
    "delivery": {
        "minCopies": 2,
        "duplicateWindow": 120.0,
        "onHistoryLoss": "reset",
        "batching": {"maxDelay": 0.0, "maxBytes": 16384},
        "conflation": [],
    },
    "weights": {"quotes-broker-2": 50},
    "drain": {"period": 30.0},
    "origins": {"allowed": ["https://app.example.com", "https://*.example.org"], "hosts": ["*"], "withoutOrigin": True},
    "compression": False,
    "console": True,
    "ioProcesses": 0,
}


def parsed(*path_and_value: Any) -> BrokerConfig:
    """Return the parsed valid configuration with one value changed: `parsed("topics", "groups", 7)`. Raise
    ConfigError if it is invalid then."""
    raw = json.loads(json.dumps(GOOD))
    if path_and_value:
        *path, last, value = path_and_value
        section = raw
        for name in path:
            section = section[name]
        section[last] = value
    return parse(json.dumps(raw).encode())


def test_a_broker_accepts_every_configuration_that_a_cluster_allows() -> None:
    """A broker accepts a cache's age of up to a week, as a cluster file does, and refuses a longer one."""
    assert parsed("topics", "cache", "maxAge", 604_800.0).topics.cache.max_age == 604_800.0
    with pytest.raises(ConfigError, match=r"topics\.cache\.maxAge: 604801\.0; allowed is float <= 604800"):
        parsed("topics", "cache", "maxAge", 604_801.0)


def test_batching_and_conflation_reach_the_edge() -> None:
    raw = json.loads(json.dumps(GOOD))
    raw["delivery"]["batching"] = {"maxDelay": 0.1, "maxBytes": 4096}
    raw["delivery"]["conflation"] = [{"topics": "ticks/**", "interval": 0.25}]
    edge = edge_config(parse(json.dumps(raw).encode()), "quotes-broker-0", 1)
    assert (edge.batch_delay, edge.batch_bytes) == (0.1, 4096)
    assert edge.conflation == (ConflationRule("ticks/**", 0.25),)
    for path, value in (
        (("delivery", "batching", "maxDelay"), 61.0),
        (("delivery", "batching", "maxBytes"), 0),
        (("delivery", "conflation"), [{"topics": "", "interval": 1.0}]),
        (("delivery", "conflation"), [{"topics": "t", "interval": 0}]),
        (("delivery", "conflation"), [{"topics": "t"}]),
        (("delivery", "batching", "delay"), 1),
    ):
        with pytest.raises(ConfigError, match=r"delivery\.(batching|conflation)"):
            parsed(*path, value)


@pytest.mark.parametrize("processes", [0, 1, 16, 64])
@pytest.mark.parametrize("payload", [1_048_576, 67_108_864])
def test_every_edge_has_room_for_messages_that_are_half_received(processes: int, payload: int) -> None:
    """Each I/O process may hold at least four messages of the largest size that are half received, however many
    processes share the limit. Regression: with many processes the share was less than a message, so that its sender
    was closed."""
    raw = json.loads(json.dumps(GOOD))
    raw["ioProcesses"] = processes
    raw["limits"] |= {"maxPayload": payload, "queuePerClient": payload, "queueTotal": 64 * payload}
    edge = edge_config(parse(json.dumps(raw).encode()), "quotes-broker-0", 1)
    assert edge.input_total >= 4 * edge.max_message
    assert edge.input_total * max(1, processes) >= 268_435_456 * 3 // 4


def test_limits_of_memory_are_divided_among_processes() -> None:
    raw = json.loads(json.dumps(GOOD))
    raw["ioProcesses"] = 4
    raw["limits"] |= {"inputTotal": 2**30, "subscriptionsTotal": 2**20}
    config = parse(json.dumps(raw).encode())
    edge = edge_config(config, "quotes-broker-0", 1)
    assert (edge.input_total + unhandled_bytes(config), edge.subscriptions_total) == (2**28, 2**18)
    assert unhandled_bytes(config) == 2**26
    limits = client_byte_limits(config)
    assert (limits["input"], limits["handshakes"], limits["subscriptions"]) == (2**30, 2**29, 2**20)


def test_exempt_addresses_are_networks() -> None:
    assert parsed("limits", "addresses", {"exempt": ["10.0.0.0/8", "2001:db8::1"]}).limits.addresses.connections == 0
    with pytest.raises(ConfigError, match=r"limits\.addresses\.exempt: '10\.0\.0\.0/40' .*; allowed are networks"):
        parsed("limits", "addresses", {"exempt": ["10.0.0.0/40"]})
    with pytest.raises(ConfigError, match=r"limits\.addresses\.network: unknown field; allowed are .*exempt"):
        parsed("limits", "addresses", {"network": []})


def test_every_documented_field_is_read() -> None:
    config = parsed()
    assert config.cluster == "quotes"
    assert config.topics.cache.max_bytes == 268435456
    assert config.limits.connects_per_second == 5000
    assert config.delivery.on_history_loss == "reset"
    assert config.weights == {"quotes-broker-2": 50}
    assert config.origins.without_origin


def test_omitted_fields_have_defaults() -> None:
    config = parse(json.dumps({key: GOOD[key] for key in ("cluster", "brokers", "zookeeper")}).encode())
    assert config.topics.groups == 100
    assert config.delivery.min_copies == 2
    assert config.drain.period == 30.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("topics", "groups", "many"), ["topics.groups", '"many"', "int"]),
        (("topics", "groups", 0), ["topics.groups", "0", ">= 1"]),
        (("topics", "cache", "maxByte", 5), ["topics.cache.maxByte", "unknown field", "maxBytes"]),
        (("topics", "max_topics", 5), ["topics.max_topics", "unknown field", "maxTopics"]),
        (("shards", 5), ["shards", "unknown field", "brokers"]),
        (("brokers", ["a b"]), ["brokers[0]", '"a b"']),
        (("brokers", ["a", "a", "b"]), ["brokers", "twice"]),
        (("brokers", ["quotes-broker-2", "b"]), ["delivery.minCopies", "3 or more", "2"]),
        (("leaving", ["other"]), ["leaving", "other", "quotes-broker-0"]),
        (("leaving", ["quotes-broker-0"]), ["delivery.minCopies", "3 or more", "2 that are not leaving"]),
        (("weights", {"other": 1}), ["weights.other", "no such broker", "quotes-broker-0"]),
        (("weights", {"quotes-broker-0": -1}), ["weights", "-1", ">= 0"]),
        (("delivery", "onHistoryLoss", "wait"), ["delivery.onHistoryLoss", '"wait"']),
        (("delivery", "minCopies", 2.5), ["delivery.minCopies", "2.5", "int"]),
        (("zookeeper", {}), ["zookeeper.servers", "missing"]),
        (("zookeeper", "path", "market"), ["zookeeper.path", "market"]),
        (("zookeeper", "path", "/a//b"), ["zookeeper.path", "/a//b"]),
        (
            ("zookeeper", {"servers": "a:1", "credentials": {"user": "a:b", "passwordFile": "/a"}}),
            ["zookeeper.credentials.user", "a:b"],
        ),
        (("zookeeper", 7), ["zookeeper", "7", "object"]),
        (("topics", "cache", "minAge", 700.0), ["topics.cache.minAge", "700", "maxAge"]),
        (("limits", "queueTotal", 4096), ["limits.queuePerClient", "queueTotal"]),
        (("ioProcesses", 65), ["ioProcesses", "65", "<= 64"]),
        (("ioProcesses", -1), ["ioProcesses", "-1", ">= 0"]),
        (("origins", "allowed", ["app.example.com"]), ["origins", "app.example.com"]),
        (("cluster", ""), ["cluster", '""']),
        (("cluster", "a/b"), ["cluster", "a/b"]),
        (("limits", "maxPayload", 10**12), ["limits.maxPayload", "1000000000000", "<="]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(change: tuple[Any, ...], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(*change)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert refused.value.code == EXIT_CONFIG


def sections(found: Any, path: str, wrap: Callable[[Any], Any]) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Yield each section in a type of msgspec: its path, what puts its value into a configuration, and its type."""
    match found:
        case StructType():
            yield path, wrap, found.cls
            for field in found.fields:
                name = field.encode_name
                within = lambda value, name=name: wrap({name: value})  # noqa: E731
                yield from sections(field.type, f"{path}.{name}".lstrip("."), within)
        case UnionType():
            for one in found.types:
                yield from sections(one, path, wrap)
        case VarTupleType():
            yield from sections(found.item_type, f"{path}[0]", lambda value: wrap([value]))
        case DictType():
            yield from sections(found.value_type, f"{path}[...]", lambda value: wrap({"key": value}))


SECTIONS = {path: (wrap, section) for path, wrap, section in sections(type_info(BrokerConfig), "", lambda value: value)}


def test_all_sections_are_known() -> None:
    assert {"", "zookeeper.credentials", "delivery.conflation[0]", "security.rules[0]", "security.tokens.keys[0]",
            "security.tokens.static[0]", "tls.administration"} <= SECTIONS.keys()  # fmt: skip


@pytest.mark.parametrize("path", SECTIONS)
def test_an_unknown_field_of_any_section_is_named_with_the_fields_that_are_allowed(path: str) -> None:
    """Regression: in an entry of a list "allowed are none"."""
    wrap, section = SECTIONS[path]
    with pytest.raises(ConfigError) as refused:
        parse(json.dumps(wrap({"zz": 1})).encode())
    allowed = ", ".join(section.__struct_encode_fields__)
    assert str(refused.value) == f"{path}.zz: unknown field; allowed are {allowed}".lstrip(".")


def test_an_unknown_field_of_a_later_entry_is_named() -> None:
    rules = [{"topics": "a", "interval": 1}, {"topics": "a", "interval": 1, "zz": 1}]
    with pytest.raises(ConfigError, match=r"^delivery\.conflation\[1\]\.zz: .*; allowed are topics, interval$"):
        parsed("delivery", "conflation", rules)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"null"])
def test_parse_rejects_text_that_is_no_configuration(text: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(text)


def test_load_names_a_missing_or_invalid_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json.*No such file"):
        load(tmp_path / "nothing.json")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{")
    with pytest.raises(ConfigError, match=r"wrong\.json: not valid JSON"):
        load(wrong)
    wrong.write_text(json.dumps(GOOD))
    assert load(wrong) == parsed()


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        (Identity("stranger"), ["--name", "stranger", "quotes-broker-0"]),
        (Identity("quotes-broker-0", clients="8080"), ["--clients", "8080", "HOST:PORT"]),
        (Identity("quotes-broker-0", peers="h:99999"), ["--peers", "99999"]),
        (Identity("quotes-broker-0", admin="::1:80"), ["--admin", "[ADDRESS]:PORT"]),
        (Identity("quotes-broker-0", advertise_url="http://x"), ["--advertise-url", "ws://"]),
        (Identity("quotes-broker-0", revision="r" * 256), ["--revision", "256", "255"]),
        (Identity("quotes-broker-0", advertise_peer="x"), ["--advertise-peer", "HOST:PORT"]),
    ],
)
def test_check_identity_names_an_invalid_option(identity: Identity, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_identity(parsed(), identity)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_check_identity_accepts_valid_options() -> None:
    check_identity(parsed(), Identity("quotes-broker-1", advertise_url="wss://b1.example/ws", advertise_peer="b1:9"))
    assert split_address("[::1]:80", "x") == ("::1", 80)
    assert split_address(":0", "x") == ("", 0)
