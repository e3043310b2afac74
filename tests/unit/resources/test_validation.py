"""Cluster files: defaults, warnings, every error at once with path, value and what is allowed, and the configuration
of brokers that is made from a file."""

from __future__ import annotations

import copy
import random
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
import yaml
from migratory_broker.runtime.security.config import SecuritySection, security_config
from migratory_client.core.settings import Settings
from migratory_resources import ClusterFileError, MigratoryCluster, broker_config, load_cluster, load_cluster_file
from migratory_resources.validation.custom_resources import read_report
from migratory_resources.validation.loading import KUBERNETES_ONLY
from migratory_resources.validation.rules import RESENDING_SECONDS

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"
HEAD = "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n"


def cluster_file(spec: str = "") -> str:
    return HEAD + (f"spec: {spec}\n" if spec else "")


def errors(text: str | bytes) -> list[str]:
    with pytest.raises(ClusterFileError) as caught:
        load_cluster(text, "c.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("c.yaml: ") for line in lines)
    return [line.removeprefix("c.yaml: ") for line in lines]


def test_the_smallest_cluster_has_the_documented_defaults() -> None:
    loaded = load_cluster(cluster_file())
    spec = loaded.cluster.spec
    assert loaded.warnings == []
    assert loaded.cluster.broker_names == ["quotes-broker-0", "quotes-broker-1", "quotes-broker-2"]
    assert (spec.zookeeper.replicas, spec.zookeeper.session_timeout) == (3, 4.0)
    assert (spec.topics.groups, spec.topics.cache.min_age, spec.topics.cache.max_bytes) == (100, 60.0, 256 * 2**20)
    assert (spec.delivery.min_copies, spec.delivery.duplicate_window, spec.delivery.on_history_loss) == (
        2,
        120,
        "reset",
    )
    assert spec.limits.heartbeat == 15.0
    assert spec.sla.objectives == []


@pytest.mark.parametrize("name", ["cluster.yaml", "demo.yaml", "secured.yaml"])
def test_the_examples_are_valid_without_a_warning(name: str) -> None:
    assert load_cluster_file(EXAMPLES / name).warnings == []


def test_the_example_with_every_field_shows_the_defaults() -> None:
    example = load_cluster_file(EXAMPLES / "cluster.yaml").cluster
    default = load_cluster(cluster_file()).cluster
    assert example.model_copy(update={"spec": example.spec.model_copy(update={"sla": default.spec.sla})}) == default


def test_a_cluster_written_as_json_reads_back_the_same() -> None:
    example = load_cluster_file(EXAMPLES / "cluster.yaml").cluster
    text = yaml.safe_dump(example.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert load_cluster(text).cluster == example


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{brokers: {replicas: 0}}", "spec.brokers.replicas: 0 is not allowed; allowed: a whole number from 1 to 99"),
        ("{brokers: {replicas: 3.0}}", "spec.brokers.replicas: 3.0 is"),
        ("{brokers: {replicas: true}}", "spec.brokers.replicas: True is"),
        ('{brokers: {replicas: "3"}}', "spec.brokers.replicas: '3' is"),
        ("{brokers: {replicas: }}", "spec.brokers.replicas: None is"),
        ("{brokers: []}", "spec.brokers: [] is not allowed; allowed: a mapping"),
        ("{brokers: {weights: [1]}}", "spec.brokers.weights: [1] is not allowed; allowed: a mapping"),
        ("{brokers: {weights: {quotes-broker-0: -1}}}", "spec.brokers.weights.quotes-broker-0: -1 is"),
        ("{brokers: {weights: {quotes-broker-3: 1}}}", "names of this cluster's brokers, quotes-broker-0 to"),
        (
            "{brokers: {weights: {quotes-broker-0: 0, quotes-broker-1: 0, quotes-broker-2: 0}}}",
            "a weight above 0 for at least one broker",
        ),
        ("{brokers: {drain: {period: 1x}}}", "spec.brokers.drain.period: '1x' is"),
        ("{zookeeper: {replicas: 2}}", "spec.zookeeper.replicas: 2 is not allowed; allowed: 1, 3, 5"),
        (
            "{zookeeper: {sessionTimeout: 100ms}}",
            "spec.zookeeper.sessionTimeout: '100ms' is not allowed; allowed: 1s to",
        ),
        (
            "{brokers: {replicas: 2}}",
            "3 or more with delivery.minCopies 2 (2 x minCopies - 1), or delivery.minCopies 1",
        ),
        ("{delivery: {minCopies: 3}}", "spec.brokers.replicas: 3 is not allowed; allowed: 5 or more"),
        ("{topics: {cache: {minAge: 20s}}}", "spec.topics.cache.minAge: '20s' is not allowed; allowed: 36s or more"),
        ("{topics: {cache: {maxAge: 59s}}}", "spec.topics.cache.maxAge: '59s' is not allowed; allowed: minAge (1m)"),
        (
            "{delivery: {duplicateWindow: 65s}}",
            "spec.delivery.duplicateWindow: '65s' is not allowed; allowed: 66s or more",
        ),
        (r'{delivery: {conflation: [{topics: "a\ud800", interval: 1s}]}}', "without surrogate code points"),
        ("{delivery: {onHistoryLoss: stop}}", "'stop' is not allowed; allowed: reset, halt"),
        ("{limits: {maxPayload: 1MB}}", "spec.limits.maxPayload: '1MB' is not allowed; allowed: a size"),
        ("{limits: {maxPayload: 2Mi}}", "spec.limits.queuePerClient: '1Mi' is not allowed; allowed: limits.maxPayload"),
        (
            "{limits: {subscriptionsTotal: 1Ki}}",
            "spec.limits.subscriptionsTotal: '1Ki' is not allowed; allowed: 1Mi to",
        ),
        ("{limits: {addresses: {connections: -1}}}", "spec.limits.addresses.connections: -1 is not allowed"),
        (
            "{limits: {addresses: {exempt: [10.0.0.0/40]}}}",
            "spec.limits.addresses.exempt[0]: '10.0.0.0/40' is not allowed",
        ),
        ("{limits: {addresses: {exempt: [10.0.0.1/8]}}}", "10.0.0.1/8 has host bits set"),
        ("{limits: {addresses: {exempt: [proxy.example.com]}}}", 'allowed: a network such as "10.0.0.0/8"'),
        ("{limits: {queueTotal: 1Mi, queuePerClient: 2Mi}}", "spec.limits.queueTotal: '1Mi' is"),
        ("{brokers: {ioProcesses: 65}}", "spec.brokers.ioProcesses: 65 is"),
        (
            "{brokers: {ioProcesses: 3}, limits: {queueTotal: 2Mi}}",
            "spec.limits.queueTotal: '2Mi' is not allowed; "
            "allowed: brokers.ioProcesses (3) x limits.queuePerClient, 3Mi",
        ),
        ("{topics: {cache: {maxBytes: 1Mi}}, limits: {maxPayload: 2Mi, queuePerClient: 2Mi}}", "cache.maxBytes: '1Mi'"),
        (
            "{security: {tokens: {}}}",
            "spec.security.tokens: {} is not allowed; allowed: at least one entry in keys or in",
        ),
        ("{security: {encryption: {}}}", "spec.security.encryption: {} is not allowed; allowed: origins, hosts, "),
        (
            "{security: {tls: {clients: {files: {cert: a, key: /b}}}}}",
            "spec.security.tls.clients.files.cert: 'a' is not allowed; allowed: the absolute path of a PEM file",
        ),
        (
            "{security: {zookeeper: {user: 'a:b'}}}",
            "spec.security.zookeeper.user: 'a:b' is not allowed; allowed: visible",
        ),
        (
            "{security: {zookeeper: {passwordFile: a}}}",
            "spec.security.zookeeper.passwordFile: 'a' is not allowed; allowed: an absolute path",
        ),
        ("{security: {tls: {peers: {}}}}", "spec.security.tls.peers.files: is required, but missing"),
        (
            "{security: {tls: {peers: {files: {cert: /a, key: /b}}}}}",
            "spec.security.tls.peers.files.ca: None is not allowed; allowed: the file of the authority",
        ),
        (
            "{security: {tokens: {keys: [{algorithms: [HS256]}]}}}",
            "spec.security.tokens.keys[0]: ['HS256'] is not allowed; allowed: exactly one of file, secret and url",
        ),
        (
            "{security: {tokens: {keys: [{algorithms: [HS256], url: 'https://a'}]}}}",
            "spec.security.tokens.keys[0].algorithms: ['HS256'] is not allowed; allowed: at least one; HS",
        ),
        (
            "{security: {tokens: {keys: [{algorithms: [HS256, RS256], file: /a}]}}}",
            "spec.security.tokens.keys[0].algorithms: ['HS256', 'RS256'] is",
        ),
        ("{security: {tokens: {keys: [{algorithms: [none], file: /a}]}}}", "algorithms[0]: 'none' is not allowed"),
        ("{security: {tokens: {keys: [{algorithms: [RS256], url: 'http://a'}]}}}", "an https:// URL; http:// for"),
        ("{security: {tokens: {keys: [{algorithms: [RS256], file: a}]}}}", "allowed: an absolute path"),
        (
            "{security: {tokens: {keys: [{algorithms: [RS256], secret: {name: a, key: b}}]}}}",
            "spec.security.tokens: 'secret' is not allowed; allowed: a file or a URL: one machine has no Secrets",
        ),
        ("{security: {tokens: {static: [{subject: a, sha256: AB}]}}}", "64 hexadecimal digits in lower case"),
        ("{security: {rules: [{topics: [a], allow: [publish]}]}}", "allowed: rules with tokens, or with anonymous"),
        (
            "{security: {anonymous: true, rules: [{topics: [a], allow: [publish], anonymous: true, subjects: [b]}]}}",
            "spec.security.rules[0].anonymous: True is not allowed; allowed: a rule without subjects and claims",
        ),
        (
            "{security: {anonymous: true, rules: [{topics: [], allow: [publish]}]}}",
            "spec.security.rules[0]: {} is not allowed; allowed: at least one entry in topics and in allow",
        ),
        ("{security: {anonymous: true, rules: [{topics: ['a*'], allow: [publish]}]}}", "* for one level"),
        ("{security: {anonymous: true, rules: [{topics: ['**/a'], allow: [publish]}]}}", "* for one level"),
        (
            "{security: {anonymous: true, rules: [{topics: [a], allow: [read]}]}}",
            "allowed: subscribe, publish, history",
        ),
        ("{security: {origin: [a]}}", "did you mean spec.security.origins?"),
        ("{security: {origins: [app.example.com]}}", "spec.security.origins[0]: 'app.example.com' is not allowed"),
        ("{security: {hosts: ['http://a']}}", "spec.security.hosts[0]: 'http://a' is not allowed"),
        (
            "{brokers: {replica: 3}}",
            "spec.brokers.replica: no such field (value 3); did you mean spec.brokers.replicas?",
        ),
        ("{securty: {}}", "did you mean spec.security?"),
        ("{sla: {objectives: {}}}", "spec.sla.objectives: {} is not allowed; allowed: a list"),
        ("{sla: {window: 59s}}", "spec.sla.window: '59s' is not allowed; allowed: 1m to 30d"),
    ],
)
def test_a_wrong_field_gives_one_error(spec: str, expected: str) -> None:
    problems = errors(cluster_file(spec))
    assert len(problems) == 1
    assert expected in problems[0]


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ('{name: a, type: latency, target: "99"}', "either threshold or slices"),
        ('{name: a, type: resume, target: "99"}', "a threshold for an objective of type resume"),
        ('{name: a, type: delivery, target: "99", threshold: 1s}', "no threshold for an objective of type delivery"),
        (
            '{name: a, type: resume, target: "99", slices: {length: 1m, percentile: "99", threshold: 1s}}',
            "slices only for types latency and availability, not for resume",
        ),
        ("{name: a, type: delivery, target: 99.9}", "target: 99.9 is not allowed; allowed: a decimal in quotes"),
        ('{name: a, type: delivery, target: "100.1"}', "target: '100.1' is"),
        ('{name: a, type: delivery, target: "0"}', "target: '0' is"),
        ('{name: a, type: delivery, target: "1e1"}', "target: '1e1' is"),
        ('{name: A, type: delivery, target: "1"}', "name: 'A' is"),
        ('{name: a, type: speed, target: "1"}', "allowed: latency, delivery, resume, publish, availability"),
        ('{type: delivery, target: "1"}', "spec.sla.objectives[0].name: is required, but missing"),
        (
            '{name: a, type: latency, target: "9", slices: {length: 1h, percentile: "99", threshold: 1s}}',
            "slices.length: '1h' is not allowed; allowed: sla.window (30m) or less",
        ),
        (
            '{name: a, type: latency, target: "9", slices: {length: 1m, percentile: "100", threshold: 1s}}',
            "percentile: '100' is not allowed; allowed: a decimal in quotes, above 0 and below 100",
        ),
        ("[]", "spec.sla.objectives[0]: [] is not allowed; allowed: a mapping"),
    ],
)
def test_a_wrong_objective_gives_one_error(objective: str, expected: str) -> None:
    problems = errors(cluster_file(f"{{sla: {{objectives: [{objective}]}}}}"))
    assert len(problems) == 1
    assert expected in problems[0]


