"""The `migratory` command: its subcommands, and how they are imported.

The module of a subcommand is imported when that subcommand runs, not before: a broker must not import Spark, and a
missing library must not break the commands that do without it.
"""

from __future__ import annotations

import sys

from migratory_cli import startup

# Before anything that takes time to import or opens a file, but not in a program (a test) that only imports this
# module.
if __name__ == "__main__" or sys.argv[0].endswith("migratory"):
    startup.exit_on_interrupt()
    startup.open_standard_descriptors()

from importlib import import_module, metadata
from typing import Any, NamedTuple

import click
from migratory_compiled import activate

from migratory_cli.terminal import echo


class _CommandSpec(NamedTuple):
    """The module of a subcommand and the command's name there, the extra of the package that it needs (None for none),
    and its line in `migratory --help`."""

    module: str
    attribute: str
    extra: str | None
    summary: str


COMMANDS = {
    "up": _CommandSpec("migratory_cli.commands.local", "up", "local", "Run a cluster on this machine."),
    "demo": _CommandSpec(
        "migratory_cli.commands.local", "demo", "local", "Run a cluster under load, kill a broker, verify deliveries."
    ),
    "pub": _CommandSpec("migratory_cli.commands.pub", "pub", None, "Publish to a topic."),
    "sub": _CommandSpec("migratory_cli.commands.sub", "sub", None, "Print the publications of topics."),
    "status": _CommandSpec("migratory_cli.commands.status", "status", None, "Show the status of brokers."),
    "explain": _CommandSpec(
        "migratory_cli.commands.explain", "explain", "local", "Say whether a token may do something, and why."
    ),
    "validate": _CommandSpec(
        "migratory_cli.commands.validate", "validate", "resources", "Check resources for Kubernetes."
    ),
    "drain": _CommandSpec(
        "migratory_cli.commands.drain", "drain", "local", "Take a broker of this machine out of service, or back."
    ),
    "broker": _CommandSpec("migratory_cli.commands.broker", "broker", "broker", "Run one broker."),
    "bench": _CommandSpec(
        "migratory_cli.commands.bench", "bench", "loadtest", "Put load on a cluster and verify every delivery."
    ),
    "sla": _CommandSpec("migratory_cli.commands.sla", "sla", "spark", "Judge recorded metrics against objectives."),
}


class MissingExtra(click.ClickException):
    """Raised when the libraries of a subcommand are not installed; the command exits with 3."""

    exit_code = 3


IMPORTS_LATER = ("up", "demo")
"""Commands that import most of their libraries when they run, and then handle Ctrl-C themselves."""


class LazyGroup(click.Group):
    """A group of commands that knows only their names and summaries, and imports a command's module when the command is
    used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and return its result. An error for the user is raised again, with an escape sequence for
        each character of its message that does not print.

        :raises SystemExit: with 130 after a Ctrl-C that the command did not handle.
        """
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            from migratory_cli.terminal import printable_lines

            vars(error)["message"] = printable_lines(error.message)
            raise
        except KeyboardInterrupt:
            click.echo(startup.INTERRUPTED_MESSAGE, nl=False, err=True)
            sys.exit(startup.INTERRUPTED_EXIT_CODE)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of this name, None if there is none. Let Ctrl-C raise KeyboardInterrupt from
        then on, except for IMPORTS_LATER.

        :raises MissingExtra: a library that the command needs is not installed.
        """
        spec = COMMANDS.get(cmd_name)
        if spec is None:
            return None
        try:
            module = import_module(spec.module)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if spec.extra is None or missing.partition(".")[0] == "migratory_cli":
                raise  # a broken installation, not a missing extra
            from migratory_cli.options import INSTALL_HINT

            raise MissingExtra(
                f"`migratory {cmd_name}` needs {missing}, which is not installed (extra `{spec.extra}`): {INSTALL_HINT}"
            ) from None
        command: object = getattr(module, spec.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{spec.module}:{spec.attribute} is not a click command")
        if cmd_name not in IMPORTS_LATER:
            startup.restore_interrupt()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' summaries into the help, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, spec.summary) for name, spec in COMMANDS.items()])


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print the version and end the command, if --version is given."""
    if wanted:
        echo(f"migratory, version {metadata.version('migratory')}, {activate()} cores")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version, and whether the cores are compiled or interpreted, and exit.",
)  # fmt: skip
def main() -> None:
    """Publish/subscribe to very many clients over WebSocket, in order, with nothing lost when a broker dies.

    \b
    First steps, on one machine:
      migratory demo                       a cluster, a killed broker, a report
      migratory up -f cluster.yaml         a cluster that keeps running
      migratory sub quotes/eur             in a second terminal
      migratory pub quotes/eur 1.0842      in a third one
    """


if __name__ == "__main__":
    sys.exit(main())
