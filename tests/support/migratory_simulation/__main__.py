"""`python -m migratory_simulation run|planted|...`: see docs/contributing/simulation.md."""

from __future__ import annotations

import argparse
import sys

from migratory_simulation import command, detection


def main() -> int:
    parser = argparse.ArgumentParser(prog="migratory_simulation", description="The cluster, simulated from seeds.")
    commands = parser.add_subparsers(dest="command", required=True)
    command.add_arguments(commands)
    detection.add_arguments(commands)
    arguments = parser.parse_args()
    return int(arguments.act(arguments))


if __name__ == "__main__":
    sys.exit(main())
