"""`migratory sub`: the forms that its option --after accepts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from migratory_cli.commands.sub import _position, sub
from migratory_cli.main import main
from migratory_client import Position


@pytest.mark.parametrize(
    "text", ["1764284400000:17", " 1764284400000:17 ", "[1764284400000, 17]", " [1764284400000,17]"]
)
def test_after_accepts_both_forms_of_a_position(text: str) -> None:
    assert _position(click.Context(sub), sub.params[0], text) == Position(1764284400000, 17)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("17", """position '17' is not "epoch:sequence\""""),
        ("[1, 2, 3]", "a position must have two parts, epoch and sequence"),
        ("[1, -2]", "epoch and sequence of a position must be whole numbers"),
        ("[1", "'[1' is neither \"epoch:sequence\" nor [epoch, sequence]"),
    ],
)
def test_after_rejects_other_text_with_the_reason(text: str, problem: str) -> None:
    result = CliRunner().invoke(main, ["sub", "t", "--after", text])
    assert result.exit_code == 2
    assert "Invalid value for '--after': " in result.output
    assert problem in result.output
