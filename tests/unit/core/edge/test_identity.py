"""Identities at an edge: which tokens may connect, subscribe, resume and publish, and what ends when an identity
changes, expires or is revoked. Also keys that are fetched, and logs and counts of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.events import Credentials
from migratory_broker.core.edge.identity import CONNECT_COST, MAX_MISSING_KEYS
from migratory_broker.core.logic.events import Note, Observe, PublishRequest, Tick
from migratory_broker.core.security.authorizer import Authorizer, ClientAccess, SecurityConfig
from migratory_broker.core.security.rules import Operation, Rule
from migratory_broker.core.security.tokens import KeySource, TokenConfig
from migratory_protocol import frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Ack,
    Connect,
    Error,
    Message,
    Nack,
    Publish,
    Subscribe,
    Subscribed,
    TokenExpiring,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, Bench, Reader, publication, publications, receipts
from migratory_testing.tokens import SECRET, key_set, public_jwk, sign

WALL = 1_800_000_000.0
"""The wall clock at the start of a bench, whose own clock begins at 1000."""

RULES = (
    Rule(("public/**",), ("subscribe",), anonymous=True),
    Rule(("quotes/**",), ("subscribe", "history", "publish"), claims={"role": ("trader",)}),
    Rule(("quotes/**",), ("subscribe",), claims={"role": ("reader",)}),
)


def token(sub: str = "ann", role: str = "trader", seconds: float = 300.0, **claims: Any) -> str:
    claims = {"sub": sub, "role": role, "aud": "migratory", "exp": WALL + seconds, **claims}
    return sign({name: value for name, value in claims.items() if value is not None})


def bench(*, anonymous: bool = False, rules: tuple[Rule, ...] = RULES, **tokens: Any) -> Bench:
    config = TokenConfig((KeySource(("HS256",)),), audience="migratory", leeway=0.0, **tokens)
    made = Bench(authorizer=Authorizer(SecurityConfig(config, rules, anonymous)))
    made.step(Credentials((SECRET.encode(),)))
    made.step(Tick(WALL))
    return made


def connected(on: Bench, credential: str | None) -> Reader:
    reader = on.open()
    reader.send(Connect(client="c", token=credential))
    assert len(reader.take(Welcome)) == 1
    return reader


def outcome(reader: Reader) -> str:
    """Drop the received messages, and return them as words: a receipt or code, "ack", or "message" and its number. If
    the connection was closed, return the code of its error and the close code instead."""
    if reader.close_code is not None:
        (error,) = reader.take(Error)
        assert error.closes
        return f"{error.code} {reader.close_code}"
    received, reader.received = reader.received, []
    words = []
    for message in received:
        match message:
            case Welcome():
                words.append("welcome")
            case Subscribed():
                words += [receipt.receipt or receipt.code for receipt in message.topics]
            case Message():
                words.append(f"message {message.position.sequence}")
            case Nack() | Error():
                words.append(message.code)
            case Ack():
                words.append("ack")
    return " ".join(words)


# ---- the matrix: every operation by every identity -------------------------------------------------------------

IDENTITIES: dict[str, Callable[[], str | None]] = {
    "none": lambda: None,
    "wrong": lambda: token() + "x",
    "expired": lambda: token(seconds=-1.0),
    "other audience": lambda: token(aud="elsewhere"),
    "no expiry": lambda: token(exp=None),
    "too few rights": lambda: token(role="reader"),
    "right": token,
}

DENIED = "unauthenticated 4001"
EXPIRED = "token_expired 4002"

CONNECT = {
    "none": DENIED,
    "wrong": DENIED,
    "expired": EXPIRED,
    "other audience": DENIED,
    "no expiry": DENIED,
    "too few rights": "welcome",
    "right": "welcome",
}
"""The answer to `connect` by identity: the same for the first one and for one on an open connection. A refusal closes
the connection, so that nothing else can be asked for."""

OPERATIONS: dict[str, tuple[str, str]] = {
    "subscribe": ("complete", "complete"),
    "resume": ("reset", "complete message 6 message 7"),
    "resume with snapshot": ("reset", "complete message 6 message 7"),
    "snapshot": ("not_allowed", "complete message 7"),
    "publish qos 0": ("not_allowed", ""),
    "publish qos 1": ("not_allowed", "ack"),
}
"""The answers to operations on a topic with 7 publications: for too few rights, and for the right ones."""


def operate(on: Bench, reader: Reader, operation: str) -> str:
    position = Position(1, 7)
    match operation:
        case "subscribe":
            reader.send(Subscribe(1, [TopicRequest("quotes/eur")]))
        case "resume":
            reader.send(Subscribe(1, [TopicRequest("quotes/eur", Position(1, 5))]))
        case "resume with snapshot":
            reader.send(Subscribe(1, [TopicRequest("quotes/eur", Position(1, 5), True)]))
        case "snapshot":
            reader.send(Subscribe(1, [TopicRequest("quotes/eur", None, True)]))
        case "publish qos 0":
            reader.send(Publish("quotes/eur", b"x"))
        case "publish qos 1":
            reader.send(Publish("quotes/eur", b"x", 1, "p", 1, 1))
    for request in on.requests:  # the logic's answers, as it gives them to a request that the edge lets through
        if isinstance(request, PublishRequest):
            if request.publications[0].qos:
                publisher = request.publications[0].publisher
                on.answer(reader, Ack("quotes/eur", publisher, 1, Position(1, 8)))
        elif request.after is not None:
            on.attached(request, position, publications=publications(6, 7))
        else:
            on.attached(request, position, publications=publications(7, 7) if request.snapshot else ())
    on.requests.clear()
    return outcome(reader)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_connect_and_refresh(identity: str) -> None:
    on = bench()
    reader = on.open()
    reader.send(Connect(token=IDENTITIES[identity]()))
    assert outcome(reader) == CONNECT[identity]
    reader = connected(on, token())
    reader.subscribe_live("quotes/eur")
    reader.received.clear()
    reader.send(Connect(token=IDENTITIES[identity]()))
    assert outcome(reader) == CONNECT[identity]
    delivered = on.fanout("quotes/eur", publication(1))
    assert bool(delivered) is (CONNECT[identity] == "welcome")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations(operation: str) -> None:
    few, right = OPERATIONS[operation]
    for identity, expected in (("too few rights", few), ("right", right)):
        on = bench()
        assert operate(on, connected(on, IDENTITIES[identity]()), operation) == expected
    on = bench()
    reader = connected(on, token())
    reader.send(Connect(token=token(role="reader")))
    assert outcome(reader) == "welcome"
    assert operate(on, reader, operation) == few, "refreshed to fewer rights"
    on = bench()
    reader = connected(on, token(role="nothing"))
    assert operate(on, reader, operation) == "not_allowed", "denied by default"


def test_refused_operations_are_counted_once_a_tick() -> None:
    on = bench()
    reader = connected(on, token(role="nothing"))
    reader.send(Publish("quotes/eur", b""), Publish("quotes/eur", b""))
    reader.send(Subscribe(1, [TopicRequest("quotes/eur")]))
    assert on.observed == []
    for _ in range(2):
        on.step(Tick(WALL))
    assert [(o.metric, o.value, o.label) for o in on.observed] == [
        ("migratory_not_allowed_total", 2.0, "publish"),
        ("migratory_not_allowed_total", 1.0, "subscribe"),
    ]


# ---- identity and lifetime -------------------------------------------------------------------------------------


def test_without_authorizer_everything_is_allowed_and_names_are_unchanged() -> None:
    on = Bench()
    reader = on.open(token="anything")
    reader.send(Connect(token="anything else"), Publish("t", b"", 1, "p q", 1, 1))
    assert on.published()[0].publisher == "p q"
    assert reader.close_code is None


def test_token_of_the_request_counts_for_the_first_connect_only() -> None:
    on = bench()
    reader = on.open(token=token())
    reader.send(Connect())
    assert outcome(reader) == "welcome"
    reader.send(Connect())
    assert outcome(reader) == DENIED
    reader = on.open(token="wrong")
    reader.send(Connect(token=token()))
    assert outcome(reader) == "welcome", "the message's own token counts"


def test_anonymous_clients_have_the_rules_for_them_only() -> None:
    on = bench(anonymous=True)
    reader = connected(on, None)
    reader.send(Subscribe(1, [TopicRequest("public/a"), TopicRequest("quotes/eur")]))
    assert [r.code for m in reader.take(Subscribed) for r in m.topics] == ["not_allowed"]
    assert len(on.requests) == 1
    reader.send(Connect(token=token()))
    assert outcome(reader) == "welcome"
    without_tokens = Bench(authorizer=Authorizer(SecurityConfig(None, RULES, True)))
    without_tokens.step(Credentials())
    reader = without_tokens.open()
    reader.send(Connect(token="x"))
    assert outcome(reader) == DENIED


def test_client_is_told_before_its_token_expires_and_closed_after() -> None:
    on = bench()
    reader = connected(on, token(seconds=300.0))
    reader.subscribe_live("quotes/eur")
    reader.received.clear()
    for _ in range(23):
        on.wait(10.0)
        reader.send_bytes(frames.pong_frame(b"", MASK))
    assert reader.take(TokenExpiring) == []
    on.wait(10.2)
    (notice,) = reader.take(TokenExpiring)
    assert 59 < notice.seconds <= 60
    for _ in range(5):
        on.wait(10.0)
        reader.send_bytes(frames.pong_frame(b"", MASK))
    assert reader.take(TokenExpiring) == [], "once"
    assert len(on.fanout("quotes/eur", publication(1))) == 1
    on.wait(10.2)
    assert reader.close_code == CloseCode.TOKEN_EXPIRED
    assert on.edge.closed == {"token_expired": 1}
    assert on.fanout("quotes/eur", publication(2)) == []


def test_short_token_is_announced_at_three_quarters_of_its_time() -> None:
    on = bench()
    reader = connected(on, token(seconds=4.0))
    on.wait(2.9)
    assert reader.take(TokenExpiring) == []
    on.wait(0.3)
    assert len(reader.take(TokenExpiring)) == 1
    on.wait(1.0)
    assert reader.close_code == CloseCode.TOKEN_EXPIRED


def test_refresh_extends_the_time() -> None:
    on = bench()
    reader = connected(on, token(seconds=30.0))
    on.wait(25.0)
    assert len(reader.take(TokenExpiring)) == 1
    reader.send(Connect(token=token(seconds=60.0)))
    assert outcome(reader) == "welcome"
    on.wait(10.0)
    assert reader.close_code is None
    assert on.edge.clients == 1
    reader.send_bytes(frames.pong_frame(b"", MASK))
    on.wait(25.4)
    assert reader.close_code == CloseCode.TOKEN_EXPIRED


def test_token_without_expiry_has_no_timer() -> None:
    on = bench(allow_no_expiry=True)
    reader = connected(on, token(exp=None))
    for _ in range(10):
        on.wait(10.0)
        reader.send_bytes(frames.pong_frame(b"", MASK))
    assert reader.close_code is None
    assert reader.take(TokenExpiring) == []


def test_notice_may_not_be_above_the_clock() -> None:
    with pytest.raises(ValueError, match="expiry_notice"):
        EdgeConfig(expiry_notice=0.0)


# ---- a change of identity --------------------------------------------------------------------------------------


def test_change_of_identity_ends_what_the_new_one_may_not_have() -> None:
    """A `connect` with another identity ends the subscriptions that it may not have, with `not_allowed` for each before
    the welcome; others continue. Regression: all continued."""
    on = bench()
    reader = connected(on, token())
    for topic in ("quotes/a", "public/b", "quotes/c"):
        reader.subscribe_live(topic)
    reader.received.clear()
    reader.send(Connect(token=token("bob", role="none")))
    ended, welcome = reader.received
    assert isinstance(welcome, Welcome)
    assert isinstance(ended, Subscribed)
    assert receipts([ended]) == [(0, None, 0, 0), (0, None, 0, 0)]
    assert [(r.topic, r.code) for r in ended.topics] == [("quotes/a", "not_allowed"), ("quotes/c", "not_allowed")]
    assert [d.topic for d in on.detached] == ["quotes/a", "quotes/c"]
    assert on.fanout("quotes/a", publication(1)) == []
    assert len(on.fanout("public/b", publication(1))) == 1
    reader.send(Unsubscribe(2, ["quotes/a", "public/b"]))
    assert len(reader.take(Unsubscribed)) == 1
    assert on.edge.subscriptions == 0


def test_change_of_identity_answers_pending_requests() -> None:
    on = bench()
    reader = connected(on, token())
    waiting, allowed = reader.subscribe("quotes/a", request=5), reader.subscribe("public/b", request=6)
    reader.send(Connect(token=token(role="none")))
    assert outcome(reader) == "not_allowed welcome"
    on.attached(waiting, Position(1, 3), publications=publications(3, 3))
    assert reader.received == []
    on.attached(allowed, Position(1, 0))
    assert receipts(reader.take(Subscribed)) == [(6, "complete", 0, 0)]


@pytest.mark.parametrize("answered", [False, True])
def test_replay_ends_when_the_new_identity_may_not_read_the_history(answered: bool) -> None:
    on = bench()
    reader = connected(on, token())
    attach = reader.subscribe("quotes/a", (1, 1), request=5)
    live = reader.subscribe("quotes/b", request=6)
    if answered:
        on.attached(attach, Position(1, 9), publications=publications(2, 3), done=False)
        reader.received.clear()
    reader.send(Connect(token=token(role="reader")))
    ended = [m for m in reader.received if isinstance(m, Subscribed)]
    assert receipts(ended) == [(0 if answered else 5, None, 0, 0)]
    reader.received.clear()
    on.attached(live, Position(1, 0))
    assert receipts(reader.take(Subscribed)) == [(6, "complete", 0, 0)]


def test_many_ended_subscriptions_are_answered_in_parts() -> None:
    on = bench()
    reader = connected(on, token())
    for number in range(600):
        reader.subscribe_live(f"quotes/{number}")
    reader.received.clear()
    reader.send(Connect(token=token(role="none")))
    assert [len(m.topics) for m in reader.take(Subscribed)] == [256, 256, 88]


# ---- publishers ------------------------------------------------------------------------------------------------


def test_publishers_of_two_subjects_with_one_name_are_two_publishers() -> None:
    on = bench()
    ann, bob = connected(on, token("ann")), connected(on, token("bob"))
    for reader in (ann, bob):
        reader.send(Publish("quotes/a", b"x", 1, "p", 1, 1))
    names = [publication.publisher for publication in on.published()]
    assert len(set(names)) == 2
    on.answer(ann, Ack("quotes/a", names[0], 1, Position(1, 1)), Nack("quotes/a", names[0], 2, "gap"))
    assert [(m.publisher, m.id) for m in ann.received if isinstance(m, Ack | Nack)] == [("p", 1), ("p", 2)]
    forged = names[0]
    ann.received.clear()
    bob.send(Publish("quotes/a", b"x", 1, forged, 2, 2))
    assert bob.take(Nack)[0].code == "bad_message"
    assert on.requests == []


def test_flood_of_refreshes_waits_for_the_turns_of_others() -> None:
    on = bench()
    reader = connected(on, token())
    on.defer_more = True
    reader.send(*[Connect(token=token())] * 200)
    # a message and a frame each
    assert len(reader.take(Welcome)) == 1 + EdgeConfig().messages_per_read // (CONNECT_COST + 2)
    assert len(on.more) == 1


# ---- keys and revocations --------------------------------------------------------------------------------------


def remote_bench() -> Bench:
    config = TokenConfig((KeySource(("ES256",), remote=True),), audience="migratory")
    on = Bench(authorizer=Authorizer(SecurityConfig(config, RULES)))
    on.step(Tick(WALL))
    return on


def es256(name: str) -> str:
    claims = {"sub": "ann", "role": "trader", "aud": "migratory", "exp": WALL + 300}
    return sign(claims, "ES256", name)


def attempt(on: Bench, credential: str) -> str:
    reader = on.open()
    reader.send(Connect(token=credential))
    return outcome(reader)


def test_unknown_key_is_fetched_once_and_the_client_asked_to_retry() -> None:
    on = remote_bench()
    assert [attempt(on, es256("a")) for _ in range(3)] == ["retry 1013"] * 3
    assert on.keys_needed == 1
    on.wait(0.1)
    fetched = Credentials((key_set(public_jwk("ES256", "a")),), fetched=True)
    on.step(fetched)
    assert attempt(on, es256("a")) == "welcome"
    assert attempt(on, es256("b")) == "retry 1013", "it may have been published since"
    assert on.keys_needed == 2
    on.wait(0.1)
    on.step(Credentials(fetched.documents))  # the fetch failed: the last keys
    assert attempt(on, es256("b")) == "retry 1013"
    assert on.keys_needed == 3
    on.wait(0.1)
    on.step(fetched)
    assert [attempt(on, es256("b")) for _ in range(2)] == [DENIED] * 2, "still unknown after a fetch"
    assert on.keys_needed == 3
    on.wait(10.1)
    assert attempt(on, es256("b")) == "retry 1013", "the fetch was long ago"
    assert on.keys_needed == 4


def test_unknown_keys_are_remembered_within_bounds() -> None:
    on = remote_bench()
    claims = {"sub": "ann", "exp": WALL + 300}
    tokens = [sign(claims, "ES256", "a", {"kid": f"invented {number}"}) for number in range(MAX_MISSING_KEYS + 1)]
    assert {attempt(on, credential) for credential in tokens} == {"retry 1013"}
    on.wait(0.1)
    on.step(Credentials((key_set(public_jwk("ES256", "a")),), fetched=True))
    assert attempt(on, tokens[-1]) == DENIED
    assert attempt(on, tokens[0]) == "retry 1013", "forgotten"


@pytest.mark.parametrize(
    ("revoked", "closes"),
    [
        (b'{"tokens": ["7"]}', True),
        (b'{"tokens": ["8"]}', False),
        (b'{"subjects": {"ann": 1799999999}}', True),
        (b'{"subjects": {"ann": 1799999000}}', False),
        (b'{"subjects": {"bob": 1899999999}}', False),
        (b"", False),
    ],
)
def test_revoked_client_is_closed_at_once(revoked: bytes, closes: bool) -> None:
    on = bench(anonymous=True)
    reader = connected(on, token(jti="7", iat=WALL - 100))
    reader.subscribe_live("quotes/a")
    reader.received.clear()
    connected(on, None)
    on.step(Credentials((SECRET.encode(),), revoked))
    assert (reader.close_code == CloseCode.UNAUTHENTICATED) is closes
    assert on.edge.closed == ({"revoked": 1} if closes else {})
    assert bool(on.fanout("quotes/a", publication(1))) is not closes
    assert attempt(on, token(jti="7", iat=WALL - 100)) == (DENIED if closes else "welcome")


def test_token_that_does_not_say_when_it_was_issued_is_revoked_with_its_subject() -> None:
    on = bench()
    on.step(Credentials((SECRET.encode(),), b'{"subjects": {"ann": 1}}'))
    assert attempt(on, token()) == DENIED
    assert attempt(on, token("bob")) == "welcome"


# ---- cost ------------------------------------------------------------------------------------------------------


def test_a_publication_costs_one_decision_and_a_delivery_none(monkeypatch: pytest.MonkeyPatch) -> None:
    on = bench()
    readers = [connected(on, token(role="reader")) for _ in range(5)]
    for reader in readers:
        reader.subscribe_live("quotes/a")
    publisher = connected(on, token())
    decisions = []
    allows = ClientAccess.allows

    def counted(access: ClientAccess, operation: Operation, topic: str) -> bool:
        decisions.append((operation, topic))
        return allows(access, operation, topic)

    monkeypatch.setattr(ClientAccess, "allows", counted)
    for number in (1, 2, 3):
        publisher.send(Publish("quotes/a", b"", 1, "p", number, 1))
        on.fanout("quotes/a", publication(number))
    assert all(reader.sequences("quotes/a") == [1, 2, 3] for reader in readers)
    assert decisions == [("publish", "quotes/a")] * 3


# ---- logs ------------------------------------------------------------------------------------------------------


def test_refusals_are_logged_at_a_bounded_rate_and_without_the_token() -> None:
    on = bench()
    for _ in range(5):
        attempt(on, token() + "x")
    on.wait(1.1)
    secret = token(seconds=-1.0)
    attempt(on, secret)
    notes = [note for note in on.notes if isinstance(note, Note) and note.event == "client_not_authenticated"]
    assert [(note.fields["reason"], note.fields["others"]) for note in notes] == [
        ("the token's signature is wrong", 0),
        ("the token has expired; connect with a new one", 4),
    ]
    assert secret not in repr(notes)
    assert all(isinstance(observed, Observe) for observed in on.observed)


def test_refused_operations_are_logged_with_client_subject_and_topic() -> None:
    on = bench()
    reader = connected(on, token(role="reader"))
    on.notes.clear()
    for operation in ("publish qos 0", "publish qos 0", "snapshot"):
        operate(on, reader, operation)
    on.wait(1.1)
    operate(on, reader, "snapshot")
    line = {"client": "c", "connection": 1, "subject": "ann", "topic": "quotes/eur"}
    assert [(note.event, note.fields) for note in on.notes if isinstance(note, Note)] == [
        ("client_not_allowed", {**line, "operation": "publish", "others": 0}),
        ("client_not_allowed", {**line, "operation": "history", "others": 2}),
    ]


def test_revoked_clients_are_logged_with_their_subject() -> None:
    on = bench()
    for _ in range(3):
        connected(on, token(iat=WALL - 100))
    on.step(Credentials((SECRET.encode(),), b'{"subjects": {"ann": 1799999999}}'))
    assert [(note.event, note.fields) for note in on.notes if isinstance(note, Note)] == [
        ("client_revoked", {"client": "c", "connection": 1, "subject": "ann", "others": 0}),
    ]
