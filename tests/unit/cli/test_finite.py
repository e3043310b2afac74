"""Numbers on the command line."""

from __future__ import annotations

import click
from click.testing import CliRunner
from migratory_cli.finite import Finite
from migratory_cli.main import main


def numbers(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Option]]:
    """Every option of a command, and of those below it, that takes a number with a fraction."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        return [found for name, one in below if one is not None for found in numbers(one, (*path, name))]
    return [
        (path, option)
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType | click.FloatRange)
    ]


def test_no_option_takes_what_is_no_number() -> None:
    """To click "nan" is in any range, and "inf" in one without an end: the commands waited for ever, or had a traceback
    from somewhere. `bench` leaves it to the scenario, `sla report` has its options from its job."""
    found = numbers(main)
    assert {path[0] for path, _ in found} >= {"pub", "sub", "demo", "status", "bench"}
    for path, option in found:
        if path[0] != "bench" and path != ("sla", "report"):
            assert isinstance(option.type, Finite), (path, option.name)
    for text in ("nan", "inf", "-inf"):
        done = CliRunner().invoke(main, ["pub", "t", "x", "--rate", text])
        assert done.exit_code == 2
        assert "--rate" in done.output
        done = CliRunner().invoke(main, ["bench", "run", "-s", "ws://127.0.0.1:1/ws", "--duration", text])
        assert done.exit_code == 2
        assert "duration" in done.output
