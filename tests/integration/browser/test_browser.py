"""The JavaScript client on three real brokers, in Node.js, Chromium and Firefox: brokers are killed, the tab is frozen
and put into the back-forward cache, tokens expire. Every publication arrives once and in order, and pages, the console
among them, say what happens."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import psutil
import pytest
from migratory_client import LinkUp, SyncClient
from migratory_client.notifications import Status
from migratory_local.cluster.state import ClusterState, running_clusters
from migratory_protocol.topics import topic_group
from migratory_testing.browser import Browser
from migratory_testing.chromium import Chromium
from migratory_testing.firefox import Firefox
from migratory_testing.javascript import CLIENT, node, violations
from migratory_testing.nginx import Nginx
from migratory_testing.processes import descendants, runs
from migratory_testing.tokens import SECRET, sign
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[3]
LIMIT = 60.0
GROUPS = 8
TOKEN_LIFE = 8.0
"""Seconds for which a token of the page is accepted. The broker asks for another one after three quarters of it."""
FROZEN = float(os.environ.get("MIGRATORY_FROZEN", TOKEN_LIFE + 1.5))
"""Seconds for which the tab is frozen: longer than its token lives."""

STATUS_TOKEN = "of the administration"

CLUSTER = """\
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {{name: pages}}
spec:
  brokers: {{replicas: 3}}
  topics: {{groups: {groups}, cache: {{minAge: 3m}}}}
  security:
    anonymous: true
    hosts: [127.0.0.1, brokers]
    administration: {{tokens: [{digest}]}}
    tokens: {{leeway: 0s, keys: [{{algorithms: [HS256], file: {secret}}}]}}
    rules:
      - {{anonymous: true, topics: ["**"], allow: [subscribe, publish, history]}}
"""


class Cluster:
    """Three brokers that `migratory up` runs, and starts again when they are killed. Clients may come without a token,
    or with one. `urls` has the brokers' addresses by name, `first` is one of them, `console` that of its
    console."""

    def __init__(self, folder: Path) -> None:
        secret = folder / "secret"
        secret.write_text(SECRET)
        file = folder / "cluster.yaml"
        file.write_text(CLUSTER.format(secret=secret, groups=GROUPS, digest=sha256(STATUS_TOKEN.encode()).hexdigest()))
        states = folder / "state"
        command = [sys.executable, "-m", "migratory_cli.main", "up", "-f", str(file), "--workdir", str(folder / "work")]
        environment = {**os.environ, "XDG_STATE_HOME": str(states)}
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--metrics", "none"], stdout=output, stderr=output, env=environment, start_new_session=True
            )

        def running() -> list[ClusterState]:
            assert self.process.poll() is None, (folder / "output").read_text()
            return running_clusters(states / "migratory")

        try:
            self._brokers = poll(running, "the cluster runs", 120)[0].brokers
        except BaseException:
            self.end()
            raise
        self.urls = {broker.name: broker.url for broker in self._brokers}
        self.first = self._brokers[0].url
        self.console = urljoin(self.first.replace("ws", "http", 1), "/console")

    def bystander(self, topic: str, publisher: str) -> str:
        """Return the name of a broker that does not coordinate the topic, and is not the publisher's: publications go
        on when it is killed."""
        self.wait_ready()
        number = topic_group(topic, GROUPS)

        def coordinator() -> str:
            headers = {"Authorization": f"Bearer {STATUS_TOKEN}"}
            request = urllib.request.Request(f"{self._brokers[0].admin}/v1/status", headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                groups = json.load(answer)["logic"]["groups"]
            return next(str(group["coordinator"] or "") for group in groups if group["group"] == number)

        taken = poll(coordinator, f"{topic} has a coordinator", LIMIT)
        return next(name for name in self.urls if name not in (taken, publisher))

    def wait_ready(self) -> None:
        """Wait until all brokers are ready. With one of three a cluster stands still."""
        poll(lambda: all(is_ready(broker.admin) for broker in self._brokers), "all brokers are ready", LIMIT)

    def kill(self, broker: str) -> None:
        """Kill the broker's process."""
        (process,) = [child for child in descendants(self.process.pid) if runs(child, f"--name={broker}")]
        process.kill()

    def end(self) -> None:
        """End the cluster with all its processes."""
        children = descendants(self.process.pid) if self.process.poll() is None else []
        self.process.terminate()
        self.process.wait(60)
        psutil.wait_procs(children, timeout=10)


