"""The inputs under tests/fuzz: `corpus/TARGET` widened coverage, `regressions/TARGET` failed once.

A corpus is one file, a MessagePack list of inputs, so that hundreds of small ones do not fill the tree. A regression
is a file of its own whose name says what failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from migratory_fuzz.targets import Target

ROOT = Path(__file__).resolve().parents[2] / "fuzz"
MOST_BYTES = 40_000
"""The largest size of one target's corpus in bytes. All targets together stay small in the repository."""


def kept(name: str) -> list[bytes]:
    """Return the corpus of a target; [] when there is none."""
    path = ROOT / "corpus" / f"{name}.msgpack"
    return msgspec.msgpack.decode(path.read_bytes(), type=list[bytes]) if path.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> int:
    """Replace the target's corpus with the first inputs that fit into `MOST_BYTES`. Return their number."""
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
    """Return the regressions of a target by file name."""
    folder = ROOT / "regressions" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*"))} if folder.is_dir() else {}


def inputs(target: Target) -> list[bytes]:
    """Return all inputs of a target: seeds, corpus and regressions."""
    return [*target.seeds(), *kept(target.name), *regressions(target.name).values()]


def unpack(target: Target, folder: Path) -> None:
    """Write each input of a target to a file of its own in `folder`, as a fuzzer reads them."""
    for index, data in enumerate(inputs(target)):
        (folder / f"{index:05}").write_bytes(data)
