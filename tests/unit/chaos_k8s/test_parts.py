"""Texts of other programs that a run reads, objects that it makes, and how it waits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from migratory_chaos_k8s import load
from migratory_chaos_k8s.machine_node import packets
from migratory_chaos_k8s.place import looked_after
from migratory_chaos_k8s.report import read
from migratory_chaos_k8s.target import ready_now, until
from migratory_loadtest import Scenario
from migratory_node.kubectl import Refused

LISTED = """\
Chain FORWARD (policy ACCEPT 0 packets, 0 bytes)
    pkts      bytes target     prot opt in     out     source         destination
      41     2132 DROP       all  --  *      *       10.244.0.0/24  10.244.0.7     /* migratory-chaos here */
      17      900 DROP       all  --  *      *       10.244.0.7     10.244.0.0/24  /* migratory-chaos here */
       9      900 DROP       all  --  *      *       10.244.0.7     10.244.0.0/24  /* migratory-chaos elsewhere */
    1000    90000 ACCEPT     all  --  *      migratory0  0.0.0.0/0  0.0.0.0/0
"""


def test_dropped_packets_are_those_of_the_runs_own_rules_each_way() -> None:
    assert packets(LISTED, "migratory-chaos here", "10.244.0.7") == (17, 41)
    assert packets(LISTED, "migratory-chaos here", "10.244.0.70") == (0, 0)
    assert packets(LISTED, "migratory-chaos", "10.244.0.7") == (0, 0)


def deployment(namespaces: str | None) -> dict[str, Any]:
    env = [
        {"name": "X", "value": "y"},
        *([{"name": "MIGRATORY_NAMESPACES", "value": namespaces}] if namespaces is not None else []),
    ]
    return {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}


def test_an_operator_looks_after_the_namespaces_that_it_names_or_all() -> None:
    assert looked_after(deployment(None)) == looked_after(deployment("")) == ()
    assert looked_after(deployment("one, two")) == ("one", "two")


def test_the_load_pod_brings_its_program_and_a_scenario_that_the_generator_takes() -> None:
    config, pod = load.objects("image:1", "quotes", {"servers": ["ws://x/ws"], "workers": 1, "duration": 9.0})
    scenario = json.loads(config["data"]["scenario.json"])
    assert Scenario(**{**scenario, "servers": tuple(scenario["servers"])}).metrics
    assert "ThreadingHTTPServer" in config["data"]["inside.py"]
    (container,) = pod["spec"]["containers"]
    assert {"name": "metrics", "containerPort": load.METRICS_PORT} in container["ports"]
    assert pod["metadata"]["labels"]["migratory.dev/metrics"] == "clients"


def test_a_pod_on_its_way_out_is_not_ready() -> None:
    pod: dict[str, Any] = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert ready_now(pod)
    assert not ready_now({**pod, "metadata": {"deletionTimestamp": "now"}})
    assert not ready_now({"metadata": {}})


def test_waiting_gives_the_last_thing_seen_and_raises_what_is_refused_to_the_end() -> None:
    seen = iter((0, 0, 7))
    assert until(lambda: next(seen), 5.0, 0.0) == 7
    assert until(lambda: 0, 0.0, 0.0) == 0

    def refuse() -> int:
        raise Refused("no")

    with pytest.raises(Refused):
        until(refuse, 0.0, 0.0)


def test_a_report_that_failed_says_why_and_counts_as_one_that_should_be_there() -> None:
    conditions = [{"type": "Complete", "status": "False", "reason": "DriverEvicted", "message": "no memory"}]
    found = read("chaos-1", {"phase": "Failed", "conditions": conditions})
    assert (found["verdict"], found["failed"]) == ("no report", True)
    assert "DriverEvicted: no memory" in found["reason"]
    delivery = {"expected": 3, "received": 3, "lost": 0}
    good = read("chaos-1", {"phase": "Succeeded", "verdict": "met", "delivery": delivery, "conditions": []})
    assert (good["verdict"], good["delivery"]) == ("met", delivery)
