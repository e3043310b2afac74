"""`python -m migratory_chaos run|check|kubernetes`: see docs/contributing/chaos.md."""

from __future__ import annotations

import argparse
import sys

from migratory_chaos.kubernetes import command as kubernetes
from migratory_chaos.processes import command as processes


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="migratory_chaos",
        description="Inject real faults into a cluster under load and account for every delivery.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    processes.add_commands(commands)
    on_kubernetes = commands.add_parser("kubernetes", help="the same on a Kubernetes")
    kubernetes.add_commands(on_kubernetes.add_subparsers(dest="subcommand", required=True))
    arguments = parser.parse_args()
    return int(arguments.handle(arguments))


if __name__ == "__main__":
    sys.exit(main())
