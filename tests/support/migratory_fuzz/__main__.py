"""`python -m migratory_fuzz run|replay`: see docs/contributing/fuzzing.md."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from migratory_fuzz import corpus, targets


def main() -> int:
    parser = argparse.ArgumentParser(prog="migratory_fuzz", description="Coverage-guided fuzzing of all parsers.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="fuzz targets, one after the other")
    run.add_argument("target", nargs="*", metavar="TARGET", help=f"of {', '.join(targets.NAMES)} (default: all)")
    run.add_argument("--minutes", type=float, default=1.0, metavar="N", help="for each target (default 1)")
    run.add_argument("--keep", action="store_true", help="write the minimised corpus back into tests/fuzz/corpus")
    replay = commands.add_parser("replay", help="run inputs through their target, without a fuzzer")
    replay.add_argument("target", metavar="TARGET")
    replay.add_argument("file", nargs="*", type=Path, metavar="FILE", help="inputs (default: all stored ones)")
    arguments = parser.parse_args()
    names = [arguments.target] if isinstance(arguments.target, str) else arguments.target or list(targets.NAMES)
    for name in names:
        if name not in targets.NAMES:
            parser.error(f"no target {name!r}; use one of {', '.join(targets.NAMES)}")
    if arguments.command == "run":
        return _run(names, arguments.minutes * 60, arguments.keep)
    return _replay(names[0], arguments.file)


def _run(names: list[str], seconds: float, keep: bool) -> int:
    from migratory_fuzz import campaign

    def say(text: str) -> None:
        print(text, flush=True)

    outcomes = []
    for name in names:
        say(f"{name}: {seconds:.0f} s from {time.strftime('%H:%M:%S')}")
        folder = corpus.ROOT / "regressions" / name
        outcome = campaign.run(targets.load(name), name, seconds, say=say, regressions=folder, keep=keep)
        say(outcome.line)
        if outcome.artifact is not None:
            say(f"replay it with: PYTHONPATH=tests/support python -m migratory_fuzz replay {name} {outcome.artifact}")
        outcomes.append(outcome)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _replay(name: str, files: list[Path]) -> int:
    target = targets.load(name)
    inputs = [file.read_bytes() for file in files] or corpus.inputs(target)
    failed = 0
    for data in inputs:
        try:
            target.run(data)
        except Exception:  # noqa: BLE001
            failed += 1
            print(f"{data[:300]!r}:")
            traceback.print_exc(file=sys.stdout)
    print(f"{name}: {len(inputs)} inputs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