def test_objectives_with_the_same_name_are_refused() -> None:
    objective = '{name: a, type: delivery, target: "99"}'
    assert (
        "[1].name: 'a' is not allowed"
        in errors(cluster_file(f"{{sla: {{objectives: [{objective}, {objective}]}}}}"))[0]
    )


def test_all_errors_are_reported_at_once() -> None:
    problems = errors(
        "apiVersion: v1\nkind: Pod\nmetadata: {}\n"
        "spec: {brokers: {replicas: x, replica: 1}, zookeeper: {replicas: 4}, topics: 7}\n"
    )
    paths = [line.split(":")[0] for line in problems]
    assert sorted(paths) == sorted(
        [
            "spec.brokers.replica",
            "apiVersion",
            "kind",
            "metadata.name",
            "spec.brokers.replicas",
            "spec.zookeeper.replicas",
            "spec.topics",
        ]
    )


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("{topics: {cache: {minAge: 10s}}, limits: {maxPayload: 1MB}}", ["limits.maxPayload", "topics.cache.minAge"]),
        (
            "{brokers: {weights: {quotes-broker-7: 50, broker-1: x}}}",
            ["brokers.weights", "brokers.weights", "brokers.weights.broker-1"],
        ),
        ("{brokers: {replicas: 2}, sla: {objectives: [{}]}}",
         ["brokers.replicas", *(f"sla.objectives[0].{field}" for field in ("name", "target", "type"))]),
        # A rule that involves a wrong value is not checked with the default in its target.
        ("{brokers: {replicas: x}, delivery: {minCopies: 5}}", ["brokers.replicas"]),
        ("{brokers: {replicas: x, weights: {quotes-broker-7: 1}}}", ["brokers.replicas"]),
        ("{zookeeper: {sessionTimeout: 1x}, topics: {cache: {minAge: 10s}}}", ["zookeeper.sessionTimeout"]),
        ("{topics: 7, delivery: {duplicateWindow: 1s}}", ["delivery.duplicateWindow", "topics"]),
        ("{limits: {maxPayload: 1MB, queuePerClient: 64Ki, queueTotal: x}}",
         ["limits.maxPayload", "limits.queueTotal"]),
        # Fields of an objective, rules between them, and rules between objectives.
        ('{sla: {objectives: [{name: A, type: resume, target: "9"}]}}',
         ["sla.objectives[0]", "sla.objectives[0].name"]),
        ("{sla: {objectives: [{name: a, type: resume, target: 9, threshold: 1}]}}",
         ["sla.objectives[0].target", "sla.objectives[0].threshold"]),
        ('{sla: {objectives: [{name: a, type: speed, target: 9}, {name: a, type: delivery, target: "9", clock: any}]}}',
         ["sla.objectives[0].target", "sla.objectives[0].type", "sla.objectives[1]", "sla.objectives[1].name"]),
        ('{sla: {objectives: [{name: a, type: delivery, target: 50}, {name: b, type: delivery, target: "9"}]}}',
         ["sla.objectives[0].target"]),
        ('{sla: {window: 1, objectives: [{name: a, type: latency, target: "9", window: {}, '
         'slices: {length: 1h, percentile: "101", threshold: 1s}}]}}',
         ["sla.objectives[0].slices.percentile", "sla.objectives[0].window", "sla.window"]),
        ("{sla: {objectives: [[], 1, {name: a, type: delivery}]}}",
         ["sla.objectives[0]", "sla.objectives[1]", "sla.objectives[2].target"]),
    ],
)  # fmt: skip
def test_errors_of_single_fields_do_not_hide_broken_rules(spec: str, paths: list[str]) -> None:
    assert sorted(line.split(": ")[0] for line in errors(cluster_file(spec))) == [f"spec.{path}" for path in paths]


