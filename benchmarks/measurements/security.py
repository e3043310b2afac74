"""The cost of security: TLS for a delivery and an idle client, tokens and rules for a delivery and a connect.

Ratios are taken within a round. The limit of TLS is a loop that writes one record for each delivery, and nothing else.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from migratory_broker.core.security.authorizer import ClientAccess
from migratory_broker.core.security.rules import Rule, RuleSet
from migratory_broker.core.security.tokens import VerifiedToken

from benchmarks import ipc, machine
from benchmarks.benchmark import Benchmark
from benchmarks.comparison import SystemComparison, interleaved, micros
from benchmarks.measurements.memory import measure_system
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig
from benchmarks.stats import ratios, round_stats, with_medians
from benchmarks.systems import Centrifugo, Nats, Product, RawLoop, System, Workload, python_loop

PLAIN, TLS, RAW = "without TLS", "with TLS", "raw TLS loop in Python"

_WARMUP = 1.0
"""Seconds of publishing before the first round, which are not counted."""


async def measure_tls(bench: Benchmark) -> dict[str, Any]:
    """Measure the CPU per delivery with TLS, beside a raw loop with TLS and the product without, and the memory of an
    idle client, beside the peers that have TLS for WebSocket."""
    sizes = bench.sizes
    work = Workload(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    systems: list[System] = [
        RawLoop(RAW, python_loop(), tls=True),
        Product(PLAIN),
        Product(TLS, dev_tls=True),
    ]
    comparison = SystemComparison(bench, {system.name: Rig(system, work) for system in systems})
    await comparison.start(_WARMUP)
    each = micros(await comparison.rounds())
    for rig in comparison.rigs.values():
        await rig.stop()  # the memory of other systems is measured next
    own = await measure_system(bench, Product(TLS, dev_tls=True), sizes.peer_clients)
    peers = {}
    for name, peer in (("centrifugo", Centrifugo(tls=True)), ("nats", Nats(tls=True))):
        if name in bench.missing:
            continue
        try:
            peers[name] = await measure_system(bench, peer, sizes.peer_clients)
        except MeasurementFailed as reason:
            bench.drop(name, reason)
    return {
        **with_medians(
            ratio_raw=ratios(each[TLS], each[RAW]), ratio_plain=ratios(each[TLS], each[PLAIN]),
            us_per_delivery=round_stats(each[TLS]), us_plain=round_stats(each[PLAIN]), us_raw=round_stats(each[RAW]),
        ),
        "kib_per_client": own["kib_per_client"],
        "product_in_full": own,
        "peers": {name: figures["kib_per_client"] for name, figures in peers.items()},
        "peers_in_full": peers,
        "missing_peers": bench.missing,
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


# ---- tokens and rules --------------------------------------------------------------------------------------------

OPEN, SECURED = "open", "with tokens and rules"
RULES = 20
"""Rules of the cluster, of which the last one allows what the clients do."""

DECISIONS = 200_000
"""Decisions whose CPU is measured."""

TOKEN_SECONDS = 6 * 3600
"""Seconds for which the token is valid: longer than any measurement."""


async def measure_identity(bench: Benchmark) -> dict[str, Any]:
    """Measure the CPU per delivery and per connect of a broker that verifies a token (ES256) at each connect and
    decides by rules, and of one that does neither.

    A delivery makes no decision, a publication makes one. `share_of_delivery` is the CPU of that decision, divided by
    the deliveries of a publication, of the CPU of a delivery without: the noise of a shared machine hides it in
    `ratio_open`, which compares the brokers as wholes.
    """
    sizes = bench.sizes
    work = Workload(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    token, security = signed_token(bench.folder)
    rigs = {OPEN: Rig(Product(OPEN), work)}
    rigs[SECURED] = Rig(Product(SECURED, spec={"security": security}, token=token), work)
    comparison = SystemComparison(bench, rigs)
    await comparison.start(_WARMUP)
    each = micros(await comparison.rounds())

    def reconnects(rig: Rig) -> Any:
        async def reconnect() -> float:
            await rig.receivers.close()
            before = machine.cpu(rig.system.pids)
            await rig.receivers.open()
            spent = machine.cpu(rig.system.pids) - before
            return (spent.user + spent.system) / rig.work.subscribers * 1e6

        return reconnect

    connects = await interleaved(
        sizes.rounds, {name: reconnects(rig) for name, rig in rigs.items()},
        lambda done, results: bench.say(
            f"round {done} of {sizes.rounds}, us per connect: "
            + ", ".join(f"{name} {micros_each:.1f}" for name, micros_each in results.items())
        ),
    )  # fmt: skip
    decision = decision_us(security["rules"], work)
    return {
        "rules": RULES,
        "decision_us": round(decision, 3),
        "share_of_delivery": round(decision / work.subscribers_per_topic / round_stats(each[OPEN]).median, 5),
        **with_medians(
            ratio_open=ratios(each[SECURED], each[OPEN]),
            us_per_delivery=round_stats(each[SECURED]), us_open=round_stats(each[OPEN]),
            us_per_connect=round_stats(connects[SECURED]), us_per_connect_open=round_stats(connects[OPEN]),
        ),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def decision_us(rules: list[dict[str, Any]], work: Workload) -> float:
    """Return the CPU microseconds of what one publication of an identified client costs more: the decision by the
    rules, and the publisher's name."""
    compiled = RuleSet([Rule(tuple(rule["topics"]), tuple(rule["allow"]), claims=rule["claims"]) for rule in rules])
    token = VerifiedToken("bench", {"role": f"role{RULES}"})
    access = ClientAccess(token, compiled.trees, compiled.applicable(token.subject, token.claims), None)
    topics = ipc.topic_names(work.topics, "bench")
    before = time.process_time()
    for _ in range(DECISIONS // len(topics)):
        for topic in topics:
            assert access.allows("publish", topic)
            access.qualify("publisher")
    return (time.process_time() - before) / (DECISIONS // len(topics) * len(topics)) * 1e6


def signed_token(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a token, and the section `security` of the cluster that accepts it. The public key is written into the
    folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    file = folder / "token.pem"
    file.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    claims = {"sub": "bench", "exp": int(time.time()) + TOKEN_SECONDS, "role": f"role{RULES}"}
    allow = ["subscribe", "publish", "history"]
    rules = [
        {"claims": {"role": [f"role{number}"]}, "topics": ["bench/**"], "allow": [*allow]}
        for number in range(1, RULES + 1)
    ]
    tokens = {"keys": [{"algorithms": ["ES256"], "file": str(file)}]}
    return jwt.encode(claims, key, "ES256"), {"tokens": tokens, "rules": rules}
