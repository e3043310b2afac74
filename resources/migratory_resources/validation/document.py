"""Parses untrusted text into one YAML document, a mapping. Size and depth are bounded. Anchors, aliases, tags except
`!!str`, keys that are not text and duplicate keys are errors. An error inside the text names line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

MAX_BYTES = 128 * 1024
"""Bytes of a document. A cluster file has a few thousand; the bound keeps parsing short."""
MAX_DEPTH = 32
"""Levels of nesting. The resources have ten; the bound keeps the parser from recursing without end."""
_TAGS = (None, "tag:yaml.org,2002:str")


class DocumentError(Exception):
    """Raised for text that is not an acceptable YAML document. The message says why, and where if it is one place."""


class _Loader(yaml.SafeLoader):
    """A SafeLoader that rejects anchors, aliases, tags except `!!str`, keys that are not text, duplicate keys and deep
    nesting.

    Aliases can expand a few lines to megabytes; a tag such as `!!bool x` would be a KeyError.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Parse the next value. Raise DocumentError if it is an alias, has an anchor or a tag, or is nested too
        deep."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise DocumentError(f"{_place(event.start_mark)}: anchors and aliases (& and *) are not allowed")
        if getattr(event, "tag", None) not in _TAGS:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")[:40]
            raise DocumentError(f"{_place(event.start_mark)}: tags ({tag}) are not allowed")
        if self._depth >= MAX_DEPTH:
            raise DocumentError(f"{_place(event.start_mark)}: nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raise DocumentError if a key is not text or occurs twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise DocumentError(f"{_place(key.start_mark)}: a key is a list or a mapping; use text")
            if key.tag != "tag:yaml.org,2002:str":
                raise DocumentError(f"{_place(key.start_mark)}: key {key.value!r} is not text; put it in quotes")
            if key.value in seen:
                raise DocumentError(f"{_place(key.start_mark)}: key {key.value!r} occurs twice in one mapping")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> bytes:
    """Return the content of a file for `parse_document`. Of a file larger than that allows, return only so much that it
    is refused. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def parse_document(data: bytes | str) -> dict[str, Any]:
    """Return the only document in `data`, a mapping.

    :raises DocumentError: `data` is larger than MAX_BYTES, not UTF-8 or not YAML, is nested deeper than MAX_DEPTH, has
        an anchor, a tag, a duplicate key or one that is not text, has several documents or none, or is not a mapping.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", errors="surrogatepass")
    if len(data) > MAX_BYTES:
        raise DocumentError(f"more than {MAX_BYTES:,} bytes, which is the limit")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text (byte {error.start})") from error
    try:
        documents = _all_documents(text)
    except yaml.MarkedYAMLError as error:
        raise DocumentError(f"{_place(error.problem_mark)}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a number of thousands of digits, a date such as 2026-99-99.
        raise DocumentError(f"not valid YAML: {str(error).splitlines()[0]}") from error
    if not documents:
        raise DocumentError("empty: a MigratoryCluster is expected")
    if len(documents) > 1:
        raise DocumentError(f"{len(documents)} documents; exactly one is expected in a file")
    document = documents[0]
    if not isinstance(document, dict):
        raise DocumentError(f"a mapping (apiVersion, kind, metadata, spec) is expected, not {type(document).__name__}")
    return document


def _all_documents(text: str) -> list[Any]:
    """Return the documents in the text that are not empty. Raise DocumentError or a YAMLError if it cannot be
    parsed."""
    loader = _Loader(text)
    try:
        documents = []
        while loader.check_data():  # type: ignore[no-untyped-call]
            documents.append(loader.get_data())
        # `---` at the end, or comments between two separators, are empty documents.
        return [document for document in documents if document is not None]
    finally:
        loader.dispose()


def _place(mark: yaml.Mark | None) -> str:
    return "unknown position" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