def is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.end()


class Counter:
    """A publisher of 1, 2, 3, … on a topic. `last` is the last number that was acknowledged, `broker` the name of its
    broker. It begins at the first one, as the example does, so that no other broker has more than its share of the
    clients and asks some to move."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.last = 0
        self.broker = ""
        self._servers = [cluster.first]
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()

    def _publish(self) -> None:
        with SyncClient(self._servers, on_status=self._note_broker) as client:
            while not self._stop.wait(0.01):
                client.publish(self._topic, str(self.last + 1))
                self.last += 1

    def _note_broker(self, status: Status) -> None:
        if isinstance(status, LinkUp):
            self.broker = status.broker

    def more(self, count: int) -> None:
        """Wait until `count` more numbers are published."""
        target = self.last + count
        poll(lambda: self.last >= target, f"{count} more publications", LIMIT)


def in_order(texts: list[str]) -> bool:
    """Return whether the texts are consecutive numbers."""
    numbers = [int(text) for text in texts]
    return bool(numbers) and numbers == list(range(numbers[0], numbers[-1] + 1))


# ---- Node.js -----------------------------------------------------------------------------------------------------


class Follower:
    """A program of Node.js that follows a topic, at first at the broker `url`. `texts` are the messages, `states` the
    events of its client."""

    def __init__(self, topic: str, url: str, program: str) -> None:
        command = [node(), str(Path(__file__).parent / program), topic, url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.texts: list[str] = []
        self.states: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            content = json.loads(line)
            if "text" in content:
                self.texts.append(content["text"])
            else:
                self.states.append(content)

    def end(self) -> None:
        """Let the program close its client. Raise AssertionError when it does not end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0
        self._thread.join(10)

    def kill(self) -> None:
        """Kill the program if it runs, and wait until all that it printed was read."""
        self.process.kill()
        self._thread.join(10)
        with self.process:  # closes its pipes
            pass


@contextmanager
def follower(topic: str, url: str, program: str = "follow.js") -> Iterator[Follower]:
    running = Follower(topic, url, program)
    try:
        yield running
    finally:
        running.kill()


def test_node_loses_nothing_when_its_broker_is_killed(cluster: Cluster) -> None:
    with Counter(cluster, "node") as counter:
        counter.more(1)
        broker = cluster.bystander("node", counter.broker)
        with follower("node", cluster.urls[broker]) as program:
            follow_over_a_kill(cluster, broker, counter, program)


def follow_over_a_kill(cluster: Cluster, broker: str, counter: Counter, program: Follower) -> None:
    poll(lambda: len(program.texts) > 20, "messages arrive", LIMIT)
    cluster.kill(broker)
    poll(lambda: len(program.states) == 5, "connected again", LIMIT)
    counter.more(50)
    counter.stop()
    poll(lambda: program.texts[-1] == str(counter.last), "the last message", LIMIT)
    program.end()
    assert in_order(program.texts)
    names = [state["state"] for state in program.states]
    assert names == ["connecting", "connected", "disconnected", "connecting", "connected", "disconnected"]
    lost, closed = program.states[2], program.states[5]
    assert (lost["code"], lost["final"]) == (1006, False)
    assert (closed["code"], closed["final"]) == (1000, True)


def test_node_loses_nothing_over_http_and_comes_back_to_websocket(cluster: Cluster) -> None:
    with Counter(cluster, "node-http") as counter:
        counter.more(1)
        broker = cluster.bystander("node-http", counter.broker)
        with follower("node-http", cluster.urls[broker], "follow_http.js") as program:
            poll(lambda: len(program.texts) > 20, "messages arrive", LIMIT)
            cluster.kill(broker)
            poll(lambda: [state["state"] for state in program.states].count("connected") == 2, "connected again", LIMIT)
            counter.more(50)
            assert "websocket" not in [state["state"] for state in program.states]
            assert program.process.stdin is not None
            program.process.stdin.write("open\n")
            program.process.stdin.flush()
            poll(lambda: program.states[-1]["state"] == "connected", "connected by WebSocket", LIMIT)
            poll(lambda: "websocket" in [state["state"] for state in program.states], "a WebSocket opens", LIMIT)
            counter.more(50)
            counter.stop()
            poll(lambda: program.texts[-1] == str(counter.last), "the last message", LIMIT)
            program.end()
            assert in_order(program.texts)