def test_random_junk_anywhere_raises_only_cluster_file_errors() -> None:
    rng = random.Random(5)
    junk: list[object] = [None, [], {}, "x", -1, [1], {"name": "x"}, [{}], {"x": {}}, [{"slices": 1}, {"type": 1}]]
    refused_count = 0
    for _ in range(300):
        document = yaml.safe_load((EXAMPLES / "cluster.yaml").read_bytes())
        for _ in range(rng.randint(1, 4)):
            target: object = document
            while True:
                assert isinstance(target, dict | list)
                key = rng.choice(list(target) if isinstance(target, dict) else range(len(target)))
                if not (isinstance(target[key], dict | list) and target[key]) or rng.random() < 0.1:
                    target[key] = copy.deepcopy(rng.choice(junk))
                    break
                target = target[key]
        try:
            load_cluster(yaml.safe_dump(document))
        except ClusterFileError:
            refused_count += 1
    assert refused_count > 200


def test_all_errors_of_an_objective_are_reported() -> None:
    (problem,) = errors(cluster_file('{sla: {objectives: [{name: a, type: publish, target: "9", clock: any}]}}'))
    assert "a threshold for an objective of type publish; a clock only for type latency" in problem


def test_a_single_possible_copy_is_not_given_as_a_range() -> None:
    (problem,) = errors(cluster_file("{brokers: {replicas: 2}}"))
    assert problem.endswith("or delivery.minCopies 1")


