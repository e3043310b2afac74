"""One mutant in a process of its own: `sources` and `tests` as JSON on standard input, pytest's exit status out."""

from __future__ import annotations

import json
import sys

import pytest
from migratory_simulation import planted


def main() -> int:
    given = json.load(sys.stdin)
    planted.install_sources(given["sources"])
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--no-header", "--timeout=60"]
    return int(pytest.main([*options, *given["tests"]]))


if __name__ == "__main__":
    sys.exit(main())