def test_documented_program_runs(cluster: Cluster) -> None:
    page = (ROOT / "docs" / "reference" / "client-js.md").read_text()
    (program,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    urls = iter(cluster.urls.values())
    program = re.sub(r"ws://127\.0\.0\.1:880\d/ws", lambda _: next(urls), program)
    command = [node(), "--input-type=module"]
    done = subprocess.run(command, input=program, cwd=CLIENT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"published at (\d+:1)\nquotes/eur \1 1\.0842\n", done.stdout)


# ---- browsers ----------------------------------------------------------------------------------------------------

FOLLOW = """(async ({servers, tokens, life}) => {
    const {Client} = await import('/clients/js/src/index.js');
    Object.assign(globalThis, {texts: [], states: [], gaps: [], asked: 0, shown: []});
    const token = () => {
        asked += 1;
        return tokens.find(([end]) => end > Date.now() / 1000 + life)[1];
    };
    globalThis.follower = new Client(servers, {token});
    for (const state of ['connecting', 'connected', 'disconnected']) {
        follower.addEventListener(state, ({final}) => states.push(state + (final === undefined ? '' : ` ${final}`)));
    }
    addEventListener('pageshow', ({persisted}) => shown.push(persisted));
    // A broker with more than its share of the clients asked it to move: nothing was interrupted.
    follower.addEventListener('moved', () => states.splice(states.lastIndexOf('connected'), 1));
    follower.connect();
    const stream = follower.subscribe('page');
    stream.addEventListener('message', ({message}) => texts.push(message.text));
    stream.addEventListener('gap', ({kind}) => gaps.push(kind));
})"""
BROWSERS = [Chromium, Firefox]
AGAIN = ["disconnected false", "connecting", "connected"]


@pytest.fixture
def example(cluster: Cluster) -> Iterator[str]:
    """Run the publisher of the example and yield the URL of its page."""
    command = [sys.executable, str(ROOT / "examples" / "prices" / "publish.py"), "--port", "0"]
    process = subprocess.Popen([*command, "--server", cluster.first], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), line
        yield line.removeprefix("open ").strip()
    finally:
        process.kill()
        with process:  # closes its pipe
            pass


def test_example_says_that_its_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        command = [sys.executable, str(ROOT / "examples" / "prices" / "publish.py"), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--port {port}: Address already in use; choose another port" in done.stderr


class Page:
    """The example's page, with a second client that follows a topic and counts."""

    def __init__(self, browser: Browser, counter: Counter) -> None:
        self.ask = browser.ask
        self._counter = counter

    def text(self, name: str) -> str:
        """Return the text of an element of the example."""
        return str(self.ask(f"document.getElementById('{name}').innerText"))

    def follow(self, arguments: dict[str, Any]) -> None:
        """Start the second client, and wait until messages arrive."""
        self.ask(f"{FOLLOW}({json.dumps(arguments)})")
        poll(lambda: self.ask("texts.length") > 20, "messages arrive", LIMIT)

    def catch_up(self, what: str) -> None:
        """Wait until the page has received all that is published now. Check that nothing is missing or doubled."""
        last = self._counter.last
        poll(lambda: self.ask(f"follower.state === 'connected' && +texts.at(-1) >= {last}"), what, LIMIT)
        assert self.ask("gaps") == []
        assert in_order(self.ask("texts")), what


@pytest.mark.parametrize("browser_type", BROWSERS)
def test_page_loses_nothing_when_brokers_die_tabs_freeze_and_tokens_expire(
    cluster: Cluster, example: str, tmp_path: Path, browser_type: type[Browser]
) -> None:
    with Counter(cluster, "page") as counter, browser_type(tmp_path) as browser:
        page = Page(browser, counter)
        counter.more(1)
        broker = cluster.bystander("page", counter.broker)
        address = example.partition("?")[0]
        browser.open(f"{address}?server={cluster.urls[broker]}")
        poll(lambda: page.ask("document.querySelectorAll('#prices td').length") == 9, "three prices", LIMIT)
        assert sorted(line.split()[0] for line in page.text("prices").splitlines()) == ["CHF", "GBP", "USD"]
        assert page.text("state") == "connected"
        assert page.text("detail") == broker

        ends = [time.time() + second for second in range(int(FROZEN) + 300)]
        tokens = [(end, sign({"sub": "page", "exp": end}, "HS256")) for end in ends]
        arguments = {"servers": [cluster.urls[broker]], "tokens": tokens, "life": TOKEN_LIFE - 1}
        page.follow(arguments)

        # Both clients of the page have the same broker, which is killed.
        cluster.kill(broker)
        poll(lambda: page.ask("states.length") == 5, "connected again", LIMIT)
        counter.more(50)
        page.catch_up("after the kill")
        assert page.ask("states") == ["connecting", "connected", *AGAIN]
        poll(lambda: page.text("state") == "connected", "the example is connected again", LIMIT)
        log = page.text("log")
        assert f"connected: {broker}" in log
        assert "disconnected: 1006" in log
        assert "the client reconnects" in log

        # The token expires on a connection that stays.
        asked = page.ask("asked")
        poll(lambda: page.ask("asked") > asked, "the token was renewed", LIMIT)
        counter.more(50)
        page.catch_up("after the renewal")
        assert page.ask("states.length") == 5

        # Frozen for longer than its token lives.
        asked = page.ask("asked")
        with browser.frozen():
            frozen_at = time.monotonic()
            counter.more(100)
            poll(lambda: time.monotonic() - frozen_at > FROZEN, "the token has expired", FROZEN + 10)
        page.catch_up("after the freeze")
        assert page.ask("asked") > asked
        assert page.ask("states")[5:] == AGAIN

        assert browser.exceptions == []

        # Away and back: the page comes from the back-forward cache as it was, or is loaded again.
        browser.open(address + "none.html")
        counter.more(50)
        browser.go_back()
        if browser.keeps_connected_pages:
            page.catch_up("from the back-forward cache")
            assert page.ask("shown") == [True]
            assert page.ask("states")[8:] == AGAIN
        else:
            assert page.ask("typeof follower") == "undefined"
            page.follow(arguments)
        counter.stop()
        page.catch_up("the last message")
        assert page.ask("texts.at(-1)") == str(counter.last)
        poll(lambda: page.text("state") == "connected", "the example is connected again", LIMIT)
        assert browser.exceptions == []


FOLLOW_OVER_HTTP = """(async (servers) => {
    const {Client} = await import('/clients/js/src/index.js');
    const {createFallbackSocket} = await import('/clients/js/src/http.js');
    Object.assign(globalThis, {texts: [], states: [], gaps: [], blocked: true, opened: 0});
    class Blocked extends WebSocket {
        constructor(url, protocol) {
            super(blocked ? 'ws://127.0.0.1:1/ws' : url, protocol);
            this.addEventListener('open', () => opened += 1);
        }
    }
    const times = {firstProbe: 1000, lastProbe: 1000, early: 200};
    globalThis.follower = new Client(servers, {WebSocket: createFallbackSocket({WebSocket: Blocked, times})});
    follower.addEventListener('connected', () => states.push('connected'));
    follower.connect();
    const stream = follower.subscribe('page-http');
    stream.addEventListener('message', ({message}) => texts.push(message.text));
    stream.addEventListener('gap', ({kind}) => gaps.push(kind));
})"""


@pytest.mark.parametrize("browser_type", BROWSERS)
def test_page_loses_nothing_where_websocket_is_blocked_and_comes_back(
    cluster: Cluster, example: str, tmp_path: Path, browser_type: type[Browser]
) -> None:
    with Counter(cluster, "page-http") as counter, browser_type(tmp_path) as browser:
        page = Page(browser, counter)
        counter.more(1)
        broker = cluster.bystander("page-http", counter.broker)
        browser.open(example)
        page.ask(f"{FOLLOW_OVER_HTTP}({json.dumps([cluster.urls[broker]])})")
        poll(lambda: page.ask("texts.length") > 20, "messages arrive", LIMIT)
        cluster.kill(broker)
        poll(lambda: page.ask("states.length") == 2, "connected again", LIMIT)
        counter.more(50)
        page.catch_up("after the kill")
        published = page.ask(f"follower.publish('page-http-{browser.program}', 'x')")
        assert published.endswith(":1")
        assert page.ask("opened") == 0
        page.ask("void (blocked = false)")
        poll(lambda: page.ask("opened") >= 2, "a probe and a client's WebSocket", LIMIT)
        counter.more(50)
        counter.stop()
        page.catch_up("by WebSocket")
        assert page.ask("texts.at(-1)") == str(counter.last)
        assert browser.exceptions == []


# ---- the console -------------------------------------------------------------------------------------------------

SCREENS = [(390, False), (390, True), (768, False), (1280, False), (1280, True)]
"""Widths in pixels, and whether the colours are dark."""


NAME_OF_FOCUS = """(({id, tagName, textContent}, title) =>
    tagName === "BODY" ? "" : id || title?.textContent || textContent)(
    document.activeElement, document.getElementById(document.activeElement.getAttribute("aria-labelledby")))"""
"""The id of the element that has the focus, else its title or its text; "" when none has it."""


class ConsolePage:
    """The console's page."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.ask = browser.ask
        self._browser = browser
        self._address = address

    def open(self) -> None:
        """Load the page, which then lacks a token."""
        self._browser.open(self._address)
        self.wait("health", "the console needs a token")

    def text(self, name: str) -> str:
        """Return the text of an element."""
        return str(self.ask(f"document.getElementById('{name}').innerText"))

    def faults(self) -> list[str]:
        """Return what the page has of scripts that failed and of breaches of its Content-Security-Policy."""
        refused = [line for line in self._browser.console if "Content Security" in line]
        return self._browser.exceptions + refused

    def violations(self) -> list[tuple[str, str]]:
        """Return the rules of axe that the page breaks, and where."""
        return violations(self.ask, {"color-contrast", "label", "button-name"})

    def wait(self, name: str, pattern: str) -> str:
        """Wait until an element has a text that matches, and return the text."""

        def found() -> str:
            text = self.text(name)
            return text if re.search(pattern, text) else ""

        return poll(found, f"{name} has {pattern}", LIMIT)

    def submit(self, form: str, **values: str) -> None:
        """Fill fields of a form by their ids, and submit it."""
        for name, value in values.items():
            self.ask(f"void (document.getElementById('{name}').value = {json.dumps(value)})")
        self.ask(f"document.getElementById('{form}').requestSubmit()")

    def payloads(self) -> list[str]:
        """Return the payloads that are shown, the oldest first."""
        cells = self.ask("[...document.querySelectorAll('#messages .payload')].map((cell) => cell.textContent)")
        return [str(text) for text in reversed(cells)]


def test_console_says_that_a_broker_died_and_goes_on_following(cluster: Cluster, tmp_path: Path) -> None:
    topic, payload = "<b>console</b>", "<img src=x onerror=alert(1)>"
    cluster.wait_ready()
    with SyncClient([*cluster.urls.values()]) as publisher, Chromium(tmp_path) as browser:
        page = ConsolePage(browser, cluster.console)
        page.open()
        assert page.ask("document.getElementById('tokens').open") is True
        page.submit("use-tokens", **{"status-token": "a wrong one"})
        page.wait("health", "The token was refused")
        page.submit("use-tokens", **{"status-token": STATUS_TOKEN})
        page.wait("now", r"brokers ready\s+3 of 3")
        assert page.text("cluster") == "pages"

        # What others wrote is shown as text.
        page.submit("publish", topic=topic, payload=payload)
        page.wait("published", r"^Stored at position \d+:1 ")
        page.submit("follow")
        poll(lambda: page.payloads() == [payload], "the latest publication", LIMIT)
        assert page.ask("document.querySelectorAll('#messages img, #place b').length") == 0
        assert topic in page.wait("place", r"topic group \d, coordinator pages-broker-\d")

        # The page's broker dies, and is started again.
        broker = page.wait("link", "connected to").removeprefix("This page is connected to ").rstrip(".")
        cluster.kill(broker)
        page.wait("line", rf"{broker} (does not answer|was started again)")
        page.wait("line", r"this page is disconnected: 1006.*; it connects again")
        page.wait("line", r"this page goes on after")
        numbers = [str(number) for number in range(2, 12)]
        for number in numbers:
            publisher.publish(topic, number)
        poll(lambda: page.payloads() == [payload, *numbers], "the publications after the kill", LIMIT)
        assert re.search(r"gaps\s+0", page.text("counts"))
        page.wait("line", rf"{broker} was started again")
        page.wait("now", r"brokers ready\s+3 of 3")

        for width, dark in SCREENS:
            browser.set_screen(width, dark=dark)
            assert page.ask("document.documentElement.scrollWidth <= innerWidth"), width
            assert page.violations() == [], (width, dark)
        assert page.faults() == []
        own = tuple(url.replace("ws", "http", 1).removesuffix("ws") for url in cluster.urls.values())
        assert [url for url in browser.requests if not url.startswith((*own, "data:"))] == []


def test_console_needs_nothing_but_a_proxy_below_a_path(cluster: Cluster, tmp_path: Path) -> None:
    cluster.wait_ready()
    brokers = [urlsplit(url).netloc for url in cluster.urls.values()]
    # The browser reaches nothing but nginx, which passes no WebSocket on, and sends each request to another broker.
    only_nginx = """add_header Content-Security-Policy "connect-src 'self'";"""
    with Nginx(tmp_path / "nginx", brokers, "/feeds", only_nginx) as nginx, Firefox(tmp_path) as browser:
        page = ConsolePage(browser, f"{nginx.url}/console/")
        page.open()
        assert page.ask("location.pathname") == "/feeds/console"
        page.submit("use-tokens", **{"status-token": STATUS_TOKEN})
        page.wait("now", r"brokers ready\s+3 of 3")
        page.submit("publish", topic="proxied", payload="latest")
        page.wait("published", r"^Stored at position \d+:1 ")
        page.submit("follow")
        poll(lambda: page.payloads() == ["latest"], "the latest publication", LIMIT)
        page.submit("publish", payload="live")
        poll(lambda: page.payloads() == ["latest", "live"], "a live publication", LIMIT)
        assert page.ask("getComputedStyle(document.getElementById('now')).display") == "grid"
        assert page.faults() == []


FOCUS_IS_VISIBLE = """(({outlineStyle, outlineWidth}) => outlineStyle === "solid" && parseFloat(outlineWidth) >= 2)(
    getComputedStyle(document.activeElement))"""


def test_console_is_used_with_the_keyboard_alone_on_a_phone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.wait_ready()
    with Chromium(tmp_path) as browser:
        browser.set_screen(390, dark=True)
        page = ConsolePage(browser, cluster.console)
        page.open()
        assert page.violations() == []

        def next_focus() -> str:
            """Press Tab, and return the id or the text of the element that gets the focus, "" when it leaves the
            page."""
            browser.press("Tab", 9)
            return str(page.ask(NAME_OF_FOCUS))

        def tab_to(name: str) -> None:
            for _ in range(20):
                if next_focus() == name:
                    assert page.ask(FOCUS_IS_VISIBLE), name
                    return
            raise AssertionError(f"Tab does not reach {name}")

        tab_to("status-token")
        browser.write(STATUS_TOKEN)
        browser.press("Enter", 13, "\r")
        page.wait("now", r"brokers ready\s+3 of 3")
        tab_to("topic")
        browser.write("keyboard")
        browser.press("Enter", 13, "\r")
        page.wait("link", "connected to")
        tab_to("payload")
        browser.write("typed")
        tab_to("Publish to the topic")
        browser.press("Enter", 13, "\r")
        page.wait("published", r"^Stored at position")
        assert page.ask("document.activeElement.textContent") == "Publish to the topic"
        poll(lambda: page.payloads() == ["typed"], "the publication", LIMIT)

        # Once around the page: each control and each part that scrolls has its turn, and shows it.
        poll(lambda: next_focus() == "", "the focus leaves the page", LIMIT)
        reached = []
        while (name := next_focus()) != "":
            assert page.ask(FOCUS_IS_VISIBLE), name
            reached.append(name)
            assert len(reached) < 30, reached
        assert reached == [
            "Tokens", "status-token", "client-token", "Use", "Brokers", "topic", "Follow", "stop",
            "messages-region", "payload", "Publish to the topic", "Time line", "Topic groups",
        ]  # fmt: skip
        tab_to("stop")
        browser.press("Enter", 13, "\r")
        assert page.ask("document.activeElement.id") == "topic"
        assert page.ask("document.documentElement.scrollWidth <= innerWidth")
        assert page.faults() == []
