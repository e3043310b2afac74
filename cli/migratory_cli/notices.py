"""Writes the notices of `pub` and `sub`, such as reconnects and gaps, on standard error: text, or with --json one
object per line for programs."""

from __future__ import annotations

import asyncio

from migratory_client import LinkDown, LinkUp, Problem, Ready, Receipt
from migratory_client.core.links import describe_close
from migratory_protocol.errors import TOKEN_EXPIRED

from migratory_cli.terminal import echo, printable, to_json

Status = LinkUp | LinkDown | Ready | Problem


class Notices:
    """A writer of messages on standard error.

    `token_is_fixed` is set by the caller if no new token can follow the present one. `token_expired` is set when a
    broker refuses such a token as expired.

    :param as_json: True to write one JSON object per message, False for text.
    :param quiet: True to write only errors and gaps.
    """

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.token_is_fixed = False
        self.token_expired = asyncio.Event()
        self._quiet = quiet
        self._shown: set[str] = set()  # problems since the last connection: repeated attempts fail with the same text

    def status(self, status: Status) -> None:
        """Write a status of the client, unless quiet: connected, lost, moved, resumed, or a problem. A problem with the
        same text is written once until a connection succeeds. Set `token_expired` if the problem is that a fixed token
        has expired."""
        text, fields = _status(status)
        if isinstance(status, LinkUp):
            self._shown.clear()
        if isinstance(status, Problem) and status.code == TOKEN_EXPIRED and self.token_is_fixed:
            self.token_expired.set()
        if text and not self._quiet and text not in self._shown:
            self._say(text, fields)
            if isinstance(status, Problem):
                self._shown.add(text)

    def receipt(self, receipt: Receipt) -> None:
        """Write a receipt. If quiet, write only receipts that report a gap."""
        if receipt.kind == "complete" and self._quiet:
            return
        text, fields = _receipt(receipt)
        self._say(text, fields)

    def hint(self, text: str) -> None:
        """Write an advice to the user, unless quiet."""
        if not self._quiet:
            self._say(text, {"hint": text})

    def error(self, code: str, text: str) -> None:
        """Write an error, also if quiet.

        :param code: the error's code for programs, which only JSON has.
        """
        self._say(f"Error: {text}", {"error": code, "text": text})

    def _say(self, text: str, fields: dict[str, object]) -> None:
        echo(to_json(fields) if self.as_json else printable(text), err=True)


def _status(status: Status) -> tuple[str, dict[str, object]]:
    """Return the text of a status and its fields for JSON. The text is "" for a status that is not shown."""
    match status:
        case LinkUp():
            fields: dict[str, object] = {"status": "connected", "broker": status.broker, "url": status.url}
            return f"connected to {status.broker} at {status.url}", fields
        case LinkDown(replaced=True):
            reason = "is draining" if status.cause == "drained" else "had more than its share of clients"
            return f"moved: the previous broker {reason}", {"status": "moved", "cause": status.cause}
        case LinkDown():
            fields = {"status": "lost", "code": status.code, "reason": status.reason}
            return describe_close(status.code, status.reason), fields
        case Ready(seconds=float() as seconds) if seconds > 0:
            return f"resumed after {seconds:.3f} s", {"status": "resumed", "seconds": round(seconds, 6)}
        case Problem():
            fields = {"status": "problem", "code": status.code, "text": status.text}
            known = status.code == "connect_failed"
            return f"cannot connect to {status.text}" if known else f"{status.code}: {status.text}", fields
        case _:
            return "", {}


def _receipt(receipt: Receipt) -> tuple[str, dict[str, object]]:
    """Return the text of a receipt and its fields for JSON."""
    fields: dict[str, object] = {"topic": receipt.topic, "receipt": receipt.kind}
    if receipt.position is not None:
        fields["position"] = str(receipt.position)
    match receipt.kind:
        case "complete":
            return f"{receipt.topic}: complete, at position {receipt.position}", fields
        case "reset":
            fields |= {"after": _text(receipt.after), "before": _text(receipt.before)}
            where = "from now on" if receipt.after is None else f"after {receipt.after}"
            if receipt.not_replayed:
                text = f"not replayed: this client may not read the history; continues {where}"
                return f"{receipt.topic}: {text}", fields
            was = "" if receipt.before is None else f", was at {receipt.before}"
            return f"{receipt.topic}: reset, the earlier history is lost; continues {where}{was}", fields
        case _:
            fields |= {"first": receipt.first, "last": receipt.last}
            return f"{receipt.topic}: {receipt.kind}, {receipt.first} to {receipt.last} are missing", fields


def _text(position: object) -> str | None:
    return None if position is None else str(position)
