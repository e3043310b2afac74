"""docs/reference/protocol.md matches the code: every message, field, code and limit, and each line of the session."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args
from zlib import crc32

import pytest
from migratory_broker.core.edge.config import EdgeConfig
from migratory_protocol import errors, limits
from migratory_protocol.codec import JSON, BadMessage
from migratory_protocol.diagnosis import MAX_BAD_MESSAGES, MAX_EXAMINED
from migratory_protocol.errors import FATAL, SAME_BROKER, CloseCode
from migratory_protocol.jsonwire import item_type, operation_name
from migratory_protocol.messages import BrokerMessage, ClientMessage, Error
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text("utf-8")
KINDS: list[type[Struct]] = [*get_args(ClientMessage), *get_args(BrokerMessage)]
SESSION = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def section(title: str) -> str:
    return PAGE.split(f"\n{title}\n", 1)[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the text's tables, without the headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0].split()[:1] not in ([], ["---"], ["field"], ["code"])]


def described(kind: type[Struct]) -> list[list[str]]:
    """Return the rows that a message's section must have: its fields, then those of the structs inside."""
    inner: list[type[Struct]] = []
    wanted = []
    for field in fields(kind):
        default = "" if field.default is NODEFAULT else json.dumps(field.default)
        wanted.append([f"`{field.name}`", default])
        for part in (field.type, item_type(field.type)):
            if isinstance(part, type) and issubclass(part, Struct):
                inner.append(part)
    for part in inner:
        if part.__name__ != "Server" or kind.__name__ == "Servers":
            wanted += described(part)
    return wanted


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_page_describes_every_field_in_order(kind: type[Struct]) -> None:
    text = section(f"### {operation_name(kind)}, {kind.__struct_config__.tag}").split("\n### ")[0]
    assert [[row[0], row[2]] for row in rows(text)] == described(kind)


def test_page_describes_every_error_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, str)}
    assert {row[0].strip("`") for row in rows(section("## Error codes"))} == codes


def test_page_describes_every_close_code() -> None:
    table = {int(row[0]): row for row in rows(section("## Close codes"))}
    assert {code: row[1] for code, row in table.items()} == {
        int(code): code.name.lower().replace("_", " ") for code in CloseCode
    }
    assert {code for code, row in table.items() if row[2].startswith("reports it")} == FATAL
    assert {code for code, row in table.items() if "same broker" in row[2]} == SAME_BROKER


def test_page_has_the_closing_timeout() -> None:
    assert f"A broker waits {EdgeConfig().closing:g} s for the client's half" in PAGE


def test_page_has_the_default_limits() -> None:
    table = {row[0]: row[1] for row in rows(section("## Limits"))}
    assert table["topic name"] == f"{limits.TOPIC} bytes of UTF-8"
    assert table["payload"] == f"{limits.PAYLOAD // 2**20} MiB"
    assert table["WebSocket message, after defragmentation and inflation"].endswith(f"{limits.ENVELOPE // 1024} KiB")
    assert table["subscriptions per client"] == f"{limits.SUBSCRIPTIONS:,}"
    assert table["bytes queued for a client"] == f"{limits.QUEUE // 2**20} MiB"
    per_turn = table["messages of a client, with the topics of its requests, before others have their turn"]
    assert per_turn == f"{EdgeConfig().messages_per_turn:,}"
    assert table["messages and topics of all requests in one frame, together"] == f"{limits.ITEMS:,}"
    assert table["entries of a list in a message: topics, servers"] == f"{limits.TOPICS:,}"
    assert table["characters of a text in a message, except a payload"] == f"{limits.TEXT:,}"
    commas = table[f"commas in a JSON frame over {limits.ENVELOPE // 1024} KiB that holds anything but publications"]
    assert commas == f"{limits.JSON_VALUES:,}"
    in_one_frame = table["messages in one frame; bad messages among them; with those that have malformed positions"]
    assert in_one_frame == f"{limits.MESSAGES:,}; {MAX_BAD_MESSAGES}; {MAX_EXAMINED}"
    offers = table["subprotocols, extensions and parameters of an extension that a handshake offers"]
    assert offers == str(limits.OFFERS)
    opening = table["from TCP accept, with TLS from the end of the TLS handshake, to `connect`; of the TLS handshake"]
    assert opening == f"{limits.HANDSHAKE:g} s"
    assert table["heartbeat interval"] == f"{limits.HEARTBEAT:g} s"
    ahead = f"{limits.RESUME_WAIT:g} s with a coordinator, {limits.RESUME_LIMIT:g} s without"
    assert table["resume position ahead of the broker"] == ahead
    assert table["new connections of a broker"] == f"{limits.CONNECTS_PER_SECOND:,}/s"


def test_code_and_pages_agree_on_when_the_time_to_connect_begins() -> None:
    files = [path for folder in ("broker", "protocol", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    told = 0
    for path in files:
        for rest in path.read_text("utf-8").split("TCP accept")[1:]:
            told += 1
            assert "TLS" in rest[:100], f"{path.relative_to(ROOT)}: with TLS it is the end of the TLS handshake"
    assert told > 5


def test_page_has_the_hash_of_the_example_topic() -> None:
    value = crc32(b"quotes/eur")
    assert f"has CRC-32 {value}, and of 100 groups it is in number {value % 100}." in PAGE


def test_page_session_is_what_the_codec_writes() -> None:
    assert len(SESSION) > 20
    sent = [line[2:] for line in SESSION if line.startswith("> ")]
    received = [line[2:] for line in SESSION if line.startswith("< ")]
    assert len(sent) + len(received) == len(SESSION)
    for line in received:
        (message,) = JSON.decode_broker(line.encode())
        assert JSON.encode(message).decode() == line
    refused = []
    for line in sent:
        try:
            JSON.decode_client(line.encode())
        except BadMessage as error:
            refused.append(JSON.encode(Error(error.code, error.text, error.request, error.topic)).decode())
    assert refused == [line for line in received if '"op":"error"' in line]
