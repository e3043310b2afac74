"""`kubectl migratory` with a kubectl that answers from a file, and brokers that answer by HTTP. A real kubectl and
cluster: cluster/test_kubectl_plugin.py."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from migratory_cli import kubectl
from migratory_cli.commands import kubernetes
from migratory_cli.commands.takeovers import format_entry, takeover_entries

KUBECTL = """#!{python}
import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
state = json.loads((folder / "state.json").read_text())
words = [word for word in sys.argv[1:] if not word.startswith("-")]
options = [word for word in sys.argv[1:] if word.startswith("-")]
given = sys.stdin.read() if "--filename=-" in options else ""
with (folder / "calls").open("a") as calls:
    print(json.dumps([sys.argv[1:], given]), file=calls)
key = " ".join([*words, *(one for one in options if one.startswith(("--selector=", "--raw=", "--previous")))])
if words[0] == "port-forward":
    port = state["ports"].get(words[1].removeprefix("pod/"))
    if port is None:
        sys.exit("error: unable to forward port because pod is not running")
    print("Forwarding from 127.0.0.1:%d -> 8082" % port, flush=True)
    time.sleep(600)
answers = state["answers"].get(key)
if answers is None:
    sys.exit('Error from server (NotFound): "%s" not found' % key)
counter = folder / ("count-" + key.replace("/", "_"))
count = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(count + 1))
answer = answers[min(count, len(answers) - 1)]
if isinstance(answer, dict) and "fails" in answer:
    sys.exit(answer["fails"])
