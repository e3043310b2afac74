"""Rules: which topics a pattern matches, and which rules apply to an identity."""

from __future__ import annotations

import pytest
from migratory_broker.core.security.authorizer import ClientAccess
from migratory_broker.core.security.rules import BadPattern, Operation, Rule, RuleSet, TopicTree, check_rule_pattern
from migratory_broker.core.security.tokens import VerifiedToken


def matches(pattern: str, topic: str, subject: str = "") -> bool:
    tree = TopicTree()
    tree.add(pattern, 1)
    return tree.find(topic, subject, 1) == 1


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("quotes/eur", ["quotes/eur"], ["quotes", "quotes/eur/x", "quotes/usd", "Quotes/eur", "quotes/eur/"]),
        ("quotes/*", ["quotes/eur", "quotes/"], ["quotes", "quotes/eur/x", "quotes//"]),
        ("quotes/**", ["quotes/eur", "quotes/eur/x", "quotes/"], ["quotes", "quote/eur"]),
        ("**", ["a", "a/b", "", "/"], []),
        ("*", ["a", ""], ["a/b"]),
        ("*/b/*", ["a/b/c", "/b/"], ["a/b", "a/c/c", "a/b/c/d"]),
        ("a/", ["a/"], ["a", "a/b"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [topic for topic in matching if not matches(pattern, topic)] == []
    assert [topic for topic in others if matches(pattern, topic)] == []


@pytest.mark.parametrize("pattern", ["", "a*", "*a", "a/**/b", "**/a", "***", "a/b*c", "x" * 256])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern, match=r"one level"):
        check_rule_pattern(pattern)


def test_subject_is_one_literal_level() -> None:
    assert matches("users/{subject}/**", "users/ann/inbox", "ann")
    assert not matches("users/{subject}/**", "users/bob/inbox", "ann")
    assert not matches("users/{subject}/**", "users//inbox", ""), "a client without a token has no subject"
    for subject in ("*", "**", "ann/x", "{subject}"):  # a subject is no pattern
        assert not matches("users/{subject}/**", "users/bob/inbox", subject)
    assert not matches("users/{subject}/**", "users/a/b/inbox", "a/b")


def test_patterns_of_several_rules_are_found_for_each_rule() -> None:
    """Each of the patterns has a bit of its own, and the highest bit is a rule that has all of them."""
    tree = TopicTree()
    everywhere = 1 << 199
    for number, pattern in enumerate(("a/b", "a/*", "b/**", "{subject}", "*/b", "**")):
        tree.add(pattern, 1 << number)
        if pattern != "**":
            tree.add(pattern, everywhere)
    for topic, numbers in {"a/b": {0, 1, 4}, "a/c": {1}, "b/c/d": {2}, "ann": {3}, "c/b": {4}, "c": set()}.items():
        for number in range(5):
            rule = 1 << number
            assert tree.find(topic, "ann", rule) == (rule if number in numbers else 0), (topic, number)
        assert tree.find(topic, "ann", everywhere) == (everywhere if numbers else 0)
        assert tree.find(topic, "ann", 0) == 0
        assert tree.find(topic, "ann", 1 << 5) == 1 << 5
    assert tree.find("b/c", "", everywhere | 0b100) == everywhere | 0b100


RULES = RuleSet(
    [
        Rule(("public/**",), ("subscribe",), anonymous=True),
        Rule(("quotes/**",), ("subscribe", "history"), claims={"role": ("reader", "trader")}),
        Rule(("orders/{subject}",), ("publish",), subjects=("bot-*", "ann"), claims={"role": ("trader",)}),
        Rule(("status",), ("subscribe",)),
    ]
)


def reason(operation: Operation, topic: str, subject: str, claims: dict[str, object] | None) -> str:
    return ClientAccess(
        None if claims is None else VerifiedToken(subject, claims), RULES.trees, RULES.applicable(subject, claims), None
    ).reason(operation, topic)


@pytest.mark.parametrize(
    ("operation", "topic", "subject", "claims", "allowed_by"),
    [
        ("subscribe", "public/a", "", None, "spec.security.rules[0]"),
        ("subscribe", "public/a", "ann", {}, "spec.security.rules[0]"),
        ("publish", "public/a", "ann", {}, ""),
        ("subscribe", "status", "", None, ""),
        ("subscribe", "status", "ann", {}, "spec.security.rules[3]"),
        ("history", "quotes/eur", "ann", {"role": "reader"}, "spec.security.rules[1]"),
        ("history", "quotes/eur", "ann", {"role": ["x", "trader"]}, "spec.security.rules[1]"),
        ("history", "quotes/eur", "ann", {"role": "writer"}, ""),
        ("history", "quotes/eur", "ann", {"role": {"reader": True}}, ""),
        ("history", "quotes/eur", "ann", {"role": True}, ""),
        ("publish", "orders/bot-1", "bot-1", {"role": "trader"}, "spec.security.rules[2]"),
        ("publish", "orders/ann", "bot-1", {"role": "trader"}, ""),
        ("publish", "orders/bob", "bob", {"role": "trader"}, ""),
        ("publish", "orders/ann", "ann", {"role": "reader"}, ""),
    ],
)
def test_rules_apply_by_subject_and_claims(
    operation: Operation, topic: str, subject: str, claims: dict[str, object] | None, allowed_by: str
) -> None:
    assert reason(operation, topic, subject, claims) == allowed_by


def test_first_of_several_rules_is_named() -> None:
    rules = RuleSet(
        [Rule((f"topic/{number}", "all"), ("subscribe",), subjects=(f"s{number}", "x")) for number in range(200)]
    )
    for subject, first in (("s0", 0), ("s7", 7), ("s199", 199), ("x", 0)):
        access = ClientAccess(VerifiedToken(subject, {}), rules.trees, rules.applicable(subject, {}), None)
        assert access.reason("subscribe", "all") == f"spec.security.rules[{first}]"
        assert access.allows("subscribe", "topic/7") is (subject in ("s7", "x"))


def test_rule_for_clients_without_a_token_has_no_subjects() -> None:
    with pytest.raises(ValueError, match="without a token have neither"):
        Rule(("a",), ("subscribe",), subjects=("ann",), anonymous=True)
    with pytest.raises(BadPattern):
        Rule(("a*",), ("subscribe",))
