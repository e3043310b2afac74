"""The parser of series selectors: accepted selectors, and errors for others."""

from __future__ import annotations

import pytest
from migratory_spark.prometheus.selectors import NAME, BadSelector, Matcher, parse, render


def name(value: str) -> Matcher:
    return Matcher(NAME, "=", value)


@pytest.mark.parametrize(
    ("text", "selectors"),
    [
        ("up", [(name("up"),)]),
        (" job:up:sum{} ", [(name("job:up:sum"),)]),
        ('up{job="web"}', [(name("up"), Matcher("job", "=", "web"))]),
        ('{__name__=~"http_.*",code!~"5..", job != "x" ,}', [
            (Matcher(NAME, "=~", "http_.*"), Matcher("code", "!~", "5.."), Matcher("job", "!=", "x"))
        ]),
        ("a{b='it\\'s'} , c\nd{e=`\\d+`}", [
            (name("a"), Matcher("b", "=", "it's")), (name("c"),), (name("d"), Matcher("e", "=", "\\d+"))
        ]),
        ('a{b="x\\ty\\n\\"\\\\\\u00e9\\x41\\U0001f389"}', [(name("a"), Matcher("b", "=", 'x\ty\n"\\éA🎉'))]),
        ('a{b="a,b}c{"}', [(name("a"), Matcher("b", "=", "a,b}c{"))]),
        ('{a!=""}', [(Matcher("a", "!=", ""),)]),
        ('{a!~""}', [(Matcher("a", "!~", ""),)]),
    ],
)  # fmt: skip
def test_valid_selectors_are_parsed(text: str, selectors: list[tuple[Matcher, ...]]) -> None:
    assert parse(text) == selectors
    # What is rendered says the same again.
    assert [parse(render(selector))[0] for selector in selectors] == selectors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no selector"),
        ("  ", "no selector"),
        ("up[5m]", "at character 3: the name of a metric or { was expected, there is '\\[5m\\]'"),
        ("rate(up)", "at character 5"),
        ("up{job}", "one of = != =~ !~ was expected"),
        ('up{job=="x"}', "a value in quotes"),
        ("up{job=x}", "a value in quotes was expected, there is 'x}'"),
        ("up{job=", "there is the end"),
        ('up{job="x', 'a value that ends with "'),
        ('up{job="x\\"', 'a value that ends with "'),
        ('up{job="x" a="y"}', "a comma or }"),
        ('up{1="y"}', "the name of a label"),
        ('up{a="b"', "a comma or }"),
        ('up{a="\\d+"}', "write \\\\\\\\d for a regular expression"),
        ('up{a="\\Uffffffff"}', "is not a character"),
        ("{}", "selects every series"),
        ('{a=""}', "selects every series"),
        ('{a=~".*"}', "selects every series"),
        ('{a!="x"}', "selects every series"),
        ('{a!~"x"}', "selects every series"),
    ],
)
def test_invalid_selectors_are_rejected(text: str, words: str) -> None:
    with pytest.raises(BadSelector, match=words):
        parse(text)
