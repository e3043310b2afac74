"""The status of the logic as plain data, for the status page, the metrics and tests."""

from __future__ import annotations

from migratory_broker.core.logic.logic import Logic


def describe_logic(logic: Logic) -> dict[str, object]:
    """Return the status of the logic as JSON values: of the broker, and in `groups` of each topic group. Changes
    nothing. `age` of `zookeeper` is the seconds since the sending of the last own read that ZooKeeper answered, -1
    before the first."""
    groups: list[dict[str, object]] = []
    roles = {"coordinator": 0, "candidate": 0, "member": 0, "learner": 0, "none": 0}
    lag = 0
    for group, state in zip(logic.groups, logic.election.states, strict=True):
        replica, term = group.replica, group.term
        if term is not None and term.phase != "over":
            role = "coordinator" if term.active else "candidate"
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
                "waiting": state.waiting,
                "election_state": state.describe(),
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
        "waiting_groups": sum(bool(state.waiting) for state in logic.election.states),
        "replication_lag": lag,
        "topics": logic.cache.topics,
        "cache_bytes": logic.cache.bytes,
        "published": logic.ctx.published,
        "committed": logic.ctx.committed,
        "cache_short": logic.cache.short,
        "history_resets": logic.histories.resets,
        "pending": len(logic.answers.pending),
        "pending_bytes": logic.answers.held,
        "balance": {
            "revision": logic.config.revision,
            "clients": logic.client_balancer.clients,
            "share": round(logic.client_balancer.share(), 1),
            "waits_for": logic.client_balancer.waits_for,
            "moves_asked": logic.client_balancer.moves_asked,
        },
        "zookeeper": {
            "connected": logic.zookeeper.connected,
            "age": age if age != float("inf") else -1.0,
            "identity": logic.zookeeper.identity,
            "data_losses": logic.identity.losses,
        },
        "peers": {name: logic.ctx.links[name] for name in sorted(logic.ctx.links)},
        "live": sorted(logic.membership.live),
        "coordinators": logic.gossip.counts(),
        "groups": groups,
    }
