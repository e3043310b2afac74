"""Cluster files with arbitrary contents.

Oracles: the result is a cluster, or a ClusterFileError with the file's name, the reason, and the place unless the
whole file is unreadable. A cluster that is written and read again is equal. A broker accepts the configuration made
from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from migratory_broker.runtime.config import parse
from migratory_resources import ClusterFileError, broker_config, load_cluster
from migratory_resources.validation.problems import FieldProblem, UnreadableFile

from migratory_fuzz.labels import seen, seen_error

SHAPE = "lines"
SKIP = 0
MAX_LEN = 3000
TOKENS = (
    b"replicas: ", b"minCopies: ", b"sessionTimeout: ", b"maxBytes: ", b"1Mi", b"250ms", b"1m30s", b"objectives:\n",
    b"  - name: ", b'target: "99.9"', b"type: latency", b"!!binary ", b"!!timestamp ", b"&a ", b"*a", b"<<: ",
    b"2026-99-99", b"0x", b".inf", b".nan", b"? ", b"---\n", b"|\n", b"%YAML 1.1\n", b"!!python/object:", b"= ",
    b"1_000", b"190:20:30",
)  # fmt: skip

_PLAIN: dict[str, Any] = {
    "apiVersion": "migratory.dev/v1alpha1",
    "kind": "MigratoryCluster",
    "metadata": {"name": "quotes"},
    "spec": {},
}


def run(data: bytes) -> None:
    try:
        loaded = load_cluster(data, "file.yaml")
    except ClusterFileError as error:
        _check_text(error)
        return
    cluster = loaded.cluster
    for warning in loaded.warnings:
        assert warning.partition(" ")[2]
    dumped = yaml.safe_dump(cluster.model_dump(mode="json", by_alias=True))
    again = load_cluster(dumped)
    assert again.cluster == cluster, dumped
    assert not again.warnings, again.warnings
    config = parse(json.dumps(broker_config(cluster, "127.0.0.1:2181")).encode())
    assert list(config.brokers) == cluster.broker_names
    seen(f"valid {len(loaded.warnings)} {len(cluster.broker_names)} {len(cluster.spec.sla.objectives)}")


def _check_text(error: ClusterFileError) -> None:
    assert error.problems
    assert str(error).startswith("file.yaml: ")
    for problem in error.problems:
        text = str(problem)
        assert len(text) > len(problem.path) + 3, text
        assert isinstance(problem, UnreadableFile) == (problem.path == ""), text
        where = problem.path if type(problem) is FieldProblem and "weights" not in problem.path else ""
        seen_error(f"{type(problem).__name__} {where} {problem.allowed.partition('(')[0]}")
        assert len(text) < 2000, text


def _file(**spec: object) -> bytes:
    return yaml.safe_dump({**_PLAIN, "spec": spec}).encode()


def seeds() -> Iterator[bytes]:
    yield _file()
    yield _file(brokers={"replicas": 5, "weights": {"quotes-broker-0": 0}, "drain": {"period": "1m30s"}})
    yield _file(zookeeper={"replicas": 1, "sessionTimeout": "4s"}, delivery={"minCopies": 2, "duplicateWindow": "2m"})
    yield _file(
        topics={"groups": 10, "cache": {"messagesPerTopic": 3, "minAge": "40s", "maxAge": "1h", "maxBytes": "1Gi"}}
    )
    yield _file(
        limits={"maxPayload": "64Ki", "queuePerClient": "1Mi", "queueTotal": 2**28, "subscriptionsPerClient": 7}
    )
    yield _file(
        sla={
            "window": "1h",
            "objectives": [
                {"name": "fast", "type": "latency", "threshold": "250ms", "target": "99.9"},
                {
                    "name": "slices",
                    "type": "latency",
                    "target": "99",
                    "slices": {"length": "1m", "percentile": "99", "threshold": "1s"},
                },
            ],
        }
    )
    yield _file(topics={"cache": {"minAge": "1d", "maxAge": "7d", "maxBytes": "1Ti"}}, drain={"period": "10m"})
    yield _file(
        security={
            "tokens": {
                "keys": [{"algorithms": ["RS256"], "url": "https://a/b"}, {"algorithms": ["HS256"], "file": "/c"}],
                "static": [{"subject": "a", "sha256": "0" * 64, "claims": {"role": ["b"]}}],
                "leeway": "5s",
                "revokedFile": "/d",
            },
            "rules": [{"topics": ["a/*/{subject}/**"], "allow": ["publish"], "claims": {"role": ["b"]}}],
            "anonymous": True,
        }
    )
    yield _file(security={"tls": True}, brokers={"replica": 3, "resources": {}}, delivery={"batching": 1})
    yield b"# nothing\n"
    yield b"a: &x 1\nb: *x\n"
    yield b"--- 1\n--- 2\n"
    yield b"a: {b: [c, {d: 'e'}]}\na: 2\n"
    yield b"spec: 2026-99-99\nstatus: !!binary aGk=\n"
