"""Text for a terminal: makes characters visible that do not print, and writes lines and JSON.

Output quotes what brokers, clients and files say, and none of that may break a line or control the terminal. So
everything that commands write passes through this module, directly or by `output.py`.
"""

from __future__ import annotations

import json

import click


def printable(text: str) -> str:
    """Return `text` as one line, with an escape sequence such as `\\n` for each character that does not print: control
    characters, and those that change the direction of text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Return `text` with its line ends, and an escape sequence for each other character that does not print."""
    return "\n".join(map(printable, text.split("\n")))


def printable_payload(payload: bytes) -> bytes:
    """Return a payload as one line for a terminal. Tabs stay; bytes that are no UTF-8, and other characters that do not
    print, are escaped."""
    return "\t".join(map(printable, payload.decode("utf-8", "backslashreplace").split("\t"))).encode()


def to_json(value: object, indent: int | None = None) -> str:
    """Return `value` as JSON. It is in ASCII, with escapes, if it has characters that do not print."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable() or all(map(str.isprintable, text.split("\n"))):
        return text
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def echo(text: str, err: bool = False) -> None:
    """Write text and a line end to standard output, or standard error. Characters that do not print, except line ends,
    are escaped.

    :raises click.ClickException: standard output cannot be written, because the disk is full, for example. A reader
        that is gone raises BrokenPipeError, with which a command ends silently.
    """
    try:
        click.echo(printable_lines(text), err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        if err:
            raise
        raise click.ClickException(f"cannot write to standard output: {error.strerror}") from error