print(answer if isinstance(answer, str) else json.dumps(answer))
"""
BROKERS = "app.kubernetes.io/instance=quotes,app.kubernetes.io/component=broker"
MEMBERS = "app.kubernetes.io/instance=quotes,app.kubernetes.io/component=zookeeper"


def condition(type_: str, status: str, reason: str = "Any", message: str = "as it is") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def cluster(progressing: str = "Settled", ready: str = "True", **metadata: Any) -> dict[str, Any]:
    conditions = [condition("Ready", ready), condition("Progressing", "False", progressing, "a pod has failed")]
    return {
        "metadata": {"name": "quotes", "namespace": "market", **metadata},
        "spec": {},
        "status": {"conditions": conditions},
    }


def pod(name: str, uid: str = "old", ready: str = "True", **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "broker"}
    return {
        "metadata": {"name": name, "namespace": "market", "uid": uid, "labels": labels},
        "status": {"conditions": [condition("Ready", ready)], **status},
    }


def page(broker: str, published: int = 0, **fields: Any) -> dict[str, Any]:
    edge = {
        "clients": 1000, "subscriptions": 2000, "published": published, "delivered": 10 * published,
        "sent_bytes": 1024 * published, "queue_bytes": 0, "slow": [],
    }  # fmt: skip
    return {
        "cluster": "quotes", "broker": broker, "pid": 1, "uptime_seconds": 100.0 + published, "ready": True,
        "reason": "", "zookeeper_connected": True, "memory_bytes": 2**20, "logic": {}, "edge": edge, **fields,
    }  # fmt: skip


class Broker(ThreadingHTTPServer):
    """A broker's administration, which answers with its pages one after the other."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = list(pages)
        self.tokens: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Broker)
        assert self.path == "/v1/status"
        self.server.tokens.append(self.headers["Authorization"])
        pages = self.server.pages
        body = json.dumps(pages.pop(0) if len(pages) > 1 else pages[0]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, so that the test's output has no line for each request."""


class Scene:
    """A Kubernetes of one namespace as the fake kubectl has it. `answers` has lists: the last one is repeated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, list[Any]] = {
            "get migratorycluster quotes": [cluster()],
            "get migratoryclusters --selector=": [{"items": [cluster()]}],
            f"get pods --selector={BROKERS}": [{"items": [pod("quotes-broker-0"), pod("quotes-broker-1")]}],
        }
        self.ports: dict[str, int] = {}
        self.brokers: list[Broker] = []

    def serve(self, name: str, *pages: dict[str, Any]) -> Broker:
        broker = Broker(*pages)
        threading.Thread(target=broker.serve_forever, args=(0.01,)).start()
        self.brokers.append(broker)
        self.ports[name] = broker.server_address[1]
        return broker

    def run(self, *arguments: str) -> Result:
        (self.folder / "state.json").write_text(json.dumps({"answers": self.answers, "ports": self.ports}))
        return CliRunner().invoke(kubernetes.main, list(arguments))

    def calls(self, *beginning: str) -> list[tuple[list[str], str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        made = [tuple(json.loads(line)) for line in lines]
        return [call for call in made if [word for word in call[0] if word in beginning] == list(beginning)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.replace("{python}", sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(kubernetes, "_POLL_SECONDS", 0.01)
    made = Scene(tmp_path)
    yield made
    for broker in made.brokers:
        broker.shutdown()
        broker.server_close()


def test_status_shows_conditions_and_brokers_and_passes_options_and_token(scene: Scene, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    both = [scene.serve(f"quotes-broker-{index}", page(f"quotes-broker-{index}")) for index in (0, 1)]
    result = scene.run("status", "-n", "market", "--context", "east", "--token-file", str(token))
    assert result.exit_code == 0, result.output
    for shown in ("market/quotes", "Ready                  True", "quotes-broker-0", "quotes-broker-1", "1,000"):
        assert shown in result.output
    assert [broker.tokens for broker in both] == [["Bearer secret"], ["Bearer secret"]]
    for arguments, _ in scene.calls():
        assert {"--namespace=market", "--context=east"} <= set(arguments)
        assert "secret" not in " ".join(arguments)


def test_status_ends_with_1_for_a_broker_that_cannot_be_reached_and_a_cluster_that_is_not_ready(scene: Scene) -> None:
    scene.serve("quotes-broker-0", page("quotes-broker-0"))
    result = scene.run("status", "quotes", "--json")
    assert result.exit_code == 1
    answers = json.loads(result.output)["brokers"]
    assert answers["quotes-broker-0"]["ready"] is True
    assert answers["quotes-broker-1"] == {
        "broker": "quotes-broker-1", "error": "error: unable to forward port because pod is not running"
    }  # fmt: skip
    scene.serve("quotes-broker-1", page("quotes-broker-1"))
    assert scene.run("status", "quotes").exit_code == 0
    scene.answers["get migratorycluster quotes"] = [cluster(ready="False")]
    assert scene.run("status", "quotes").exit_code == 1
    scene.answers[f"get pods --selector={BROKERS}"] = [{"items": []}]
    assert scene.run("status", "quotes").exit_code == 1, "no broker is there"


FORWARDERS = {
    "another first line": (1.0, "print('welcome', flush=True); time.sleep(600)", "within 1 s"),
    "no line": (1.0, "time.sleep(600)", "within 1 s"),
    "its output closed": (1.0, "os.close(1); time.sleep(600)", "within 1 s"),
    "a line without an end": (60.0, "print('x' * 10**6, flush=True); time.sleep(600)", "a line of kubectl is too long"),
    "an error": (60.0, "sys.exit('error: pod is gone')", "error: pod is gone"),
    "nothing": (60.0, "", "kubectl ended without a port of quotes-broker-0"),
}
"""Seconds until a port must be there, what kubectl does instead, and what the error says."""


@pytest.mark.parametrize("case", FORWARDERS)
async def test_a_kubectl_that_forwards_no_port_is_named_and_ended(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a kubectl with another first line that went on running ended the command with a TimeoutError."""
    seconds, code, message = FORWARDERS[case]
    program = tmp_path / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kubectl, "_FORWARD_SECONDS", seconds)
    started, start = [], asyncio.create_subprocess_exec

    async def noted(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    with pytest.raises(kubectl.KubectlFailed) as failed:
        async with kubectl.Kubectl(()).forward("quotes-broker-0", 8082):
            pytest.fail("there is no port")
    assert message in failed.value.message
    assert [process.returncode is not None for process in started] == [True]


async def test_lines_before_the_port_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kubectl"
    lines = "print('welcome'); print('Forwarding from 127.0.0.1:4711 -> 8082', flush=True); time.sleep(600)"
    program.write_text(f"#!{sys.executable}\nimport time\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with kubectl.Kubectl(()).forward("quotes-broker-0", 8082) as port:
        assert port == 4711


def test_a_cluster_must_be_named_where_there_are_several_and_exist(scene: Scene) -> None:
    other = copy.deepcopy(cluster(name="trades"))
    scene.answers["get migratoryclusters --selector="] = [{"items": [other, cluster()]}]
    result = scene.run("status")
    assert (result.exit_code, "name a cluster; the namespace has quotes, trades" in result.stderr) == (2, True)
    scene.answers["get migratoryclusters --selector="] = [{"items": []}]
    assert "the namespace has none" in scene.run("takeovers").stderr
    result = scene.run("top", "absent")
    assert (result.exit_code, "NotFound" in result.stderr) == (2, True)


def test_without_kubectl_the_error_says_so(scene: Scene) -> None:
    (scene.folder / "kubectl").unlink()
    result = scene.run("status")
    assert (result.exit_code, "kubectl is not on PATH" in result.stderr) == (2, True)


def test_top_shows_rates_between_two_pages(scene: Scene) -> None:
    def serve() -> None:
        for index, published in enumerate((50, 100)):
            name = f"quotes-broker-{index}"
            # The time between two pages is the broker's.
            scene.serve(name, page(name, uptime_seconds=100.0), page(name, published, uptime_seconds=110.0))

    serve()
    result = scene.run("top", "--interval", "0.5", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.output)
    assert made["quotes-broker-0"] == {
        "clients": 1000, "subscriptions": 2000, "publications": 5.0, "deliveries": 50.0, "bytes": 5120.0,
        "queue_bytes": 0, "memory_bytes": 2**20,
    }  # fmt: skip
    assert made["quotes-broker-1"]["deliveries"] == 100.0
    serve()
    table = scene.run("top", "--interval", "0.5").output
    (total,) = (line for line in table.splitlines() if " all " in line)
    assert "2,000" in total
    assert "15.0" in total


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ({"pid": 2}, "was started again"),
        ({"edge": None}, "serves no clients"),
        ({"uptime_seconds": 1.0}, "was started again"),
    ],
)
def test_top_names_a_broker_without_rates(scene: Scene, second: dict[str, Any], error: str) -> None:
    for name in ("quotes-broker-0", "quotes-broker-1"):
        scene.serve(name, page(name, uptime_seconds=1.0), page(name, uptime_seconds=2.0, **{"pid": 1}))
    broker = scene.brokers[1]
    broker.pages[1] = {**broker.pages[1], **second}
    result = scene.run("top", "--interval", "0.5")
    assert result.exit_code == 1
    assert f"quotes-broker-1: it {error}" in result.output


