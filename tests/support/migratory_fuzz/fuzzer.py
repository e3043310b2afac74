"""Fuzz one target with atheris in a process of its own: `python -m migratory_fuzz.fuzzer TARGET [libFuzzer options]`.

`campaign.py` starts it. The product's modules are imported only here, so that the fuzzer instruments all their
branches.
"""

from __future__ import annotations

import sys
import time

import atheris

from migratory_fuzz import labels, mutators, targets

CPU_LIMIT = 2.0
"""Seconds of CPU time for one input: many times what the slowest needs, and far below what would stall a broker."""


class TooSlow(Exception):
    """An input that took more CPU time than `CPU_LIMIT`, and would stall a broker."""


def _mark() -> object:
    """Return a new function for one label. A call of it is coverage by which the fuzzer learns that the label was
    seen."""
    namespace: dict[str, object] = {}
    exec("def mark():\n    return None\n", namespace)
    return atheris.instrument_func(namespace["mark"])


def _mutate(data: bytes, most: int) -> bytes:
    # looked up each time: atheris replaces the function when it starts
    changed: bytes = atheris.Mutate(data, most)
    return changed


def main() -> None:
    name = sys.argv[1]
    own = name if "." in name else f"migratory_fuzz.targets.{name}"
    with atheris.instrument_imports(include=[own, *targets.PRODUCT.get(name, ())], enable_loader_override=False):
        target = targets.load(name)
    labels.mark_each(_mark)  # type: ignore[arg-type]

    def one(data: bytes) -> None:
        begun = time.process_time()
        target.run(data)
        spent = time.process_time() - begun
        if spent > CPU_LIMIT:
            raise TooSlow(f"{spent:.1f} s of CPU time for one input of {len(data)} bytes, the limit is {CPU_LIMIT}")

    # libFuzzer runs the first word again when it merges corpora.
    arguments = [f"{sys.executable} -m migratory_fuzz.fuzzer {name}", *sys.argv[2:]]
    if target.shape == "bytes":
        atheris.Setup(arguments, one)
    else:
        make = mutators.values if target.shape == "values" else mutators.lines
        atheris.Setup(arguments, one, custom_mutator=make(target.skip, _mutate))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
