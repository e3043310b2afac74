"""One run of a fuzzer: start its process, follow its output, measure its memory from outside, classify its end.

A failing input is stored as a regression: a file that `replay` and the tests run again from then on.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from migratory_fuzz import corpus
from migratory_fuzz.targets import Target

GROWTH_LIMIT = 96
"""MiB of growth between a fifth of the time and the end. The fuzzer's own inputs need some; a leak of 100 bytes an
input needs more."""

RSS_LIMIT = 1024
"""The most MiB of memory of the fuzzer's process."""
WALL_LIMIT = 60
"""Seconds of wall time for one input, however busy the machine is. `fuzzer.py` limits CPU time far below."""

REPORT_EVERY = 10.0
"""Seconds between two lines of progress."""
_ENDINGS = {77: "exception", 70: "hang", 71: "memory", 76: "exception"}
_PROGRESS = re.compile(r"#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)/")
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_SLOWEST = re.compile(r"stat::slowest_unit_time_sec:\s*(\d+)")


@dataclass
class Outcome:
    """The result of a run. `failure` is "" when nothing failed. `slowest` is the seconds of the slowest input;
    `memory` holds measurements in MiB since the stored inputs were read."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    coverage: int = 0
    features: int = 0
    inputs: int = 0
    slowest: int = 0
    memory: list[float] = field(default_factory=list)
    failure: str = ""
    artifact: Path | None = None

    @property
    def line(self) -> str:
        """Return a summary of one line."""
        start, warm, end = (
            (self.memory[0], self.memory[len(self.memory) // 5], self.memory[-1]) if self.memory else (0, 0, 0)
        )
        return (
            f"{self.target}: {self.executions:,} executions in {self.seconds:.0f} s, coverage {self.coverage}, "
            f"{self.features} features, {self.inputs} inputs, slowest {self.slowest} s, "
            f"RSS {start:.0f} MiB, {warm:.0f} after a fifth, {end:.0f} at the end"
            + (f": FAILED, {self.failure}" if self.failure else "")
        )


def run(
    target: Target,
    module: str,
    seconds: float,
    *,
    say: Callable[[str], None],
    regressions: Path,
    keep: bool = False,
    executions: int | None = None,
) -> Outcome:
    """Fuzz for `seconds`, and return the outcome. The process finds the target as `module`. A failing input is stored
    in the folder `regressions`. Without a failure, `keep` stores the minimised corpus. `executions` ends the run after
    that many inputs, drawn from a fixed seed."""
    outcome = Outcome(target.name)
    with TemporaryDirectory(prefix="migratory-fuzz-") as scratch:
        root = Path(scratch)
        (root / "corpus").mkdir()
        (root / "found").mkdir()
        corpus.unpack(target, root / "corpus")
        options: dict[str, object] = {
            "max_total_time": int(seconds), "timeout": WALL_LIMIT, "rss_limit_mb": RSS_LIMIT, "reload": 0,
            "max_len": target.max_len, "artifact_prefix": f"{root}/found/", "print_final_stats": 1,
            "report_slow_units": WALL_LIMIT,
        }  # fmt: skip
        if executions is not None:
            options |= {"runs": executions, "seed": 1}
        if target.tokens:
            options["dict"] = root / "words"
            (root / "words").write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))
        fuzzer = [sys.executable, "-m", "migratory_fuzz.fuzzer", module]
        command = [*fuzzer, *(f"-{name}={value}" for name, value in options.items()), str(root / "corpus")]
        status, tail = _follow(command, seconds, outcome, say)
        found = sorted((root / "found").iterdir())
        _judge(outcome, status, tail)
        if outcome.failure and found:
            outcome.artifact = _regression(regressions, outcome.failure, found[0].read_bytes())
        if outcome.failure:
            say("\n".join(tail))
        elif keep:
            merged = root / "merged"
            merged.mkdir()
            _follow([*fuzzer, "-merge=1", str(merged), str(root / "corpus")], seconds, Outcome(target.name), say)
            inputs = sorted((path.read_bytes() for path in merged.iterdir()), key=len)
            stored = corpus.keep(target.name, inputs)
            say(f"{target.name}: {stored} of {len(list((root / 'corpus').iterdir()))} inputs stored")
    return outcome


def _follow(command: list[str], seconds: float, outcome: Outcome, say: Callable[[str], None]) -> tuple[int, deque[str]]:
    """Run the process, and write its statistics into `outcome`. Return its status, negative for a signal, and its
    last lines."""
    tail: deque[str] = deque(maxlen=60)
    begun = reported = time.monotonic()
    # the targets are beside this package, wherever it is imported from
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        reader = threading.Thread(target=_read, args=(process, outcome, tail), daemon=True)
        reader.start()
        while process.poll() is None:
            time.sleep(0.25)
            now = time.monotonic()
            outcome.seconds = now - begun
            if outcome.coverage:
                _measure(process.pid, outcome)
            if now - reported >= REPORT_EVERY:
                reported = now
                say(f"  {outcome.line}")
            if outcome.seconds > seconds + 2 * WALL_LIMIT:
                process.kill()
                tail.append(f"did not end within {2 * WALL_LIMIT} s after its time")
        reader.join(timeout=10)
        return process.returncode, tail


def _read(process: subprocess.Popen[str], outcome: Outcome, tail: deque[str]) -> None:
    """Read the fuzzer's output until its end: put its statistics into `outcome` and its lines into `tail`."""
    assert process.stdout is not None
    for line in process.stdout:
        tail.append(line.rstrip("\n"))
        if found := _PROGRESS.match(line):
            outcome.executions, outcome.coverage, outcome.features, outcome.inputs = map(int, found.groups())
        elif found := _EXECUTED.match(line):
            outcome.executions = int(found[1])
        elif found := _SLOWEST.match(line):
            outcome.slowest = int(found[1])


def _measure(pid: int, outcome: Outcome) -> None:
    try:
        resident = psutil.Process(pid).memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return
    if resident:  # 0 for a process that just ended
        outcome.memory.append(resident)


def _judge(outcome: Outcome, status: int, tail: deque[str]) -> None:
    """Set the outcome's failure from the status and the last lines: also when nothing was executed, or memory grew
    too much."""
    if status:
        outcome.failure = _ENDINGS.get(status, f"status {status}")
        if any("TooSlow" in line for line in tail):
            outcome.failure = "hang"
    elif not outcome.executions:
        outcome.failure = "nothing was executed"
    elif outcome.memory and outcome.memory[-1] - outcome.memory[len(outcome.memory) // 5] > GROWTH_LIMIT:
        outcome.failure = "growth"


def _regression(folder: Path, kind: str, data: bytes) -> Path:
    """Store a failing input under a name that says what failed, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.replace(' ', '-')}-{sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    return path


def _escaped(token: bytes) -> str:
    return "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\x{c:02x}" for c in token)
