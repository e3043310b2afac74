"""What `pub` and `sub` say beside their output, on stderr: lines for a person, or with --json one object a line, so
that a program can read both streams."""

from __future__ import annotations

import json

import click
from migratory_client import LinkDown, LinkUp, Problem, Ready, Receipt
from migratory_client.core.links import describe_close

Status = LinkUp | LinkDown | Ready | Problem


class Notices:
    """`quiet`: only errors, and what is missing."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._told: set[str] = set()  # problems, since the last connection: attempts repeat, and fail alike

    def status(self, status: Status) -> None:
        text, fields = _status(status)
        if isinstance(status, LinkUp):
            self._told.clear()
        if text and not self._quiet and text not in self._told:
            self._say(text, fields)
            if isinstance(status, Problem):
                self._told.add(text)

    def receipt(self, receipt: Receipt) -> None:
        """A gap is shown to the quiet as well."""
        if receipt.kind == "complete" and self._quiet:
            return
        text, fields = _receipt(receipt)
        self._say(text, fields)

    def hint(self, text: str) -> None:
        if not self._quiet:
            self._say(text, {"hint": text})

    def error(self, code: str, text: str) -> None:
        self._say(f"Error: {text}", {"error": code, "text": text})

    def _say(self, text: str, fields: dict[str, object]) -> None:
        click.echo(json.dumps(fields, ensure_ascii=False) if self.as_json else text, err=True)


def _status(status: Status) -> tuple[str, dict[str, object]]:
    """In words, "" for what is not worth one, and as fields."""
    match status:
        case LinkUp():
            fields: dict[str, object] = {"status": "connected", "broker": status.broker, "url": status.url}
            return f"connected to {status.broker} at {status.url}", fields
        case LinkDown(replaced=True):
            why = "is being drained" if status.cause == "drained" else "had more clients than its share"
            return f"moved: the broker before {why}", {"status": "moved", "cause": status.cause}
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
    fields: dict[str, object] = {"topic": receipt.topic, "receipt": receipt.kind}
    if receipt.position is not None:
        fields["position"] = str(receipt.position)
    match receipt.kind:
        case "complete":
            return f"{receipt.topic}: complete, the topic stands at {receipt.position}", fields
        case "reset":
            fields |= {"after": _text(receipt.after), "before": _text(receipt.before)}
            where = "from now" if receipt.after is None else f"behind {receipt.after}"
            was = "" if receipt.before is None else f", was at {receipt.before}"
            return f"{receipt.topic}: reset, an earlier history is lost; goes on {where}{was}", fields
        case _:
            fields |= {"first": receipt.first, "last": receipt.last}
            return f"{receipt.topic}: {receipt.kind}, {receipt.first} to {receipt.last} are missing", fields


def _text(position: object) -> str | None:
    return None if position is None else str(position)
