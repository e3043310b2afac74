"""The README's table from one result of the benchmarks: `python -m benchmarks.readme RESULT.json` (`make
bench-readme`).

The table is between two comments, which are inserted above "Try it" the first time. Figures that were not measured have
no row, and missing peers are named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.targets import look_up

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- made by python -m benchmarks.readme -->", "<!-- end of what is made -->"
BEFORE = "## Try it"

# (label, key of the figure, unit, key of a ratio, and what the ratio refers to)
ROWS = (
    ("CPU of a delivery", "fanout.us_per_delivery", "us", "fanout.ratio_best_peer", "of {fanout}"),
    ("the same, beside a loop of `send()` in C", "fanout.us_per_delivery", "us", "fanout.ratio_raw", "of the loop"),
    ("memory of an idle subscriber", "memory.kib_per_client", "KiB", "", ""),
    ("acknowledged publications, two copies of three", "publish.pipelined_per_s", "/s", "publish.ratio_jetstream",
     "of JetStream R3 in memory"),
    ("one at a time", "publish.single_ms", "ms", "publish.single_ratio_jetstream", "of JetStream R3 in memory"),
    ("CPU of a message with batching of 100 ms", "batching.us_per_message", "us", "batching.ratio_unbatched",
     "of that without"),
    ("a broker is killed: its clients are back (P99)", "failover.resume_seconds.p99", "s", "", ""),
)  # fmt: skip


def table(result: Mapping[str, Any]) -> str:
    """Return the table and the line that describes the run."""
    names = {"fanout": result.get("fanout", {}).get("best_peer") or "the best peer"}
    lines = ["| | measured | ratio |", "| --- | --- | --- |"]
    for text, key, unit, ratio_key, of in ROWS:
        value = look_up(result, key)
        if value is None:
            continue
        ratio = look_up(result, ratio_key) if ratio_key else None
        lines.append(
            f"| {text} | {_number(value)} {unit} | "
            + ("" if ratio is None else f"**{ratio:.2f}** {of.format(**names)}")
            + " |"
        )
    machine, sizes = result["machine"], result["sizes"]
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"].items()) or "no peers"
    missing = f"; missing: {', '.join(result['missing_peers'])}" if result["missing_peers"] else ""
    lines.append("")
    lines.append(
        f"{sizes['subscribers']:,} subscribers on {sizes['topics']} topics, {sizes['payload']} bytes, WebSocket over "
        f"loopback, {machine['cores']} cores shared with the clients; medians of {sizes['rounds']} interleaved rounds, "
        f"ratios within each round, beside {versions}{missing}. `make bench` measures it again "
        "([how](docs/how-to/loadtest.md#benchmarks))."
    )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def insert_table(readme: str, text: str) -> str:
    """Return the README with its table replaced or inserted. Raise ValueError when there is no place for it."""
    block = f"{BEGIN}\n{text}\n{END}"
    if BEGIN in readme and END in readme:
        head, tail = readme.split(BEGIN, 1)
        return head + block + tail.split(END, 1)[1]
    if BEFORE not in readme:
        raise ValueError(f"no {BEFORE!r} to put the table above")
    return readme.replace(BEFORE, f"## What it costs\n\n{block}\n\n{BEFORE}", 1)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m benchmarks.readme RESULT.json", file=sys.stderr)
        return 2
    result = json.loads(Path(arguments[0]).read_text())
    README.write_text(insert_table(README.read_text(), table(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
