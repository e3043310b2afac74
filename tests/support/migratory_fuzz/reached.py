"""How much of the product the kept inputs reach: branch coverage of each target's modules, by coverage.py."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from migratory_fuzz import corpus, targets


def show(names: list[str]) -> int:
    """One line for each target: a process of its own, so that what one imports does not count for another."""
    for name in names:
        subprocess.run([sys.executable, "-m", "migratory_fuzz.reached", name], check=True)
    return 0


def main() -> None:
    import coverage

    name = sys.argv[1]
    report = io.StringIO()
    product = targets.load(name).product  # imported beforehand: lines that run at import are in no input's power
    files = [str(Path(sys.modules[module].__file__ or "")) for module in product]
    measured = coverage.Coverage(branch=True, include=files, data_file=None)
    measured.start()
    target = targets.load(name)
    inputs = corpus.inputs(target)
    for data in inputs:
        target.run(data)
    measured.stop()
    for file in files:
        analysis = measured._analyze(file)
        numbers = analysis.numbers
        print(
            f"{name}: {Path(file).stem}: {numbers.n_executed_branches} of {numbers.n_branches} branches, "
            f"{numbers.n_executed} of {numbers.n_statements} lines (those that run at import alone among the latter)",
            file=report,
        )
    print(report.getvalue(), end="")
    print(f"{name}: {len(inputs)} inputs, {sum(map(len, inputs)):,} bytes")


if __name__ == "__main__":
    main()