def test_values_in_errors_are_shortened() -> None:
    problems = errors(cluster_file("{brokers: {replicas: " + "x" * 50_000 + "}}"))
    assert len(problems[0]) < 300


@pytest.mark.parametrize("path", sorted(KUBERNETES_ONLY))
def test_a_field_without_effect_is_warned_of(path: str) -> None:
    document = yaml.safe_load(cluster_file())
    target = document
    *parents, last = path.split(".")
    for part in parents:
        target = target.setdefault(part, {})
    target[last] = {"any": "thing"}
    loaded = load_cluster(yaml.safe_dump(document))
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith(f"{path} has no effect")
    assert loaded.cluster == load_cluster(cluster_file()).cluster


def test_origins_and_hosts_reach_the_broker_config() -> None:
    security = "{security: {origins: ['https://app.example.com', 'https://*.example.org:8443'], hosts: [push.test]}}"
    loaded = load_cluster(cluster_file(security))
    assert loaded.warnings == []
    origins = {"allowed": ["https://app.example.com", "https://*.example.org:8443"], "hosts": ["push.test"]}
    assert broker_config(loaded.cluster, "zk:2181", default_hosts=["localhost"])["origins"] == origins


def test_tokens_of_the_administration_reach_the_broker_config() -> None:
    assert "administration" not in broker_config(load_cluster(cluster_file()).cluster, "zk:2181")
    loaded = load_cluster(cluster_file(f"{{security: {{administration: {{tokens: ['{'0' * 64}']}}}}}}"))
    assert broker_config(loaded.cluster, "zk:2181")["administration"] == {"tokens": ["0" * 64]}


