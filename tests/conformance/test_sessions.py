"""Test that the Python client's core agrees with the conformance sessions, `vectors/sessions.json`.

A session is a script of what happens to a client and of what the client must do: at each step all effects since the
step before. The clock stands where the script says, and every deadline before it is met. `random` is the number that
the core draws each time. clients/js/test/vectors.test.js runs the same sessions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from migratory_client.core import events as ev
from migratory_client.core.servers import parse_servers
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol.codec import JSON
from migratory_protocol.messages import Server
from migratory_testing.corejson import effects_to_json, event_from_json

SESSIONS = json.loads((Path(__file__).parent / "vectors" / "sessions.json").read_text("ascii"))


def replay(session: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the effects of each step of a session."""
    entries = [item if isinstance(item, str) else Server(**item) for item in session["servers"]]
    core = ClientCore(
        parse_servers(entries)[0],
        lambda: float(session["random"]),
        client="c",
        publisher="p",
        token=session.get("token"),
        settings=Settings(request_token=session.get("asksForTokens", False), **session.get("settings", {})),
        codec=JSON,
    )
    found = []
    for step in session["steps"]:
        effects: list[ev.Effect] = []
        while core.deadline <= step["at"]:
            effects += core.step(ev.Tick(), core.deadline)
        if "event" in step:
            effects += core.step(event_from_json(step["event"]), step["at"])
        found.append(effects_to_json(effects))
    return found


@pytest.mark.parametrize("session", [pytest.param(item, id=item["name"]) for item in SESSIONS["cases"]])
def test_client_does_what_the_session_says(session: dict[str, Any]) -> None:
    assert replay(session) == [step["effects"] for step in session["steps"]]
