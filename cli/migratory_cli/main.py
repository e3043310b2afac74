"""The `migratory` command. Each subcommand's module is loaded when that subcommand is run, and not before: a broker
must not import Spark, and a missing extra must not break the commands that do without it.
"""

from __future__ import annotations

import sys

from migratory_cli import descriptors, interrupts

# Before anything that takes time to load or opens a file; but not in a program (a test, say) that merely imports this
# module.
if __name__ == "__main__" or sys.argv[0].endswith("migratory"):
    interrupts.end_at_once()
    descriptors.keep()

from importlib import import_module, metadata
from typing import Any, NamedTuple

import click


class _Lazy(NamedTuple):
    """Where a subcommand lives, the extra of the wheel that it needs, and its line in `migratory --help`."""

    module: str
    attribute: str
    extra: str | None
    summary: str


COMMANDS = {
    "up": _Lazy("migratory_cli.local", "up", "local", "Run the cluster of a file on this machine."),
    "demo": _Lazy("migratory_cli.local", "demo", "local", "Three brokers, a kill, and a report that nothing was lost."),
    "pub": _Lazy("migratory_cli.pub", "pub", None, "Publish to a topic."),
    "sub": _Lazy("migratory_cli.sub", "sub", None, "Print what is published to topics."),
    "status": _Lazy("migratory_cli.status", "status", None, "Show what brokers say about themselves."),
    "drain": _Lazy("migratory_cli.drain", "drain", "local", "Take a broker of that cluster out of service, or back."),
    "broker": _Lazy("migratory_cli.broker", "broker", "broker", "Run one broker."),
    "bench": _Lazy("migratory_cli.bench", "bench", "loadtest", "Measure: publishers, subscribers, a verifier."),
    "sla": _Lazy("migratory_cli.sla", "sla", "spark", "Report on recorded samples: percentiles, gaps, a verdict."),
}


class MissingExtra(click.ClickException):
    """A subcommand's libraries are not installed."""

    exit_code = 3


LOADS_MORE = ("up", "demo")
"""Commands that load most of their libraries when they are run, and then take Ctrl-C over themselves."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary alone."""

    def invoke(self, ctx: click.Context) -> Any:
        """:raises SystemExit: with 130 after a Ctrl-C that no command took for its own."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(interrupts.MESSAGE, nl=False, err=True)
            sys.exit(interrupts.INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        try:
            module = import_module(lazy.module)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if lazy.extra is None or missing.partition(".")[0] == "migratory_cli":
                raise  # a broken installation, not a missing extra
            raise MissingExtra(
                f"`migratory {cmd_name}` needs {missing}, which is not installed.\n"
                f'Install it with: pip install "migratory[{lazy.extra}]"'
            ) from None
        command: object = getattr(module, lazy.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{lazy.module}:{lazy.attribute} is not a click command")
        if cmd_name not in LOADS_MORE:
            interrupts.as_usual()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table: help needs no subcommand's module."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(metadata.version("migratory"), prog_name="migratory")
def main() -> None:
    """Publish/subscribe to very many clients over WebSocket, in order, with nothing lost when a broker dies.

    \b
    A first look, on one machine:
      migratory demo                       a cluster, a killed broker, a report
      migratory up -f cluster.yaml         a cluster that stays
      migratory sub quotes/eur             in a second terminal
      migratory pub quotes/eur 1.0842      in a third
    """


if __name__ == "__main__":
    sys.exit(main())
