"""Rules: the topics to which a client may subscribe and publish, and whose history it may read.

A pattern is a topic name in which the level `*` stands for any one level, a final `**` for one or more levels, and
`{subject}` for a level that equals the client's subject. Levels are divided by "/". Whatever no pattern allows is
denied. The patterns of all rules are merged into one tree for each operation, so that a decision costs a few look-ups
for each level of the name, and identities cost no memory for the rules that apply to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from migratory_protocol.topics import TopicPattern

Operation = Literal["subscribe", "publish", "history"]
OPERATIONS: Final[tuple[Operation, ...]] = ("subscribe", "publish", "history")
"""The operations that rules allow. `history` is the replay after a position, and snapshots."""

SUBJECT_LEVEL: Final = "{subject}"

Claims = Mapping[str, object]


LEVEL_BYTES: Final = 300
"""Bytes of a level in a tree of patterns, with its name. As measured with Python 3.11
(tests/unit/core/security/test_access.py)."""


class BadPattern(ValueError):
    """The error for a malformed topic pattern of a rule."""


def check_rule_pattern(pattern: str) -> str:
    """Return the pattern if it is well-formed: 1 to 255 characters, `*` only as a whole level, `**` only as the last
    one. Raises BadPattern otherwise, which says what is allowed."""
    *inner, last = pattern.split("/")
    if (
        not 0 < len(pattern) <= 255
        or any("*" in level and level != "*" for level in inner)
        or ("*" in last and last not in ("*", "**"))
    ):
        raise BadPattern(
            f"topic pattern {pattern[:60]!a:.80}; allowed: topic names of up to 255 characters with * for one level, "
            "** for all further levels at the end, and {subject} for the level of the client's subject"
        )
    return pattern


class TopicTree:
    """Topic patterns as a tree of levels. At the end of each pattern is the set of rules that contain it, as an integer
    with a bit for each rule. Each node is a tree."""

    __slots__ = ("_any", "_children", "_end", "_rest", "_subject")

    def __init__(self) -> None:
        self._children: dict[str, TopicTree] = {}
        self._any: TopicTree | None = None
        self._subject: TopicTree | None = None
        self._rest = 0  # the rules with a pattern that ends with ** here
        self._end = 0  # the rules with a pattern that ends here

    def add(self, pattern: str, rules: int) -> None:
        """Add a pattern that these rules contain. `rules` is a set, with a bit for each rule. Raises BadPattern if it
        is not well-formed."""
        node = self
        for level in check_rule_pattern(pattern).split("/"):
            if level == "**":
                node._rest |= rules
                return
            node = node._child(level)
        node._end |= rules

    def _child(self, level: str) -> TopicTree:
        """Return the node for a level of a pattern below this one. Create it if there is none."""
        if level == "*":
            self._any = self._any or TopicTree()
            return self._any
        if level == SUBJECT_LEVEL:
            self._subject = self._subject or TopicTree()
            return self._subject
        return self._children.setdefault(level, TopicTree())

    def count_levels(self) -> int:
        """Return the number of nodes in the tree, the root included. Patterns that begin alike share nodes, and a final
        ** has none."""
        branches = (*self._children.values(), self._any, self._subject)
        return 1 + sum(branch.count_levels() for branch in branches if branch is not None)

    def find(self, topic: str, subject: str, rules: int) -> int:
        """Return those of `rules` that contain the first pattern found to match the topic for this subject; 0 if none
        of their patterns does. Other patterns may match as well, of which it says nothing. `rules` and the result are
        sets with a bit for each rule."""
        nodes = [self]
        for level in topic.split("/"):
            following: list[TopicTree] = []
            for node in nodes:
                if node._rest & rules:
                    return node._rest & rules
                child = node._children.get(level)
                if child is not None:
                    following.append(child)
                if node._any is not None:
                    following.append(node._any)
                if node._subject is not None and subject and level == subject:
                    following.append(node._subject)
            nodes = following
        return next((node._end & rules for node in nodes if node._end & rules), 0)


TopicTrees = Mapping[Operation, TopicTree]


@dataclass(frozen=True, slots=True)
class Rule:
    """Operations on topics, and the clients to which they are allowed.

    A rule is for the clients with one of the `subjects` (patterns; none: any) and, for each of the `claims`, one of its
    values. With `anonymous` it is for clients without a token as well, and without it for none of these. Raises
    BadPattern for a malformed pattern of topics, and ValueError for `anonymous` together with subjects or claims.
    """

    topics: tuple[str, ...]
    allow: tuple[Operation, ...]
    subjects: tuple[str, ...] = ()
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anonymous: bool = False

    def __post_init__(self) -> None:
        for pattern in self.topics:
            check_rule_pattern(pattern)
        if self.anonymous and (self.subjects or self.claims):
            raise ValueError("a rule with anonymous has no subjects or claims: clients without a token have neither")


class RuleSet:
    """The compiled rules of a cluster. `trees` has for each operation the patterns of all rules that allow it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._subjects = [[TopicPattern(pattern) for pattern in rule.subjects] for rule in rules]
        self.trees = build_trees(
            (operation, pattern, 1 << number)
            for number, rule in enumerate(rules)
            for operation in rule.allow
            for pattern in rule.topics
        )

    def applicable(self, subject: str, claims: Claims | None) -> int:
        """Return the set of rules that apply to an identity, as an integer with a bit for each rule; `claims` is None
        for a client without a token."""
        return sum(
            1 << number for number, rule in enumerate(self._rules) if self._applies(number, rule, subject, claims)
        )

    def _applies(self, number: int, rule: Rule, subject: str, claims: Claims | None) -> bool:
        """Return whether a rule, which has this number, applies to an identity. `claims` is None for a client without a
        token, to which only rules with `anonymous` apply."""
        if claims is None:
            return rule.anonymous
        patterns = self._subjects[number]
        return (not patterns or any(pattern.matches(subject) for pattern in patterns)) and all(
            _has_value(claims.get(name), values) for name, values in rule.claims.items()
        )


def build_trees(patterns: Iterable[tuple[Operation, str, int]]) -> TopicTrees:
    """Return one tree of patterns for each operation, made of (operation, pattern, set of rules) triples. Raises
    BadPattern for a malformed pattern."""
    trees = {operation: TopicTree() for operation in OPERATIONS}
    for operation, pattern, rules in patterns:
        trees[operation].add(pattern, rules)
    return trees


def _has_value(claim: object, values: Sequence[str]) -> bool:
    """Return whether a claim, a text or a list, is or contains one of the values. False for a claim of any other
    type."""
    return claim in values if isinstance(claim, str) else isinstance(claim, list) and any(v in claim for v in values)
