"""Parsing of YAML documents: hostile and malformed text gives one clear error; a few unusual forms are allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_resources.validation.document import MAX_BYTES, DocumentError, parse_document, read_document

BOMB = 'a: &a ["lol"]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n'


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", "empty"),
        ("# only a comment\n---\n", "empty"),
        ("a: 1\n---\nb: 2\n", "2 documents"),
        ("- a\n", "a mapping .* is expected, not list"),
        ("text\n", "not str"),
        (BOMB, "line 1, column 4: anchors and aliases"),
        ("a: *unknown\n", "anchors and aliases"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' occurs twice"),
        ("spec:\n  x: {y: 1, y: 2}\n", "line 2, column 13: key 'y' occurs twice"),
        ("1: a\n", "key '1' is not text"),
        ("on: a\n", "key 'on' is not text"),
        ("? [a]\n: b\n", "line 1, column 3: a key is a list or a mapping; use text"),
        ("<<: {a: 1}\n", "key '<<' is not text"),
        ("a: [1\nb: 2\n", "line 2, column 2: not valid YAML"),
        ("a:\t- b: c: d\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [id]\n", r"tags \(!!python/object/apply:os.system\) are not"),
        ("a: !!timestamp x\n", r"line 1, column 4: tags \(!!timestamp\) are not allowed"),
        ("a: !!bool x\n", r"tags \(!!bool\)"),
        ("!!set {a, b}\n", r"line 1, column 1: tags \(!!set\)"),
        ("a: !mine [1]\n", r"tags \(!mine\)"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: 2026-99-99\n", "not valid YAML"),
        (b"a: \xff\n", "not UTF-8 text .byte 3."),
        (b"a: \x00\n", "not valid YAML"),
        ("a: \ud800", "not UTF-8"),
        ("a: " + "[" * 1000 + "]" * 1000, "nested deeper than 32"),
        ("a: " + "x" * MAX_BYTES, "more than 131,072 bytes"),
    ],
)
def test_malformed_text_is_refused(data: bytes | str, expected: str) -> None:
    with pytest.raises(DocumentError, match=expected):
        parse_document(data)


def test_of_a_large_file_little_is_read(tmp_path: Path) -> None:
    """Regression: `migratory up -f /dev/zero` read until there was no memory left."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file
    assert len(read_document(path)) == MAX_BYTES + 1


def test_the_tag_str_is_allowed() -> None:
    assert parse_document("a: !!str 5\nb: '6'\n") == {"a": "5", "b": "6"}


def test_separators_and_comments_around_one_document_are_allowed() -> None:
    assert parse_document("# head\n---\na: {b: [1, x]}\n---\n# tail\n") == {"a": {"b": [1, "x"]}}