@pytest.mark.parametrize(
    ("spec", "local", "served"),
    [
        ("{}", False, False),
        ("{}", True, True),
        ("{console: {enabled: true}}", False, True),
        ("{console: {enabled: false}}", True, False),
    ],
)
def test_console_is_off_on_kubernetes_and_on_on_one_machine_unless_the_file_says_it(
    spec: str, local: bool, served: bool
) -> None:
    config = broker_config(load_cluster(cluster_file(spec)).cluster, "zk:2181", default_console=local)
    assert config.get("console", False) is served
    assert served or "console" not in config, "a broker of the previous release rejects unknown fields"


def test_tokens_and_rules_reach_the_broker_config() -> None:
    assert "security" not in broker_config(load_cluster(cluster_file()).cluster, "zk:2181")
    security = """{security: {
      tokens: {keys: [{algorithms: [RS256], url: 'https://a/k'}, {algorithms: [HS256], file: /b}], revokedFile: /c},
      rules: [{topics: ['a/**'], allow: [publish], claims: {role: [x]}}]}}"""
    loaded = load_cluster(cluster_file(security))
    assert loaded.warnings == []
    section = broker_config(loaded.cluster, "zk:2181")["security"]
    assert section == {
        "tokens": {
            "keys": [{"algorithms": ["RS256"], "url": "https://a/k"}, {"algorithms": ["HS256"], "file": "/b"}],
            "static": [],
            "leeway": 10.0,
            "allowNoExpiry": False,
            "inQuery": False,
            "refresh": 300.0,
            "revoked": "/c",
        },
        "rules": [
            {"topics": ["a/**"], "allow": ["publish"], "subjects": [], "claims": {"role": ["x"]}, "anonymous": False}
        ],
        "anonymous": False,
    }
    security_config(msgspec.convert(section, SecuritySection))