EVICTION = "create --raw=/api/v1/namespaces/market/pods/quotes-broker-1/eviction"


def test_drain_evicts_exactly_this_pod_and_waits_for_the_next(scene: Scene) -> None:
    name = "quotes-broker-1"
    scene.answers |= {
        f"get pod {name}": [pod(name), pod(name), "", pod(name, "new", "False"), pod(name, "new")],
        EVICTION: [{}],
    }
    result = scene.run("drain", name)
    assert (result.exit_code, result.output) == (0, f"{name} drains its clients\n{name} is ready again\n")
    ((_, body),) = scene.calls("create")
    assert json.loads(body)["deleteOptions"] == {"preconditions": {"uid": "old"}}
    assert len(scene.calls("get", "pod")) == 5


def test_drain_is_refused_by_the_disruption_budget_and_for_other_pods(scene: Scene) -> None:
    name = "quotes-broker-1"
    scene.answers[f"get pod {name}"] = [pod(name)]
    scene.answers[EVICTION] = [{"fails": "Cannot evict pod as it would violate the pod's disruption budget."}]
    result = scene.run("drain", name)
    assert (result.exit_code, "can't be drained now" in result.stderr) == (1, True)
    scene.answers[EVICTION] = [{"fails": "forbidden"}]
    assert scene.run("drain", name).exit_code == 2
    scene.answers["get pod web"] = [{"metadata": {"name": "web", "namespace": "market", "uid": "a"}}]
    assert "pod web is not a broker" in scene.run("drain", "web").stderr


def test_drain_that_is_too_slow_ends_with_1(scene: Scene) -> None:
    scene.answers |= {"get pod quotes-broker-1": [pod("quotes-broker-1")], EVICTION: [{}]}
    result = scene.run("drain", "quotes-broker-1", "--wait", "0.2")
    assert (result.exit_code, "was not ready again within 0.2 s" in result.stderr) == (1, True)
    assert scene.run("drain", "quotes-broker-1", "--wait", "0").exit_code == 0


@pytest.mark.parametrize(
    ("options", "selector", "stateful_set"),
    [((), BROKERS, "quotes-broker"), (("--zookeeper",), MEMBERS, "quotes-zookeeper")],
)
def test_restart_waits_until_all_pods_are_new_and_the_cluster_settled(
    scene: Scene, options: tuple[str, ...], selector: str, stateful_set: str
) -> None:
    def pods(*uids: str) -> dict[str, Any]:
        return {"items": [pod(f"a-{index}", uid) for index, uid in enumerate(uids)]}

    scene.answers |= {
        f"get pods --selector={selector}": [pods("a", "b"), pods("a", "b"), pods("a", "c"), pods("d", "c")],
        f"rollout restart statefulset/{stateful_set}": ["restarted"],
        "get migratorycluster quotes": [cluster(), *[cluster("RollingOut")] * 3, cluster()],
    }
    result = scene.run("restart", "quotes", *options)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "all pods are up to date and the cluster is healthy"
    assert len(scene.calls("get", "migratorycluster")) == 5, "settled only after the last pod"


def test_restart_says_why_it_stopped_and_is_refused_while_paused(scene: Scene) -> None:
    scene.answers["rollout restart statefulset/quotes-broker"] = ["restarted"]
    scene.answers["get migratorycluster quotes"] = [cluster(), cluster("RolloutStopped")]
    result = scene.run("restart", "quotes")
    assert (result.exit_code, "a pod has failed" in result.stderr) == (1, True)
    paused = cluster(annotations={"migratory.dev/paused": "true"})
    scene.answers["get migratoryclusters --selector="] = [{"items": [paused]}]
    result = scene.run("restart")
    assert (result.exit_code, "the operator is paused" in result.stderr) == (1, True)
    assert len(scene.calls("rollout")) == 1


