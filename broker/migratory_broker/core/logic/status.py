"""The logic's state in numbers and names, for `/v1/status`, the gauges, and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migratory_broker.core.logic.core import Logic


def describe(logic: Logic) -> dict[str, object]:
    """Plain data, JSON-ready. Ages in seconds, -1 where nothing was heard yet."""
    groups: list[dict[str, object]] = []
    roles = {"coordinator": 0, "candidate": 0, "member": 0, "learner": 0, "none": 0}
    lag = 0
    for group, standing in zip(logic.groups, logic.candidacy.standings, strict=True):
        replica, reign = group.replica, group.reign
        if reign is not None and reign.phase != "over":
            role = "coordinator" if reign.active else "candidate"
        elif replica.view is None:
            role = "none"
        else:
            role = "member" if replica.listed else "learner"
        roles[role] += 1
        uncommitted = sum(log.last - log.committed for log in replica.topics.values())
        if role == "coordinator":
            lag += uncommitted
        view = replica.view
        groups.append(
            {
                "group": group.number,
                "role": role,
                "history": f"{replica.history:016x}",
                "first": replica.first,
                "epoch": replica.synced,
                "promised": replica.promised,
                "activated": view is not None and view.activated,
                "coordinator": logic.gossip.coordinator(group.number),
                "owner": view.owner[0] if view else "",
                "members": [name for name, _ in view.members] if view else [],
                "copies": view.copies if view else 0,
                "topics": len(replica.topics),
                "uncommitted": uncommitted,
                "waiting": standing.waiting,
                "standing": standing.describe(),
            }
        )
    age = logic.zookeeper.age()
    return {
        "broker": logic.config.name,
        "cluster": logic.config.cluster,
        "incarnation": logic.ctx.incarnation,
        "ready": logic.membership.ready and not logic.ctx.fenced,
        "settled": all(group.replica.settled for group in logic.groups),
        "fenced": logic.ctx.fenced,
        "member": logic.membership.ready,
        "draining": logic.ctx.draining,
        "roles": roles,
        "waiting_groups": sum(bool(standing.waiting) for standing in logic.candidacy.standings),
        "replication_lag": lag,
        "topics": logic.bounds.topics,
        "cache_bytes": logic.bounds.bytes,
        "published": logic.ctx.published,
        "committed": logic.ctx.committed,
        "cache_short": logic.bounds.short,
        "history_resets": logic.histories.resets,
        "pending": len(logic.contact.pending),
        "balance": {
            "revision": logic.config.revision,
            "clients": logic.moves.clients,
            "share": round(logic.moves.share(), 1),
            "waits_for": logic.moves.waits_for,
            "asked": logic.moves.asked,
        },
        "zookeeper": {
            "connected": logic.zookeeper.connected,
            "age": age if age != float("inf") else -1.0,
        },
        "peers": {name: logic.ctx.links[name] for name in sorted(logic.ctx.links)},
        "live": sorted(logic.membership.live),
        "coordinators": logic.gossip.counts(),
        "groups": groups,
    }