def test_no_web_page_may_connect_unless_the_cluster_names_its_origin() -> None:
    cluster = load_cluster(cluster_file()).cluster
    assert broker_config(cluster, "zk:2181")["origins"] == {"allowed": [], "hosts": ["*"]}
    local = broker_config(cluster, "zk:2181", default_hosts=["localhost"], default_origins=["http://localhost:*"])
    assert local["origins"] == {"allowed": ["http://localhost:*"], "hosts": ["localhost"]}


def test_batching_conflation_and_compression_reach_the_broker_config() -> None:
    delivery = "{batching: {maxDelay: 100ms, maxBytes: 4Ki}, compression: true, conflation: ["
    rules = "{topics: 'ticks/**', interval: 250ms}, {topics: a.b, interval: 1s}]}"
    loaded = load_cluster(cluster_file("{delivery: " + delivery + rules + "}"))
    config = broker_config(loaded.cluster, "zk:2181")
    assert loaded.warnings == []
    assert config["compression"] is True
    assert config["delivery"]["batching"] == {"maxDelay": 0.1, "maxBytes": 4096}
    assert config["delivery"]["conflation"] == [
        {"topics": "ticks/**", "interval": 0.25},
        {"topics": "a.b", "interval": 1.0},
    ]


@pytest.mark.parametrize(
    ("delivery", "message"),
    [
        ("{batching: {maxDelay: 6s}}", "spec.delivery.batching.maxDelay: '6s' is not allowed; allowed: 0s to 5s"),
        ("{batching: {maxBytes: 1}}", "spec.delivery.batching.maxBytes: 1 is not allowed; allowed: 1Ki to 1Mi"),
        ("{conflation: [{topics: '', interval: 1s}]}", "spec.delivery.conflation[0].topics: '' is not allowed"),
        ("{conflation: [{topics: t, interval: 1ms}]}", "spec.delivery.conflation[0].interval: '1ms' is not allowed"),
        ("{conflation: [{topics: t}]}", "spec.delivery.conflation[0].interval"),
        ("{compression: 1}", "spec.delivery.compression: 1"),
    ],
)
def test_invalid_batching_and_conflation_are_refused(delivery: str, message: str) -> None:
    (problem,) = errors(cluster_file("{delivery: " + delivery + "}"))
    assert message in problem


def test_an_unknown_field_unlike_all_others_is_warned_of() -> None:
    loaded = load_cluster(
        cluster_file("{colour: red, sla: {objectives: [{name: a, type: delivery, target: '9', x: 1}]}}")
    )
    assert loaded.warnings == [
        "spec.colour is not known and has no effect",
        "spec.sla.objectives[0].x is not known and has no effect",
    ]


def test_labels_and_annotations_are_not_warned_of() -> None:
    text = cluster_file().replace("{name: quotes}", "{name: quotes, labels: {a: b}, annotations: {c: d}}")
    assert load_cluster(text).warnings == []


