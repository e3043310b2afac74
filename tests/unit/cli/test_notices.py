"""The messages of `pub` and `sub` on standard error, as text and as JSON."""

from __future__ import annotations

import json

import pytest
from migratory_cli.commands.pub import _describe_failure
from migratory_cli.notices import Notices, Status
from migratory_client import LinkDown, LinkUp, Position, Problem, PublishError, Ready, Receipt

OLD, NEW = Position(1, 7), Position(9, 4)


@pytest.mark.parametrize(
    ("status", "text", "fields"),
    [
        (LinkUp(1, "ws://a/ws", "quotes", "b0", 3), "connected to b0 at ws://a/ws",
         {"status": "connected", "broker": "b0", "url": "ws://a/ws"}),
        (LinkDown(1, 1001, "moved away", "drained", True), "moved: the previous broker is draining",
         {"status": "moved", "cause": "drained"}),
        (LinkDown(1, 1000, "moved away", "moved", True),
         "moved: the previous broker had more than its share of clients",
         {"status": "moved", "cause": "moved"}),
        (LinkDown(1, 1006, "nothing heard for 30 s"), "connection lost: nothing heard for 30 s",
         {"status": "lost", "code": 1006, "reason": "nothing heard for 30 s"}),
        (LinkDown(1, 4003, "9 bytes"), "closed by the broker: too slow (9 bytes)",
         {"status": "lost", "code": 4003, "reason": "9 bytes"}),
        (Ready(1, 0.25), "resumed after 0.250 s", {"status": "resumed", "seconds": 0.25}),
        (Ready(1, 0.0), "", None),
        (Ready(1, None), "", None),
        (Problem("connect_failed", "ws://a: no"), "cannot connect to ws://a: no",
         {"status": "problem", "code": "connect_failed", "text": "ws://a: no"}),
        (Problem("bad_server", "x"), "bad_server: x", {"status": "problem", "code": "bad_server", "text": "x"}),
    ],
)  # fmt: skip
def test_status_is_shown_as_text_and_json_and_not_if_quiet(
    capsys: pytest.CaptureFixture[str], status: Status, text: str, fields: dict[str, object] | None
) -> None:
    Notices(as_json=False, quiet=False).status(status)
    assert capsys.readouterr() == ("", f"{text}\n" if text else "")
    Notices(as_json=True, quiet=False).status(status)
    err = capsys.readouterr().err
    assert (json.loads(err) if err else None) == fields
    Notices(as_json=True, quiet=True).status(status)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("receipt", "text", "fields"),
    [
        (Receipt("t", "complete", OLD, OLD), "t: complete, at position 1:7",
         {"topic": "t", "receipt": "complete", "position": "1:7"}),
        (Receipt("t", "reset", NEW, NEW, resumed=True, before=OLD),
         "t: reset, the earlier history is lost; continues after 9:4, was at 1:7",
         {"topic": "t", "receipt": "reset", "position": "9:4", "after": "9:4", "before": "1:7"}),
        (Receipt("t", "reset", OLD, OLD, resumed=True, before=OLD),
         "t: not replayed: this client may not read the history; continues after 1:7",
         {"topic": "t", "receipt": "reset", "position": "1:7", "after": "1:7", "before": "1:7"}),
        (Receipt("t", "reset", Position(1, 5), Position(1, 5), resumed=True, before=OLD),
         "t: reset, the earlier history is lost; continues after 1:5, was at 1:7",
         {"topic": "t", "receipt": "reset", "position": "1:5", "after": "1:5", "before": "1:7"}),
        (Receipt("t", "reset", None, None), "t: reset, the earlier history is lost; continues from now on",
         {"topic": "t", "receipt": "reset", "after": None, "before": None}),
        (Receipt("t", "hole", OLD, OLD, 3, 5, True), "t: hole, 3 to 5 are missing",
         {"topic": "t", "receipt": "hole", "position": "1:7", "first": 3, "last": 5}),
    ],
)  # fmt: skip
def test_receipt_is_shown_and_gaps_even_if_quiet(
    capsys: pytest.CaptureFixture[str], receipt: Receipt, text: str, fields: dict[str, object]
) -> None:
    for quiet in (False, True):
        Notices(as_json=False, quiet=quiet).receipt(receipt)
        Notices(as_json=True, quiet=quiet).receipt(receipt)
        lines = capsys.readouterr().err.splitlines()
        if quiet and receipt.kind == "complete":
            assert not lines
        else:
            assert (lines[0], json.loads(lines[1])) == (text, fields)


def test_errors_are_shown_if_quiet_and_a_problem_once_per_connection(capsys: pytest.CaptureFixture[str]) -> None:
    notices = Notices(as_json=False, quiet=False)
    for status in (Problem("a", "1"), Problem("a", "1"), LinkUp(1, "u", "c", "b", 1), Problem("a", "1")):
        notices.status(status)
    assert capsys.readouterr().err.splitlines() == ["a: 1", "connected to b at u", "a: 1"]
    quiet = Notices(as_json=False, quiet=True)
    quiet.hint("h")
    quiet.error("code", "why")
    assert capsys.readouterr().err == "Error: why\n"
    Notices(as_json=True, quiet=True).error("code", "why")
    assert json.loads(capsys.readouterr().err) == {"error": "code", "text": "why"}


def test_refused_publication_names_its_topic_and_explain() -> None:
    refused = PublishError("not_allowed", "this client may not publish to the topic")
    text = "this client may not publish to the topic (orders/eve): `migratory explain` says what a token allows"
    assert _describe_failure(refused, "orders/eve") == text
    assert _describe_failure(PublishError("bad_topic", "too long"), "t") == "too long"
