"""Parts of a Kubernetes run: output of other programs, objects that it creates, statuses that it reads."""

from __future__ import annotations

import json
from typing import Any

from migratory_chaos.kubernetes import load_pod
from migratory_chaos.kubernetes.environment import watched_namespaces
from migratory_chaos.kubernetes.load_pod import METRICS_PORT
from migratory_chaos.kubernetes.local_node import count_packets
from migratory_chaos.kubernetes.report import read_status
from migratory_chaos.kubernetes.target import is_ready
from migratory_loadtest import Scenario

LISTED = """\
Chain FORWARD (policy ACCEPT 0 packets, 0 bytes)
    pkts      bytes target     prot opt in     out     source         destination
      41     2132 DROP       all  --  *      *       10.244.0.0/24  10.244.0.7     /* migratory-chaos here */
      17      900 DROP       all  --  *      *       10.244.0.7     10.244.0.0/24  /* migratory-chaos here */
       9      900 DROP       all  --  *      *       10.244.0.7     10.244.0.0/24  /* migratory-chaos elsewhere */
    1000    90000 ACCEPT     all  --  *      migratory0  0.0.0.0/0  0.0.0.0/0
"""


def test_count_packets_reads_only_rules_with_the_comment() -> None:
    assert count_packets(LISTED, "migratory-chaos here", "10.244.0.7") == (17, 41)
    assert count_packets(LISTED, "migratory-chaos here", "10.244.0.70") == (0, 0)
    assert count_packets(LISTED, "migratory-chaos", "10.244.0.7") == (0, 0)


def deployment(namespaces: str | None) -> dict[str, Any]:
    env = [
        {"name": "X", "value": "y"},
        *([{"name": "MIGRATORY_NAMESPACES", "value": namespaces}] if namespaces is not None else []),
    ]
    return {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}


def test_watched_namespaces_are_the_named_ones_or_all() -> None:
    assert watched_namespaces(deployment(None)) == watched_namespaces(deployment("")) == ()
    assert watched_namespaces(deployment("one, two")) == ("one", "two")


def test_load_pod_has_its_program_and_a_valid_scenario() -> None:
    config, pod = load_pod.objects("image:1", "quotes", {"servers": ["ws://x/ws"], "workers": 1, "duration": 9.0})
    scenario = json.loads(config["data"]["scenario.json"])
    assert Scenario(**{**scenario, "servers": tuple(scenario["servers"])}).metrics
    assert "ThreadingHTTPServer" in config["data"]["load_program.py"]
    (container,) = pod["spec"]["containers"]
    assert {"name": "metrics", "containerPort": METRICS_PORT} in container["ports"]
    assert pod["metadata"]["labels"]["migratory.dev/metrics"] == "clients"


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    pod: dict[str, Any] = {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert is_ready(pod)
    assert not is_ready({**pod, "metadata": {"deletionTimestamp": "now"}})
    assert not is_ready({"metadata": {}})


def test_read_status_gives_the_reason_of_a_failed_report() -> None:
    conditions = [{"type": "Complete", "status": "False", "reason": "DriverEvicted", "message": "no memory"}]
    status = read_status("chaos-1", {"phase": "Failed", "conditions": conditions})
    assert (status["verdict"], status["failed"]) == ("no report", True)
    assert "DriverEvicted: no memory" in status["reason"]
    delivery = {"expected": 3, "received": 3, "lost": 0}
    good = read_status("chaos-1", {"phase": "Succeeded", "verdict": "met", "delivery": delivery, "conditions": []})
    assert (good["verdict"], good["delivery"]) == ("met", delivery)