@pytest.mark.parametrize("name", ["Quotes", "1a", "a-", "a" * 41, "a_b", "", "ä"])
def test_names_that_kubernetes_would_reject_are_refused(name: str) -> None:
    assert "metadata.name" in errors(cluster_file().replace("quotes", f'"{name}"'))[0]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError, match=r"none.yaml: cannot be read: No such file"):
        load_cluster_file(tmp_path / "none.yaml")
    with pytest.raises(ClusterFileError, match="Is a directory"):
        load_cluster_file(tmp_path)


def test_one_broker_with_one_copy_is_allowed() -> None:
    assert load_cluster(cluster_file("{brokers: {replicas: 1}, delivery: {minCopies: 1}}")).cluster.broker_names == [
        "quotes-broker-0"
    ]


def test_broker_config_has_seconds_and_bytes() -> None:
    text = cluster_file(
        "{brokers: {weights: {quotes-broker-2: 50}, drain: {period: 5s}}, delivery: {onHistoryLoss: halt}}"
    )
    config = broker_config(load_cluster(text).cluster, "127.0.0.1:2181")
    assert config["cluster"] == "quotes"
    assert config["brokers"] == ["quotes-broker-0", "quotes-broker-1", "quotes-broker-2"]
    assert config["zookeeper"] == {"servers": "127.0.0.1:2181", "sessionTimeout": 4.0}
    assert config["topics"]["cache"] == {
        "messagesPerTopic": 300,
        "minAge": 60.0,
        "maxAge": 600.0,
        "maxBytes": 268435456,
    }
    assert config["limits"]["connectsPerSecond"] == 5000
    assert config["delivery"] == {
        "minCopies": 2,
        "duplicateWindow": 120.0,
        "onHistoryLoss": "halt",
        "batching": {"maxDelay": 0.0, "maxBytes": 16384},
        "conflation": [],
    }
    assert config["compression"] is False
    assert config["weights"] == {"quotes-broker-2": 50}
    assert config["drain"] == {"period": 5.0}


def test_limits_of_memory_and_addresses_reach_the_broker_config() -> None:
    """They are absent at their defaults: a broker of the previous release rejects unknown fields."""
    recent = ("inputTotal", "subscriptionsTotal", "addresses", "clients", "identities")
    plain = broker_config(load_cluster(cluster_file()).cluster, "zk:2181")["limits"]
    assert not [name for name in recent if name in plain]
    addresses = "{connections: 9, exempt: ['10.0.0.0/8', '::1']}"
    rates = "clients: {publicationsPerSecond: 5, bytesPerSecond: 1Ki}, identities: {subscriptionsPerSecond: 7}"
    text = f"{{limits: {{inputTotal: 1Gi, subscriptionsTotal: 2Gi, addresses: {addresses}, {rates}}}}}"
    limits = broker_config(load_cluster(cluster_file(text)).cluster, "zk:2181")["limits"]
    assert [limits[name] for name in recent] == [
        2**30, 2**31, {"connections": 9, "exempt": ["10.0.0.0/8", "::1"]},
        {"publicationsPerSecond": 5, "bytesPerSecond": 1024}, {"subscriptionsPerSecond": 7},
    ]  # fmt: skip


def test_targets_of_objectives_are_exact_decimals() -> None:
    spec = load_cluster_file(EXAMPLES / "cluster.yaml").cluster.spec
    assert spec.sla.objectives[0].target == Decimal("99.9")
    assert [objective.thresholds for objective in spec.sla.objectives] == [(0.25,), (), (5.0,)]


def test_the_model_refuses_unknown_fields() -> None:
    with pytest.raises(ValueError, match="extra"):
        MigratoryCluster.model_validate({**yaml.safe_load(cluster_file()), "extra": 1})


def test_the_duplicate_window_outlasts_the_publish_timeout() -> None:
    """The client's publish timeout equals the time for resending in the minimum of the duplicate window: a publication
    that is sent again after its publisher was forgotten would get a second number."""
    assert Settings().publish_timeout == RESENDING_SECONDS


def test_all_wrong_fields_of_a_report_are_named() -> None:
    spec = {"cluster": "c", "window": "1s", "end": "2026-02-31T12:00:00Z", "zone": "Europe/Bukarest"}
    with pytest.raises(ClusterFileError) as refused:
        read_report({"metadata": {"name": "r"}, "spec": spec})
    assert [problem.path for problem in refused.value.problems] == ["spec.end", "spec.window", "spec.zone"]
