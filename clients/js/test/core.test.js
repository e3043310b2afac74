// The core where it differs from the sessions that all clients share: sleeping pages, late timers, silent sockets.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createCore, step } from "./adapter.js";

const WELCOME = {
  op: "welcome", version: 1, cluster: "c", broker: "b", incarnation: 1, servers: [], heartbeat: 15,
  limits: { payload: 1000, topic: 255, subscriptions: 10, queue: 1000 },
};

class Bench {
  constructor(options = {}) {
    this.core = createCore({ servers: ["ws://a/ws", "ws://b/ws"], random: [0.5], options: { client: "c", publisher: "p", ...options } });
    this.now = 0;
  }

  give(type, fields = {}) {
    return step(this.core, { type, ...fields }, this.now);
  }

  receive(link, ...messages) {
    return this.give("received", { link, messages });
  }

  /** Let time pass with a tick at each deadline. Return the effects. */
  wait(seconds) {
    const end = this.now + seconds;
    const effects = [];
    while (this.core.deadline <= end) {
      this.now = Math.max(this.now, this.core.deadline);
      effects.push(...this.give("tick"));
    }
    this.now = end;
    return effects;
  }

  /** Let time pass until the core dials. Return that effect. */
  nextDial() {
    for (;;) {
      this.now = this.core.deadline;
      const dial = this.give("tick").find(({ type }) => type === "dial");
      if (dial) return dial;
    }
  }

  /** Let time pass in which no timer ran. */
  sleep(seconds) {
    this.now += seconds;
  }

  connect(link) {
    this.give("connected", { link });
    return this.receive(link, WELCOME);
  }

  open() {
    const [dial] = this.give("open");
    this.connect(dial.link);
    return dial.link;
  }
}

const types = (effects) => effects.map(({ type }) => type);
const sent = (effects) => effects.filter(({ type }) => type === "send").flatMap(({ messages }) => messages.map(({ op }) => op));

test("a quiet link is pinged after one heartbeat, and stays when the broker answers", () => {
  const bench = new Bench();
  const link = bench.open();
  assert.deepEqual(sent(bench.wait(14.9)), []);
  assert.deepEqual(sent(bench.wait(0.2)), ["ping"]);
  for (let round = 0; round < 10; round += 1) {
    bench.receive(link, { op: "pong" });
    assert.deepEqual(types(bench.wait(15)), ["send"]);
  }
});

test("a link that others talk on is not pinged", () => {
  const bench = new Bench();
  const link = bench.open();
  for (let second = 0; second < 100; second += 5) {
    bench.receive(link, { op: "pong" });
    assert.deepEqual(bench.wait(5), []);
  }
});

test("timers of a throttled tab run once a minute: a live link stays", () => {
  const bench = new Bench();
  const link = bench.open();
  for (let minute = 0; minute < 10; minute += 1) {
    bench.sleep(60);
    assert.deepEqual(sent(bench.give("wake")), ["ping"]); // the driver wakes the core when a timer was late
    bench.receive(link, { op: "pong" });
  }
});

test("timers of a throttled tab run once a minute: a dead link ends", () => {
  const bench = new Bench();
  const link = bench.open();
  const seen = [];
  for (let minute = 0; minute < 4 && !seen.includes("linkDown"); minute += 1) {
    bench.sleep(60);
    seen.push(...types(bench.give("wake")));
  }
  assert.deepEqual(seen, ["send", "send", "disconnect", "linkDown"]);
  assert.equal(link, 1);
});

test("a socket that stayed open over a sleep has wakeTimeout to answer", () => {
  const bench = new Bench();
  const link = bench.open();
  bench.sleep(3600);
  assert.deepEqual(sent(bench.give("wake")), ["ping"]);
  assert.deepEqual(bench.wait(4.9), []);
  const effects = bench.wait(0.2);
  assert.deepEqual(types(effects), ["disconnect", "linkDown"]);
  assert.deepEqual(effects[0], { type: "disconnect", link, abort: true });
  assert.equal(bench.wait(2)[0].type, "dial");
});