@pytest.mark.parametrize(
    ("status", "code", "shown"),
    [
        ({"phase": "Succeeded", "verdict": "met"}, 0, "quotes-abc: met: all of it"),
        ({"phase": "Succeeded", "verdict": "missed"}, 1, "quotes-abc: missed: all of it"),
        ({"phase": "Succeeded", "verdict": "insufficient"}, 3, "quotes-abc: insufficient: all of it"),
        ({"phase": "Failed"}, 4, "quotes-abc: failed: all of it"),
    ],
)
def test_report_is_made_and_its_verdict_is_the_exit_code(
    scene: Scene, status: dict[str, Any], code: int, shown: str
) -> None:
    complete = {"conditions": [condition("Complete", "True", message="all of it")]}
    scene.answers |= {
        "create": [{"metadata": {"name": "quotes-abc"}}],
        "get slareport quotes-abc": [{}, {"status": {"phase": "Running"}}, {"status": {**status, **complete}}],
    }
    result = scene.run("report", "--window", "5m")
    assert (result.exit_code, result.stdout) == (code, f"{shown}\n")
    ((_, body),) = scene.calls("create")
    made = json.loads(body)
    assert made["spec"] == {"cluster": "quotes", "window": "5m"}
    assert made["metadata"] == {"generateName": "quotes-"}
    assert json.loads(scene.run("report", "--json").stdout)["status"]["phase"] == status["phase"]


def test_report_without_waiting_prints_its_name(scene: Scene) -> None:
    scene.answers["create"] = [{"metadata": {"name": "quotes-abc"}}]
    result = scene.run("report", "--wait", "0")
    assert (result.exit_code, result.stdout) == (0, "quotes-abc\n")
    scene.answers["create"] = [{"fails": 'admission: spec.window: "x" is not allowed'}]
    result = scene.run("report", "--window", "x")
    assert (result.exit_code, "spec.window" in result.stderr) == (2, True)


def line(moment: float, broker: str, event: str, **fields: Any) -> str:
    return json.dumps(
        {"time": moment, "level": "info", "event": event, "cluster": "quotes", "broker": broker, **fields}
    )


def test_takeovers_are_the_lines_of_all_brokers_by_time(scene: Scene) -> None:
    restarted: dict[str, Any] = {
        "containerStatuses": [{"name": "broker", "restartCount": 1}, {"name": "shipper", "restartCount": 0}]
    }
    pods = [pod("quotes-broker-0", **restarted), pod("quotes-broker-1")]
    scene.answers |= {
        f"get pods --selector={BROKERS}": [{"items": pods}],
        "logs quotes-broker-0 --previous": [line(10.0, "quotes-broker-0", "draining", signal="SIGTERM")],
        "logs quotes-broker-0": [line(30.0, "quotes-broker-0", "started") + "\nno JSON\n[1]\n"],
        "logs quotes-broker-1": [
            "\n".join(
                [
                    line(20.25, "quotes-broker-1", "epoch_activated", group=7, epoch=3),
                    line(20.5, "quotes-broker-1", "epoch_activated", group=8, epoch=2),
                    line(21.0, "quotes-broker-1", "client_moved"),
                ]
            )
        ],
    }
    result = scene.run("takeovers", "--since", "2h")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "00:00:10.000  quotes-broker-0  draining  signal=SIGTERM",
        "00:00:20.250  quotes-broker-1  epoch_activated  group=7 epoch=3",
        "00:00:20.500  quotes-broker-1  epoch_activated  group=8 epoch=2",
        "00:00:30.000  quotes-broker-0  started",
    ]
    assert all("--since=2h" in arguments for arguments, _ in scene.calls("logs"))
    of_one = [json.loads(text) for text in scene.run("takeovers", "--group", "8", "--json").stdout.splitlines()]
    assert [(entry["event"], entry.get("group")) for entry in of_one] == [
        ("draining", None), ("epoch_activated", 8), ("started", None)
    ]  # fmt: skip


def test_logs_without_a_takeover_are_said_to_be_so(scene: Scene) -> None:
    scene.answers |= {"logs quotes-broker-0": [""], "logs quotes-broker-1": [""]}
    result = scene.run("takeovers")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no takeover in the logs of the last 1h" in result.stderr


def test_entries_without_a_time_or_of_another_shape_are_left_out() -> None:
    assert takeover_entries(['{"event":"ready"}', '{"time":"now","event":"ready"}', '"ready"', "x"], None) == []
    assert format_entry({"time": 0, "event": "ready"}) == "00:00:00.000  -  ready"
