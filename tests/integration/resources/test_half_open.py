"""Half-open connections: the broker ends the connection of a client that has vanished or stays silent, and frees its
memory."""

from __future__ import annotations

import contextlib

import pytest
from migratory_testing.crowd import all_ended, closed, descriptors, gather
from migratory_testing.processes import Broker
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

HEARTBEAT = 3.0
SETTINGS = {"topics": {"groups": 4}, "limits": {"heartbeat": HEARTBEAT}}
COUNT = 500


async def test_vanished_and_silent_clients_are_detected(broker: Broker) -> None:
    used, dead, lost_count = descriptors(broker), closed(broker, "heartbeat"), closed(broker, "lost")
    silent = await gather(broker, COUNT)
    for member in silent:
        member.answers = False
    vanished = await gather(broker, COUNT)
    with contextlib.suppress(PermissionError):  # without the right to do so they are silent ones, too
        for member in vanished:
            member.vanish()
    # A ping to one that vanished meets a machine that knows no such connection; a silent one's is merely not answered.
    await poll_apart(lambda: closed(broker, "heartbeat") >= dead + COUNT, "the silent are found", limit=60.0)

    def found() -> bool:
        return closed(broker, "heartbeat") + closed(broker, "lost") >= dead + lost_count + 2 * COUNT

    await poll_apart(found, "all are found", limit=60.0)
    await all_ended(silent)
    await all_ended(vanished)
    await poll_apart(lambda: descriptors(broker) <= used, "descriptors are given back")
    assert broker.metric("migratory_clients") == 0
    assert broker.metric("migratory_subscriptions") == 0
