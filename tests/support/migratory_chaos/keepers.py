"""Faults of ZooKeeper: a member, the leader, the majority or all members killed or frozen."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import ClassVar, Literal

from migratory_local.cluster.zookeeper import ZooKeeperMember

from migratory_chaos.faults import Fault, Scene, refused, state

Which = Literal["follower", "leader", "majority", "all"]
WHICH: tuple[Which, ...] = ("follower", "leader", "majority", "all")
ELECTION_SECONDS = 30.0


@dataclass(frozen=True)
class LoseMembers(Fault):
    """Killed (`freeze` False) or frozen for `seconds`. Killed ones find their data when they are started again."""

    which: Which
    freeze: bool
    seconds: float
    kind: ClassVar[str] = "ZooKeeper"

    async def inflict(self, scene: Scene) -> None:
        cluster = scene.cluster
        leader = await cluster.leader()
        victims = _victims(scene, leader, self.which)
        names = [member.name for member in victims]
        for name in names:
            cluster.supervisor.hold(name)
        try:
            await scene.blow(*names)
            for member in victims:
                if self.freeze:
                    member.process.signal(signal.SIGSTOP)
                    await scene.happens(f"state of {member.name}", "T", lambda m=member: _state(m), 5.0)  # type: ignore[misc]
                else:
                    member.process.kill()
                    scene.prove(f"exit code of {member.name}", -signal.SIGKILL, member.process.exit_code)
                    met = refused(member.placement.address, member.port)
                    scene.prove(f"a connection to {member.name}", "refused", met)
            if self.which == "leader":
                await scene.happens("leader", "another member", lambda: _leader(scene, names), ELECTION_SECONDS)
            elif self.which in ("majority", "all"):
                await scene.happens("leader", "none", lambda: _leader(scene, names, nobody=True), ELECTION_SECONDS)
            await asyncio.sleep(self.seconds)
        finally:
            for member in victims:
                if self.freeze:
                    member.process.signal(signal.SIGCONT)
                cluster.supervisor.release(member.name)


def _victims(scene: Scene, leader: ZooKeeperMember | None, which: Which) -> list[ZooKeeperMember]:
    members = list(scene.cluster.ensemble.members)
    scene.random.shuffle(members)
    match which:
        case "leader":
            return [leader] if leader is not None else members[:1]
        case "follower":
            return [member for member in members if member is not leader][:1]
        case "majority":
            return members[: len(members) // 2 + 1]
        case "all":
            return members


async def _state(member: ZooKeeperMember) -> tuple[bool, object]:
    seen = state(member.process.pid)
    return seen == "T", seen


async def _leader(scene: Scene, victims: list[str], nobody: bool = False) -> tuple[bool, object]:
    alive = [member for member in scene.cluster.ensemble.members if member.name not in victims]
    modes = await asyncio.gather(*(asyncio.to_thread(member.mode) for member in alive))
    leaders = [member.name for member, mode in zip(alive, modes, strict=True) if mode == "leader"]
    return bool(leaders) != nobody, ", ".join(leaders) or "none"