test("messages that waited in the socket over a sleep prove that it lives", () => {
  const bench = new Bench();
  bench.give("subscribe", { topic: "t" });
  const link = bench.open();
  bench.receive(link, { op: "subscribed", request: 1, topics: [{ topic: "t", receipt: "complete", position: "1:0" }] });
  bench.wait(16); // a ping is on its way when the page falls asleep
  bench.sleep(3600);
  bench.give("wake");
  assert.deepEqual(types(bench.receive(link, { op: "message", topic: "t", position: "1:1", data: "x" })), ["deliver"]);
  assert.deepEqual(bench.wait(14), []);
});

test("a receipt that waited over a sleep is not late", () => {
  const bench = new Bench();
  bench.give("subscribe", { topic: "t" });
  const link = bench.open();
  bench.sleep(3600);
  assert.deepEqual(types(bench.give("wake")), ["send"]);
  const receipt = { op: "subscribed", request: 1, topics: [{ topic: "t", receipt: "complete", position: "1:0" }] };
  assert.deepEqual(types(bench.receive(link, receipt)), ["receipt", "ready"]);
});

test("a page put aside leaves its broker, and is back within a second", () => {
  const bench = new Bench();
  bench.give("subscribe", { topic: "t" });
  const link = bench.open();
  bench.receive(link, { op: "subscribed", request: 1, topics: [{ topic: "t", receipt: "complete", position: "1:7" }] });
  const effects = bench.give("sleep");
  assert.deepEqual(sent(effects), ["bye"]);
  assert.deepEqual(types(effects), ["send", "disconnect", "linkDown"]);
  assert.deepEqual(bench.wait(3600), []);
  assert.deepEqual(bench.give("sleep"), []);
  bench.give("wake");
  const [dial] = bench.wait(1);
  assert.equal(dial.type, "dial");
  const [, request] = bench.connect(dial.link);
  assert.deepEqual(request.messages[0].topics, [{ topic: "t", after: "1:7", snapshot: undefined }]);
});

test("a handshake under way over a sleep may still succeed", () => {
  const bench = new Bench();
  const [dial] = bench.give("open");
  bench.sleep(3600);
  assert.deepEqual(bench.give("wake"), []);
  assert.equal(types(bench.connect(dial.link))[0], "linkUp");
});

test("waking does nothing to a closed client, and shortens a long wait of an open one", () => {
  const bench = new Bench();
  assert.deepEqual([...bench.give("wake"), ...bench.give("sleep"), ...bench.give("tick")], []);
  let [dial] = bench.give("open");
  for (let attempt = 0; attempt < 20; attempt += 1) {
    bench.give("disconnected", { link: dial.link, code: 1006, reason: "" });
    dial = bench.nextDial();
  }
  bench.give("disconnected", { link: dial.link, code: 1006, reason: "" });
  assert.ok(bench.core.deadline > bench.now + 1);
  bench.give("wake");
  assert.ok(bench.core.deadline <= bench.now + 1);
});

test("a publication is not sent again after a sleep longer than the duplicate window", () => {
  const bench = new Bench();
  const link = bench.open();
  bench.give("submit", { ticket: 1, topic: "t", payload: "x" });
  bench.give("sleep");
  bench.sleep(3600);
  const [failed] = bench.give("wake");
  assert.deepEqual([failed.type, failed.code], ["failed", "timeout"]);
  const [dial] = bench.wait(1);
  assert.deepEqual(sent(bench.connect(dial.link)), []);
  assert.notEqual(dial.link, link);
});

test("remembered positions are bounded", () => {
  const bench = new Bench({ settings: { rememberedPositions: 2 } });
  for (const topic of ["a", "b", "c"]) {
    bench.give("subscribe", { topic, after: "1:1" });
    bench.give("unsubscribe", { topic });
  }
  for (const topic of ["a", "b", "c"]) bench.give("subscribe", { topic });
  const [dial] = bench.give("open");
  const [, request] = bench.connect(dial.link);
  assert.deepEqual(request.messages[0].topics.map(({ after }) => after), [undefined, "1:1", "1:1"]);
});

test("no usable server is an error at once", () => {
  assert.throws(() => createCore({ servers: [], random: [0], options: {} }), /no usable server/);
  assert.throws(() => new Bench().give("nonsense"), /unknown event/);
});
