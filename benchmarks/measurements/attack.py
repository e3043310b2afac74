"""Attacks on a broker: the latency of well-behaved clients, their lost connections, and the broker's memory.

Each round of an attack is followed by a control round, in which the attacker's process burns as much CPU as it has used
for the attack, at the same priority and on the same core. So what the ratio of both latencies shows is the broker's.
Every delivery to the others is counted, also those that come after a reconnect.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, get_args

from migratory_local.metrics.exposition import SeriesTable
from msgspec import Struct, field

from benchmarks import ipc, machine
from benchmarks.benchmark import Benchmark, Sizes
from benchmarks.comparison import latencies
from benchmarks.processes import HelperProcess, MeasurementFailed
from benchmarks.rig import Rig, RoundResult
from benchmarks.stats import ratios, round_stats
from benchmarks.systems import Product, Workload

SOURCE = "127.0.0.9"
"""The address of the attackers. The others have another one."""

LEAD_SECONDS = 1.0
"""Seconds of an attack before the latency of others counts."""

SETTLE_SECONDS = 2.0
"""Seconds after an attack in which the broker handles its end."""

SAMPLE_SECONDS = 0.5
"""Seconds between two readings of the broker's memory."""

BROKER_BYTES = 60 * 2**20
"""Bytes of memory of a broker without clients (docs/how-to/tune.md)."""

CLIENT_BYTES = 2048
"""Bytes of memory of a client (docs/how-to/tune.md)."""

NICENESS = 10
"""Attackers give way to the others' processes, whose latency must be the broker's and not their own core's."""


ADDRESS_RATES = {"publicationsPerSecond": 1000, "subscriptionsPerSecond": 1000}
"""Rates of an attacker's address, where it has limits: a twentieth of what the floods send."""


