"""Positions in the application's arguments: which forms are accepted, and the errors for all others."""

from __future__ import annotations

import json

import pytest
from migratory_client import Position, parse_position
from migratory_client.arguments import as_positions

AT = Position(7, 2)


@pytest.mark.parametrize("place", [AT, "7:2", [7, 2], (7, 2), str(AT), json.loads(json.dumps(AT))], ids=repr)
def test_as_positions_accepts_every_form(place: object) -> None:
    for after in (place, {"t": place}, {"t": place, "left since": "1:1"}):
        positions = as_positions(after, ("t",))
        assert positions == {"t": AT}
        assert isinstance(positions["t"], Position)
    assert as_positions(place, ("t", "t")) == {"t": AT}


def test_as_positions_ignores_other_topics() -> None:
    assert as_positions({"b": "7:2"}, ("a", "b")) == {"b": AT}
    assert as_positions({}, ("a",)) == as_positions(None, ("a",)) == {}


@pytest.mark.parametrize(
    ("after", "error", "says"),
    [
        ("1", ValueError, "after is '1': position '1' is not \"epoch:sequence\""),
        ([1], ValueError, r"after is '\[1\]': a position must have two parts"),
        ((1, -2), ValueError, "epoch and sequence of a position must be whole numbers"),
        ([1, True], ValueError, "whole numbers"),
        ({"t": "x:y"}, ValueError, r"after\['t'\] is 'x:y'"),
        ({"t": 5}, TypeError, r"after\['t'\] is a Position, \"epoch:sequence\" or \[epoch, sequence\], not int"),
        (5, TypeError, "after is a Position, .* not int"),
        (b"1:2", TypeError, "not bytes"),
    ],
)
def test_malformed_position_is_named(after: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        as_positions(after, ("t",))


def test_single_position_requires_a_single_topic() -> None:
    with pytest.raises(ValueError, match="one position for several topics: give a mapping"):
        as_positions("1:2", ("a", "b"))


def test_position_text_is_parsed_back() -> None:
    assert parse_position(str(AT)) == AT
