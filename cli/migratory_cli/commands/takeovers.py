"""For `kubectl migratory takeovers`: selects the log lines of brokers that belong to takeovers, and formats them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

_OF_GROUPS = frozenset(
    {
        "epoch_activated",
        "group_handed_over",
        "group_waits",
        "history_lost_halted",
        "history_reset",
        "record_refused",
        "record_written",
        "resigned",
        "term_ended",
    }
)
"""Events about one topic group, whose number they have as `group`."""
_OF_BROKERS = frozenset(
    {
        "drain_started",
        "draining",
        "fenced",
        "no_longer_fenced",
        "peer_down",
        "peer_silent",
        "ready",
        "started",
        "stopping",
        "was_frozen",
        "zookeeper_state",
    }
)
"""Events about a broker that may begin or end a takeover of the groups that it coordinates."""
_COMMON = ("time", "level", "event", "cluster", "broker")


def takeover_entries(lines: Iterable[str], group: int | None) -> list[dict[str, Any]]:
    """Return the entries that tell about takeovers, by time: those about topic groups, and those about the brokers'
    lives and links. Lines that are not of a broker's log are left out.

    :param lines: lines of brokers' logs, in any order.
    :param group: the topic group to show; None for all. Entries about brokers are shown in any case.
    """
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("time"), int | float):
            continue
        event = entry.get("event")
        is_of_group = event in _OF_GROUPS and group in (None, entry.get("group"))
        if is_of_group or event in _OF_BROKERS:
            entries.append(entry)
    return sorted(entries, key=lambda entry: float(entry["time"]))


def format_entry(entry: dict[str, Any]) -> str:
    """Return an entry as one line: time of day in UTC, broker, event and the other fields."""
    moment = datetime.fromtimestamp(entry["time"], UTC).strftime("%H:%M:%S.%f")[:-3]
    fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in _COMMON)
    return f"{moment}  {entry.get('broker', '-')}  {entry['event']}  {fields}".rstrip()
