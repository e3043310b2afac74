"""The networks of a chaos run: the router drops and counts the packets that match its rules, and passes all others.
Also proofs of network faults that must not hold, and the reasons for which a machine has no networks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from migratory_chaos.processes import network

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

# Runs in network namespaces of its own. The last line of its output has the observations.
SCRIPT = """
import json, socket, subprocess, sys, time
from migratory_chaos.processes.network import Network

net = Network(["a", "b"])
seen = {}
SERVER = '''
import socket
listening = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
connections = []
while True:
    connections.append(listening.accept()[0])
    connections[-1].sendall(b"b")
'''
CLIENT = '''
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as connection:
        print(connection.recv(1).decode() or "ended")
except OSError as error:
    print(type(error).__name__)
'''
server = subprocess.Popen(
    [*net.nodes["b"].placement.command_prefix, sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
)
server.stdout.readline()

def connect(limit=10):
    words = [*net.nodes["a"].placement.command_prefix, sys.executable, "-c", CLIENT, net.nodes["b"].address, str(limit)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip()

seen["free"] = connect()
seen["outcomes"] = [net.try_connection("a", "b", 7000), net.try_connection("a", "b", 7001)]

for name, way in (("there", ("a", "b")), ("back", ("b", "a"))):
    rule = net.drop(*way)
    seen[f"cut {name}"] = connect(1.5)
    seen[f"outcome {name}"] = net.try_connection("a", "b", 7000)
    rule.remove()
    seen[f"packets {name}"] = rule.packets()
    seen[f"healed {name}"] = connect()

rule = net.drop("a", "b", 0.3)
seen["lossy"] = [connect(30) for _ in range(8)]
rule.remove()
seen["lost"] = rule.packets()

router = socket.create_server((net.nodes["a"].router, 0))
rule = net.redirect("a", "b", 7000, router.getsockname()[1])
words = [*net.nodes["a"].placement.command_prefix, sys.executable, "-c", CLIENT, net.nodes["b"].address, "10"]
client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
with router.accept()[0] as connection:
    connection.sendall(b"r")
    seen["redirected"] = client.communicate(timeout=30)[0].strip()
rule.remove()
seen["direct again"] = connect()

HOLD = CLIENT.replace("recv(1)", "recv(1) and connection.recv(1)")
client = subprocess.Popen([*words[:-3], HOLD, *words[-2:]], stdout=subprocess.PIPE, text=True)
broken, deadline = frozenset(), time.monotonic() + 10
while not broken and time.monotonic() < deadline:
    broken = net.connections("a", "b", 7000)
    time.sleep(0.05)
seen["broken"] = [len(broken), net.break_connections("a", "b", 7000) == broken, len(net.connections("a", "b", 7000))]
seen["client"] = client.communicate(timeout=30)[0].strip()
server.kill()
server.wait()
print(json.dumps(seen))
"""


def run_in_namespaces(script: str) -> dict[str, Any]:
    """Run a script in network and mount namespaces of its own. Return the JSON of its last line."""
    words = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


@pytest.mark.skipif(bool(network.explain_missing()), reason=f"platform: {network.explain_missing()}")
def test_rules_drop_and_count_packets() -> None:
    result = run_in_namespaces(SCRIPT)
    assert result["free"] == "b"
    assert result["outcomes"] == ["accepted", "refused"]
    for name in ("there", "back"):
        assert result[f"cut {name}"] == "TimeoutError"
        assert result[f"outcome {name}"] == "silence"
        assert result[f"packets {name}"] > 0
        assert result[f"healed {name}"] == "b"
    assert result["lossy"] == ["b"] * 8
    assert 0 < result["lost"] < 8 * 20
    assert (result["redirected"], result["direct again"]) == ("r", "b")
    assert result["broken"] == [1, True, 0]
    assert result["client"] in ("ConnectionAbortedError", "ConnectionResetError")
    # No namespace is left outside.
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=True).stdout
    assert not {"a", "b"} & set(names.split())


PROOFS = """
import asyncio, json, random, subprocess, sys
from types import SimpleNamespace
from migratory_chaos.processes.network_faults import Delay, Partition
from migratory_chaos.processes.scene import ProcessScene
from migratory_chaos.processes.network import Network

SERVER = '''
import socket
listening = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    listening.accept()[0].close()
'''
net = Network(["a", "b", "clients"])
for node in net.nodes.values():
    # Else a lost answer is sent again during the next partition, and counts as a packet of that one.
    quiet = "echo 0 > /proc/sys/net/ipv4/tcp_synack_retries"
    subprocess.run([*node.placement.command_prefix, "sh", "-c", quiet], check=True)
servers = []
for name in ("a", "b"):
    words = [*net.nodes[name].placement.command_prefix, sys.executable, "-c", SERVER]
    servers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    servers[-1].stdout.readline()
brokers = [SimpleNamespace(name=name, ports=SimpleNamespace(clients=7000, peers=7000)) for name in ("a", "b")]

async def read_all(metric):
    return {"a": 1.0, "b": 0.0}

async def count_coordinated():
    return {}

async def burst():
    pass

cluster = SimpleNamespace(
    broker_names=lambda: ["a", "b"], brokers=brokers, network=net, read_all=read_all,
    count_coordinated=count_coordinated,
    ensemble=SimpleNamespace(members=[]), broker=lambda name: next(broker for broker in brokers if broker.name == name),
)

def proofs(fault):
    scene = ProcessScene("partition", {}, random.Random(1), 0.0, cluster, burst)
    asyncio.run(fault.inject(scene))
    return [(proof.what, proof.seen, proof.holds) for proof in scene.record.proofs]

seen = {}
for side in ("brokers", "clients"):
    for direction in ("both", "in", "out"):
        seen[f"{side} {direction}"] = proofs(Partition(side, direction, False, 0.1))
drop = net.drop
net.drop = lambda source, target, probability: drop("clients", "clients", probability)
seen["elsewhere"] = proofs(Partition("brokers", "both", False, 0.1))
net.drop = drop
seen["nothing"] = proofs(Delay("brokers", 0.01, 0.01, 0.1))
for server in servers:
    server.kill()
    server.wait()
print(json.dumps(seen))
"""


@pytest.mark.skipif(bool(network.explain_missing()), reason=f"platform: {network.explain_missing()}")
def test_proofs_fail_for_a_partition_elsewhere_and_a_delay_without_traffic() -> None:
    result = run_in_namespaces(PROOFS)
    for side in ("brokers", "clients"):
        for direction in ("both", "in", "out"):
            packets, silence = result[f"{side} {direction}"]
            assert silence[1:] == ["silence", True]
            assert packets[0] == "packets lost"
            assert not packets[2], packets  # none were sent; those of the proof itself do not count
    lost_share, outcome = result["elsewhere"]
    assert outcome[1:] == ["accepted", False]
    assert not lost_share[2]
    holds = {what: holds for what, _, holds in result["nothing"]}
    assert holds["connections to break"] is False
    assert holds["bytes that were delayed"] is False


def test_explain_missing_names_privileges_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in network.explain_missing()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "iptables" else "/usr/sbin/" + tool)
    assert network.explain_missing() == "not installed: iptables"