def spec(address_connections: int) -> dict[str, Any]:
    """Return the fields of the cluster file that are set: the rate of connects has its default, and compression is on,
    without which compressed frames would be refused unseen. With a limit of connections, each address but that of the
    others may also open a quarter as many a second, and has `ADDRESS_RATES`."""
    limits: dict[str, Any] = {"connectsPerSecond": 5000}
    if address_connections:
        limits["addresses"] = {
            "connections": address_connections, "connectsPerSecond": max(1, address_connections // 4),
            "exempt": ["127.0.0.1/32"], **ADDRESS_RATES,
        }  # fmt: skip
    return {"delivery": {"compression": True}, "limits": limits}


class AttackRound(Struct, kw_only=True):
    """A round: its result, what the attacker did, and the others' connections that were lost."""

    result: RoundResult
    attacker: ipc.AttackReport
    disconnected: int


class MemoryPeaks(Struct):
    """The highest readings of a broker: `pss` in bytes, and the bytes of each kind that clients take, beside the
    limits."""

    pss: int = 0
    kernel: int = 0  # bytes of the kernel's memory, for all of this machine
    used: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    longest_stall: float = 0.0  # seconds that the broker's loop took for one turn

    def add(self, pss: int, kernel: int, page: str) -> None:
        """Add a reading, and the broker's metrics at the same time."""
        table = SeriesTable()
        self.pss, self.kernel = max(self.pss, pss), max(self.kernel, kernel)
        for number, value in zip(*table.read("", page, {}), strict=True):
            kind = table.labels[number].get("kind", "")
            match table.metrics[number]:
                case "migratory_client_bytes":
                    self.used[kind] = max(value, self.used.get(kind, 0.0))
                case "migratory_client_bytes_limit":
                    self.limits[kind] = value
                case "migratory_loop_longest_stall_seconds":
                    self.longest_stall = max(self.longest_stall, value)

    def cap(self, cache: int, clients: int) -> float:
        """Return the bytes that a broker with these caches and clients may take."""
        return sum(self.limits.values()) + cache + BROKER_BYTES + CLIENT_BYTES * clients


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure each attack on a broker of its own. An attack that others do not survive is dropped, with the reason."""
    attacks = {}
    for kind in get_args(ipc.AttackKind):
        bench.say(f"attack: {kind}")
        try:
            attacks[kind] = await _measure_attack(bench, kind)
        except MeasurementFailed as error:
            bench.drop(kind, error)
    return summary(attacks, bool(bench.dropped))


def summary(attacks: Mapping[str, Mapping[str, Any]], incomplete: bool) -> dict[str, Any]:
    """Return the result. The worst ratios are None if there is no figure for an attack."""

    def worst(key: str) -> float | None:
        values = [attack[key] for attack in attacks.values()]
        return None if incomplete else max((getattr(value, "median", value) for value in values), default=None)

    return {
        "attacks": attacks,
        "worst_p99_ratio": worst("p99_ratio"),
        "others_disconnected": None if incomplete else sum(attack["disconnected"] for attack in attacks.values()),
        "memory_ratio": worst("memory_ratio"),
        "load_average": os.getloadavg()[0],
    }


def attacker_setup(sizes: Sizes, kind: ipc.AttackKind, address: ipc.Address) -> ipc.AttackerSetup:
    """Return the setup of an attack of this kind."""
    rate = {
        "stalled readers": sizes.attack_clients / 2, "connects": sizes.attack_connects,
        "hostile frames": sizes.attack_frames,
    }.get(kind, sizes.attack_messages)  # fmt: skip
    return ipc.AttackerSetup(
        kind=kind, address=address, source=SOURCE, connections=sizes.attack_clients, rate=rate
    )  # fmt: skip


async def _measure_attack(bench: Benchmark, kind: ipc.AttackKind) -> dict[str, Any]:
    sizes = bench.sizes
    work = Workload(
        subscribers=sizes.attack_live, topics=min(sizes.topics, sizes.attack_live), payload=sizes.payload,
        rate=sizes.rate,
    )  # fmt: skip
    product = Product(spec=spec(sizes.attack_address_connections), dev_tls="TLS" in kind)
    async with AsyncExitStack() as stack:
        rig = Rig(product, work, reconnects=True)
        stack.push_async_callback(rig.stop)
        await rig.start()
        await rig.run_round(work.rate, 1.0)
        _, core = machine.cores()
        setup = attacker_setup(sizes, kind, product.addresses[0])
        attacker = await HelperProcess.start("benchmarks.attacker", setup, core, NICENESS)
        stack.push_async_callback(attacker.stop)
        await attacker.ready(30.0)
        peaks, kernel = MemoryPeaks(), machine.kernel_memory()
        attacked: list[AttackRound] = []
        control: list[AttackRound] = []
        seconds = sizes.attack_seconds + LEAD_SECONDS
        for number in range(sizes.rounds):
            attacked.append(await _round(rig, attacker, ipc.Attack(seconds), sizes.attack_seconds, peaks))
            await asyncio.sleep(SETTLE_SECONDS)
            used = attacked[-1].attacker
            burn = ipc.Burn(used.user + used.system, seconds)
            control.append(await _round(rig, attacker, burn, sizes.attack_seconds))
            bench.say(
                f"round {number + 1} of {sizes.rounds}: P99 {attacked[-1].result.p99_ms} ms, control "
                f"{control[-1].result.p99_ms} ms; attacker: {used.opened:,} connections, {used.closed:,} closed by the "
                f"broker, {used.sent:,} messages, {used.user + used.system:.1f} s CPU"
            )
    cache = product.cluster.resource.spec.topics.cache.max_bytes
    figures = attack_summary(attacked, control, peaks, cache, sizes.attack_live + sizes.attack_clients)
    return {**figures, "kernel_growth_mib": round(max(0, peaks.kernel - kernel) / 2**20, 1)}


async def _round(
    rig: Rig, attacker: HelperProcess, command: ipc.Attack | ipc.Burn, seconds: float, peaks: MemoryPeaks | None = None
) -> AttackRound:
    """Let the attacker run, and publish to the others meanwhile. Add readings of the broker to `peaks`."""
    before = (await rig.receivers.report()).disconnected
    attack = asyncio.create_task(attacker.ask(command, ipc.AttackReport, command.seconds + 60.0))
    sampling = asyncio.create_task(_sample(rig, peaks or MemoryPeaks()))
    try:
        await asyncio.sleep(LEAD_SECONDS)
        result, totals = await rig.run_round(rig.work.rate, seconds)
        report = await attack
    finally:
        attack.cancel()
        sampling.cancel()
    assert totals is not None
    disconnected = (await rig.receivers.report()).disconnected - before
    return AttackRound(result=result, attacker=report, disconnected=disconnected)


async def _sample(rig: Rig, peaks: MemoryPeaks) -> None:
    """Read the broker's memory until this is cancelled. Control rounds are read as well: readings take time."""
    assert isinstance(rig.system, Product)
    cluster = rig.system.cluster
    while True:
        answer = await cluster.brokers[0].get_admin(cluster.http, "/metrics")
        if answer is not None and answer[0] == 200:
            peaks.add(machine.pss(rig.system.pids), machine.kernel_memory(), answer[1])
        await asyncio.sleep(SAMPLE_SECONDS)


def attack_summary(
    attacked: list[AttackRound], control: list[AttackRound], peaks: MemoryPeaks, cache: int, clients: int
) -> dict[str, Any]:
    """Return the figures of one attack."""
    _, p99 = latencies([each.result for each in attacked])
    _, control_p99 = latencies([each.result for each in control])
    cap = peaks.cap(cache, clients)
    shares = {kind: used / peaks.limits[kind] for kind, used in peaks.used.items() if peaks.limits.get(kind)}
    reports = [each.attacker for each in attacked]
    return {
        "p99_ms": round_stats(p99),
        "control_p99_ms": round_stats(control_p99),
        "p99_ratio": ratios(p99, control_p99),
        "disconnected": sum(each.disconnected for each in attacked),
        "control_disconnected": sum(each.disconnected for each in control),
        "memory_mib": round(peaks.pss / 2**20, 1),
        "memory_cap_mib": round(cap / 2**20),
        "memory_ratio": round(max(peaks.pss / cap, *shares.values(), 0.0), 4),
        "client_bytes": {kind: {"used": used, "limit": peaks.limits.get(kind)} for kind, used in peaks.used.items()},
        "longest_stall_ms": round(peaks.longest_stall * 1e3, 1),
        "attackers": reports,
        "attackers_cpu": round_stats([report.user + report.system for report in reports]),
        "control_cpu": round_stats([each.attacker.user for each in control]),
        "broker_cpu_seconds": round_stats([each.result.user + each.result.system for each in attacked]),
    }
