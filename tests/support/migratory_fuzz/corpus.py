"""The inputs under tests/fuzz: `corpus/TARGET` was found to be worth keeping, `regressions/TARGET` once failed.

A corpus is one file, a MessagePack list of inputs, so that hundreds of small ones do not fill the tree; a regression
is a file of its own whose name says what was wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from migratory_fuzz.targets import Target

ROOT = Path(__file__).resolve().parents[2] / "fuzz"
MOST_BYTES = 40_000
"""Of one target's corpus: with six of them the repository stays small."""


def kept(name: str) -> list[bytes]:
    path = ROOT / "corpus" / f"{name}.msgpack"
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes]) if path.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> int:
    """Store them, as far as there is room. Returns how many."""
    chosen: list[bytes] = []
    size = 0
    for data in inputs:
        size += len(data) + 5
        if size > MOST_BYTES:
            break
        chosen.append(data)
    path = ROOT / "corpus" / f"{name}.msgpack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.msgpack.encode(sorted(chosen)))
    return len(chosen)


def regressions(name: str) -> dict[str, bytes]:
    folder = ROOT / "regressions" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))} if folder.is_dir() else {}


def inputs(target: Target) -> list[bytes]:
    """Everything to begin with, or to replay."""
    return [*target.seeds(), *kept(target.name), *regressions(target.name).values()]


def unpack(target: Target, folder: Path) -> None:
    """As a fuzzer wants it: a file for each input."""
    for index, data in enumerate(inputs(target)):
        (folder / f"{index:05}").write_bytes(data)


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="migratory-fuzz-")
