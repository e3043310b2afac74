"""The server list: canonical URLs, weights, blacklist, rounds, backoff, and lists of servers that brokers send."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from migratory_client.core.servers import ServerPool, normalise_url, parse_servers
from migratory_client.core.settings import DEFAULTS
from migratory_protocol.messages import Server


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("ws://a:8800/ws", "ws://a:8800/ws"),
        ("  ws://a:8800/ws/\n", "ws://a:8800/ws"),
        ("WS://A.Example:8800/Ws", "ws://a.example:8800/Ws"),
        ("ws://a:80/ws", "ws://a/ws"),
        ("wss://a:443", "wss://a"),
        ("wss://[::1]:8443/ws", "wss://[::1]:8443/ws"),
        ("ws://a/ws/?x=1", "ws://a/ws?x=1"),
    ],
)
def test_normalise_url_returns_the_canonical_form(text: str, url: str) -> None:
    assert normalise_url(text) == url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ws://:0", "a host"),
        ("ws://a:0", "port from 1 to 65535"),
        ("ws://a:70000", "out of range"),
        ("ws://a:port", "Port could not be cast"),
        ("http://a", "begins with ws:// or wss://"),
        ("a:8800", "begins with ws:// or wss:// is needed, such as ws://a:8800/ws"),
        ("https://a/x", "is needed, such as wss://a/ws"),
        ("two words", "begins with ws:// or wss:// is needed"),
        ("", "begins with ws:// or wss://"),
        ("ws://[::1", "Invalid IPv6"),
        ("ws://user@a", "a user name"),
        ("ws://a/#x", "fragment"),
        ("ws://a/w s", "space"),
    ],
)
def test_malformed_server_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="server ") as caught:
        normalise_url(text)
    assert reason in str(caught.value)


def test_parsing_keeps_the_order_and_the_first_weight_and_reports_each_problem_once() -> None:
    servers, problems = parse_servers([Server("ws://b", 7), "ws://a/", "ws://b", "ws://:0", "ws://:0", " ws://a"])
    assert servers == (Server("ws://b", 7), Server("ws://a", 100))
    assert len(problems) == 1
    assert "ws://:0" in problems[0]


def make(*servers: Server | str) -> ServerPool:
    return ServerPool(parse_servers(servers)[0], DEFAULTS)


def test_picks_follow_the_weights() -> None:
    chance = random.Random(3)
    counts = Counter(make(Server("ws://a", 300), Server("ws://b", 100)).pick(0.0, chance.random) for _ in range(4000))
    assert 2850 < counts["ws://a"] < 3150


def test_weight_zero_is_never_picked_even_when_nothing_else_is_left() -> None:
    servers = make("ws://a", Server("ws://b", 0))
    assert {servers.pick(0.0, lambda: 0.999) for _ in range(5)} == {"ws://a"}
    assert servers.pick(0.0, lambda: 0.5, exclude="ws://a") is None


def test_pick_tolerates_rounding_at_the_end_of_the_range() -> None:
    assert make("ws://a", "ws://b").pick(0.0, lambda: 1.0) == "ws://b"


def test_failed_server_is_avoided_for_the_blacklist_period() -> None:
    servers = make("ws://a", "ws://b")
    servers.avoid("ws://a", 0.0)
    assert servers.pick(1.0, lambda: 0.0) == "ws://b"
    servers.reset_rounds()
    assert servers.pick(59.9, lambda: 0.0) == "ws://b"
    servers.reset_rounds()
    assert servers.pick(60.0, lambda: 0.0) == "ws://a"


def test_new_round_starts_when_all_servers_are_blacklisted() -> None:
    servers = make("ws://a", "ws://b")
    for url in ("ws://a", "ws://b"):
        servers.avoid(url, 0.0)
    assert servers.rounds == 0
    assert servers.pick(1.0, lambda: 0.0) == "ws://a"
    assert servers.rounds == 1
    assert servers.pick(1.0, lambda: 0.0) == "ws://b"
    assert servers.rounds == 1


def test_learned_servers_come_before_configured_ones() -> None:
    servers = make("ws://given")
    assert servers.learn([Server("ws://x"), Server("ws://y")], "ws://a") == []
    picked = [servers.pick(0.0, lambda: 0.0) for _ in range(3)]
    assert picked == ["ws://x", "ws://y", "ws://given"]
    assert servers.rounds == 0


def test_learned_list_without_a_valid_server_is_ignored_and_reported_once() -> None:
    servers = make("ws://a")
    assert servers.learn([], "ws://a") == []
    assert len(servers.learn([Server("ws://:0")], "ws://a")) == 1
    assert servers.learn([Server("ws://:0")], "ws://a") == []
    assert servers.learned == ()


def test_list_that_came_over_tls_leads_to_no_server_without() -> None:
    servers = make("wss://a", "ws://b")
    problems = servers.learn([Server("ws://x"), Server("wss://y")], "wss://a/ws")
    assert problems == ["server 'ws://x' is without TLS, and its list came over TLS"]
    assert [server.url for server in servers.learned] == ["wss://y"]
    assert servers.learn([Server("ws://x")], "wss://a/ws") == []  # reported before
    assert [server.url for server in servers.learned] == ["wss://y"]
    assert servers.learn([Server("ws://x")], "ws://b/ws") == []
    assert [server.url for server in servers.learned] == ["ws://x"]


def test_reported_problems_are_stored_up_to_a_limit() -> None:
    servers = make("ws://a")
    for number in range(300):
        servers.learn([Server(f"nonsense-{number}")], "ws://a")
    assert len(servers._reported) == 100


def test_blacklist_forgets_removed_servers() -> None:
    servers = make("ws://a")
    for number in range(50):
        servers.learn([Server(f"ws://gone-{number}")], "ws://a")
        servers.avoid(f"ws://gone-{number}", 0.0)
    assert len(servers._blacklist) <= 2


def test_backoff_has_full_jitter_and_a_cap() -> None:
    servers = make("ws://a")
    assert servers.backoff(0.0) == 0.0
    assert servers.backoff(0.999) < 1.0
    bounds = []
    for _ in range(12):
        bounds.append(servers.backoff(1.0))
        servers.rounds += 1
    assert bounds == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30]
    servers.rounds = 10_000
    assert servers.backoff(1.0, penalty=10_000) == 30
    servers.rounds = 0
    assert servers.backoff(1.0, penalty=2) == 4


def test_two_rounds_fit_into_the_backoff_cap() -> None:
    servers = make("ws://a", "ws://b", "ws://c", Server("ws://d", 0))
    servers.rounds = 20
    assert servers.backoff(1.0) == 30 / 5
    servers = make(*(f"ws://h{number}" for number in range(2000)))
    servers.rounds = 20
    assert servers.backoff(1.0) == 1
