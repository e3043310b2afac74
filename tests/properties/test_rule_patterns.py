"""Rule patterns agree with a naive matcher, and with the pattern language of the configuration where both exist."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from migratory_broker.core.security.rules import TopicTree
from migratory_protocol.topics import TopicPattern

levels = st.sampled_from(["", "a", "b", "ab", "{subject}", "*x"])
topics = st.lists(levels, min_size=1, max_size=5).map("/".join)
subjects = st.sampled_from(["", "a", "b", "*", "**", "a/b"])
patterns = st.builds(
    lambda inner, last: "/".join([*inner, last]),
    st.lists(st.sampled_from(["", "a", "b", "*", "{subject}"]), max_size=4),
    st.sampled_from(["a", "b", "*", "**", "{subject}"]),
)


def naive(pattern: list[str], topic: list[str], subject: str) -> bool:
    """Return whether the pattern matches the topic, level by level, by the definition."""
    if not pattern or not topic:
        return not pattern and not topic
    if pattern == ["**"]:
        return True
    first, level = pattern[0], topic[0]
    if first == "{subject}":
        fits = subject != "" and level == subject
    else:
        fits = first in ("*", level)
    return fits and naive(pattern[1:], topic[1:], subject)


@given(st.lists(patterns, max_size=6), topics, subjects, st.integers(0, 2**6 - 1))
def test_tree_matches_what_one_of_its_patterns_matches(chosen: list[str], topic: str, subject: str, rules: int) -> None:
    """Each pattern is a rule of its own, and only those of `rules` count."""
    tree = TopicTree()
    for number, pattern in enumerate(chosen):
        tree.add(pattern, 1 << number)
    matching = sum(1 << n for n, pattern in enumerate(chosen) if naive(pattern.split("/"), topic.split("/"), subject))
    found = tree.find(topic, subject, rules)
    assert found & ~(matching & rules) == 0
    assert bool(found) is bool(matching & rules)


@given(patterns.filter(lambda pattern: "{" not in pattern), topics)
def test_patterns_mean_the_same_as_in_the_configuration(pattern: str, topic: str) -> None:
    tree = TopicTree()
    tree.add(pattern, 1)
    assert bool(tree.find(topic, "", 1)) is TopicPattern(pattern).matches(topic)
