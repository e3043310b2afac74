"""Faults of ZooKeeper processes: a follower, the leader, the majority or all members killed or frozen, or all
emptied."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from typing import Literal, get_args

from migratory_local.cluster.zookeeper import ZooKeeperMember

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.processes.scene import ProcessScene

Members = Literal["follower", "leader", "majority", "all"]
MEMBERS: tuple[Members, ...] = get_args(Members)
ELECTION_SECONDS = 30.0
"""Seconds for the election of another leader, or for the old one to notice that it has no quorum, at most."""


@dataclass(frozen=True)
class EmptyMembers(Fault[ProcessScene]):
    """All ZooKeeper members are killed, and start after `seconds` without their data."""

    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        members = list(scene.cluster.ensemble.members)
        names = [member.name for member in members]
        await scene.start_injection(*names)
        with scene.held(names):
            for member in members:
                member.process.kill()
                scene.prove_killed(member.name, member.process.exit_code, (member.placement.address, member.port))
            for member in members:
                await asyncio.to_thread(shutil.rmtree, member.folder / "version-2")
            await asyncio.sleep(self.seconds)


@dataclass(frozen=True)
class LoseMembers(Fault[ProcessScene]):
    """ZooKeeper members are killed, or frozen if `freeze`, for `seconds`. Killed members find their data at the next
    start."""

    which: Members
    freeze: bool
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        victims = self._pick_members(scene, await scene.cluster.leader())
        names = [member.name for member in victims]
        await scene.start_injection(*names)
        if self.freeze:
            async with scene.frozen([member.process for member in victims]):
                await self._stay_away(scene, names)
            return
        with scene.held(names):
            for member in victims:
                member.process.kill()
                scene.prove_killed(member.name, member.process.exit_code, (member.placement.address, member.port))
            await self._stay_away(scene, names)

    async def _stay_away(self, scene: ProcessScene, victims: list[str]) -> None:
        if self.which != "follower":
            await self._prove_leader_lost(scene, victims)
        await asyncio.sleep(self.seconds)

    def _pick_members(self, scene: ProcessScene, leader: ZooKeeperMember | None) -> list[ZooKeeperMember]:
        members = list(scene.cluster.ensemble.members)
        scene.random.shuffle(members)
        match self.which:
            case "leader":
                return [leader] if leader is not None else members[:1]
            case "follower":
                return [member for member in members if member is not leader][:1]
            case "majority":
                return members[: len(members) // 2 + 1]
            case "all":
                return members

    async def _prove_leader_lost(self, scene: ProcessScene, victims: list[str]) -> None:
        """Prove that another member leads, or, when the victims took the quorum away, that none leads."""
        others = [member for member in scene.cluster.ensemble.members if member.name not in victims]
        has_quorum = self.which == "leader"

        async def look() -> Observation:
            modes = await asyncio.gather(*(asyncio.to_thread(member.mode) for member in others))
            leaders = [member.name for member, mode in zip(others, modes, strict=True) if mode == "leader"]
            return bool(leaders) == has_quorum, ", ".join(leaders) or "none"

        await scene.wait_until("leader", "another member" if has_quorum else "none", look, ELECTION_SECONDS)
