"""`python -m benchmarks` with small sizes: fan-out, publishing, failover, connect storm and cycles of connections run
to their end and give figures. Peers that are not installed are named, and without any latency is reported as not
measured."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks import ipc, peers

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
LIMIT = 240.0  # seconds; a machine that is busy takes 4 s for each broker


async def bench(tmp_path: Path, *arguments: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Run the benchmarks with tiny sizes. Return the result and the output. Fail on an exit status other than 0 and 1,
    and if a measurement failed; missed targets (1) are allowed."""
    path = tmp_path / "result.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks", "--tiny", "--rounds", "1", "--json", str(path), *arguments,
        cwd=ROOT, env={**os.environ, **variables}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    assert process.returncode in (0, 1), text
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["failed"] == {}, text
    return result, text


@pytest.mark.timeout(LIMIT + 30)
async def test_fanout_and_publish_measure_every_installed_peer(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "fanout", "--only", "publish", "--plots", str(tmp_path / "plots"))
    here = [peer.name for peer in peers.PEERS if peers.find(peer.name)]
    fanout = result["fanout"]
    assert sorted(fanout["peers"]) == sorted(here)
    assert sorted([*here, *fanout["missing_peers"]]) == sorted(peer.name for peer in peers.PEERS)
    assert {"product", "raw loop in C", "raw loop in Python", *here} < fanout["contenders"].keys()
    assert fanout["us_per_delivery"] > 0
    assert result["publish"]["pipelined_per_s"] > 0
    assert result["publish"]["single_ms"]["median"] > 0
    assert (result["publish"]["ratio_jetstream"] is None) == ("nats" not in here)
    assert (tmp_path / "plots" / "fanout.png").exists()


@pytest.mark.timeout(LIMIT + 30)
async def test_missing_peers_are_named_in_the_result(tmp_path: Path) -> None:
    """The result and the output name each peer whose program is not on the PATH, and without any peer its figures
    are None. A peer that is installed is measured."""
    missing = [peer.name for peer in peers.PEERS if shutil.which(peer.program) is None]
    result, text = await bench(
        tmp_path, "--only", "fanout", "--only", "latency", XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    fanout = result["fanout"]
    assert result["missing_peers"] == fanout["missing_peers"] == missing
    assert sorted(fanout["peers"]) == sorted(peer.name for peer in peers.PEERS if peer.name not in missing)
    assert fanout["us_per_delivery"] > 0
    assert ("MISSING PEERS: " + ", ".join(missing) in text) or not missing
    if not fanout["peers"]:
        assert (fanout["best_peer"], fanout["ratio_best_peer"]) == (None, None)
        assert "no peer is installed" in result["not_measured"]["latency"]


@pytest.mark.timeout(LIMIT + 30)
async def test_attacks_disconnect_nobody_else(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "attack", "--plots", str(tmp_path / "plots"))
    assert result["attack"]["attacks"].keys() == set(get_args(ipc.AttackKind))
    assert result["attack"]["others_disconnected"] == 0
    assert result["attack"]["memory_ratio"] < 1
    assert (tmp_path / "plots" / "attack.png").exists()


@pytest.mark.timeout(LIMIT + 30)
async def test_failover_resumes_clients_and_loses_nothing(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "failover")
    failover = result["failover"]
    assert failover["killed_clients"] > 0
    assert failover["resumed"] == failover["disconnected"] == failover["killed_clients"]
    assert (failover["lost"], failover["repeated"], failover["others_disconnected"]) == (0, 0, 0)
    assert sum(failover["connections_before"]) == sum(failover["connections_after"]) == failover["clients"]
    assert failover["connections_after"][1] == 0
    assert failover["before_ms"]["count"] > 0
    assert failover["after_ms"]["count"] > 0


@pytest.mark.timeout(LIMIT + 30)
async def test_takeovers_lose_nothing_and_have_gaps(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "takeover")
    for name in ("kill", "hang", "kill_many_groups"):
        takeover = result["takeover"][name]
        assert takeover["faults"] == result["sizes"]["takeover_faults"]
        assert 0 < takeover["publish_gap_p99"] <= takeover["publish_gap_worst"]
        assert takeover["unanswered"] == 0


@pytest.mark.timeout(LIMIT + 30)
async def test_storm_replays_missed_publications(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "storm", "--only", "cycles")
    assert result["storm"]["returned"] == result["sizes"]["storm_clients"]
    assert result["storm"]["live_quiet_p99_ms"] > 0
    assert len(result["cycles"]["with_mib"]) == result["sizes"]["cycles"]


@pytest.mark.timeout(LIMIT + 30)
async def test_costs_of_tls_and_of_tokens(tmp_path: Path) -> None:
    result, _ = await bench(tmp_path, "--only", "tls", "--only", "identity")
    tls, identity = result["tls"], result["identity"]
    with_tls = {peer.name for peer in peers.PEERS if peers.find(peer.name)} & {"nats", "centrifugo"}
    assert tls["peers"].keys() == with_tls
    assert tls["ratio_raw"] > 0
    assert tls["kib_per_client"] > 1
    assert identity["ratio_open"] > 0
    assert identity["us_per_connect"] > identity["decision_us"] > 0
