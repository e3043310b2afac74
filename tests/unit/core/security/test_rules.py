"""Rules: which topics a pattern matches, and which rules apply to an identity."""

from __future__ import annotations

import pytest
from migratory_broker.core.security.rules import BadPattern, Rule, RuleSet, TopicTree, check_rule_pattern


def matches(pattern: str, topic: str, subject: str = "") -> bool:
    tree = TopicTree()
    tree.add(pattern, "here")
    return tree.find(topic, subject) == "here"


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


def test_first_of_equal_patterns_has_the_origin() -> None:
    tree = TopicTree()
    for origin in ("first", "second"):
        for pattern in ("a/b", "a/*", "b/**", "{subject}"):
            tree.add(pattern, f"{origin} {pattern}")
    assert tree.find("a/b", "") == "first a/b"
    assert tree.find("a/c", "") == "first a/*"
    assert tree.find("b/c/d", "") == "first b/**"
    assert tree.find("ann", "ann") == "first {subject}"


RULES = RuleSet(
    [
        Rule(("public/**",), ("subscribe",), anonymous=True),
        Rule(("quotes/**",), ("subscribe", "history"), claims={"role": ("reader", "trader")}),
        Rule(("orders/{subject}",), ("publish",), subjects=("bot-*", "ann"), claims={"role": ("trader",)}),
        Rule(("status",), ("subscribe",)),
    ]
)


def reason(operation: str, topic: str, subject: str, claims: dict[str, object] | None) -> str:
    return RULES.trees(subject, claims)[operation].find(topic, subject)  # type: ignore[index]


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
    operation: str, topic: str, subject: str, claims: dict[str, object] | None, allowed_by: str
) -> None:
    assert reason(operation, topic, subject, claims) == allowed_by


def test_identities_with_the_same_rules_share_their_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migratory_broker.core.security.rules.MAX_RULE_SETS", 3)
    rules = RuleSet([Rule((f"topic/{number}",), ("subscribe",), subjects=(f"s{number}",)) for number in range(5)])
    first = rules.trees("s0", {})
    for number in (0, 1, 2, 2, 1):
        rules.trees(f"s{number}", {})
    assert rules.trees("s0", {}) is first
    rules.trees("s3", {})
    assert rules.trees("s0", {}) is not first


def test_rule_for_clients_without_a_token_has_no_subjects() -> None:
    with pytest.raises(ValueError, match="without a token have neither"):
        Rule(("a",), ("subscribe",), subjects=("ann",), anonymous=True)
    with pytest.raises(BadPattern):
        Rule(("a*",), ("subscribe",))
