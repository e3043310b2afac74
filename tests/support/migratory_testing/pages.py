"""The parts of an HTML page, for tests of pages."""

from __future__ import annotations

from html.parser import HTMLParser

ADDRESSES = {"src", "href", "xlink:href", "action", "data", "poster", "srcset"}


class Reader(HTMLParser):
    """The tags, identifiers, addresses and words of a page, each in order. Creating it parses the text, and raises
    AssertionError at an event handler attribute, such as `onclick`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.identifiers: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.identifiers.append(value)
            if name in ADDRESSES:
                self.addresses.append(value or "")
            assert not name.startswith("on"), (tag, name)

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())
