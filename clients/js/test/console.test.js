/** What the console makes of the brokers' answers: rates, takeovers, health. The page itself is tested in a browser. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

// Node.js 20 takes a file outside of a package of modules for CommonJS.
const source = await readFile(new URL("../../../broker/migratory_broker/console/cluster.js", import.meta.url), "utf8");
const { Cluster, statusUrl, topicGroup } = await import(`data:text/javascript,${encodeURIComponent(source)}`);

const NAMES = ["a", "b", "c"];

function status(broker, uptime, more = {}) {
  return {
    broker, cluster: "c", brokers: NAMES, servers: NAMES.map((name) => ({ url: `ws://${name}/ws`, weight: 100 })),
    uptime_seconds: uptime, incarnation: 1, ready: true, reason: "", memory_bytes: 1, fenced: false, draining: false,
    zookeeper: { connected: true, denied: "", age_seconds: 0, data_losses: 0 },
    clients: 0, subscriptions: 0, topics: 0, published: 0, delivered: 0, sent_bytes: 0, queue_bytes: 0, paused: 0,
    replication_lag: 0, slow: [], live: NAMES, groups: [["a", 1, 3, 0, 0, ""], ["b", 1, 3, 0, 0, ""]], ...more,
  };
}

function running(now = 100) {
  const cluster = new Cluster();
  for (const name of NAMES) cluster.take(status(name, now), now, 5);
  return cluster;
}

const texts = (cluster) => cluster.line.map(({ text }) => text);

test("a topic's group is the one of the brokers", () => {
  // CRC-32 of "123456789" is 0xcbf43926
  assert.equal(topicGroup("123456789", 1000), 0xcbf43926 % 1000);
  assert.equal(topicGroup("é", 2 ** 32), 235179326);
});

test("the status is beside a broker's WebSocket", () => {
  assert.equal(statusUrl("ws://a:1/ws"), "http://a:1/console/status");
  assert.equal(statusUrl("ws://a:1"), "http://a:1/console/status");
  assert.equal(statusUrl("wss://a/feed/ws"), "https://a/feed/console/status");
});

test("rates are those of the broker's own clock", () => {
  const cluster = running();
  assert.equal(cluster.totals(100).delivered, null);
  cluster.take(status("a", 104, { delivered: 40, published: 8, sent_bytes: 400 }), 103, 5);
  const { delivered, published, sent } = cluster.totals(103);
  assert.deepEqual([delivered, published, sent], [10, 2, 100]);
});

test("a restarted broker has no negative rates, and is on the time line", () => {
  const cluster = running();
  cluster.take(status("a", 104, { delivered: 40 }), 104, 5);
  cluster.take(status("a", 1, { delivered: 0, incarnation: 2 }), 106, 5);
  assert.equal(cluster.brokers(106)[0].rates, null);
  assert.deepEqual(texts(cluster), ["a was started again"]);
});

test("a takeover is on the time line once, whoever tells it", () => {
  const cluster = running();
  const moved = { groups: [["c", 2, 3, 0, 0, ""], ["b", 1, 3, 0, 0, ""]] };
  cluster.take(status("b", 102, moved), 102, 5);
  cluster.take(status("c", 102, moved), 102, 5);
  cluster.take(status("a", 102), 102, 5); // it has not heard of it
  assert.deepEqual(texts(cluster), ["takeover of 1 topic group (0): a → c"]);
  assert.equal(cluster.groups[0].coordinator, "c");
});

test("a broker that is gone is said, and that it came back", () => {
  const cluster = running();
  const others = (now) => ["b", "c"].forEach((name) => cluster.take(status(name, now, { live: ["b", "c"] }), now, 5));
  others(102);
  cluster.miss("a", 102); // it may just have answered on another way
  assert.equal(cluster.health(102)[0], "good");
  others(104);
  cluster.miss("a", 104);
  cluster.tick(104);
  assert.deepEqual(cluster.health(104), ["bad", "1 broker of 3 not serving: a (gone)."]);
  assert.deepEqual([cluster.brokers(104)[0].state, cluster.brokers(104)[0].status], ["gone", null]);
  cluster.take(status("a", 106), 106, 5);
  assert.deepEqual(texts(cluster), ["a answers again", "a does not answer"]);
});

test("a broker that others hear is not taken for gone", () => {
  const cluster = running();
  ["b", "c"].forEach((name) => cluster.take(status(name, 120), 120, 5));
  assert.deepEqual(cluster.health(120), ["warning", "a: live, but this page does not reach it."]);
});

test("silence with open connections is said, with its reason", () => {
  const cluster = running();
  const take = (now, more) => NAMES.forEach((name) => cluster.take(status(name, now, more), now, 5));
  take(105, { clients: 2, subscriptions: 1, delivered: 10, published: 10 });
  take(110, { clients: 2, subscriptions: 1, delivered: 10, published: 10 });
  assert.equal(cluster.health(110)[0], "good");
  take(116, { clients: 2, subscriptions: 1, delivered: 10, published: 20 });
  const lost = "Nothing was delivered for more than 10 s though 6 clients are connected: publications are accepted.";
  assert.deepEqual(cluster.health(116), ["warning", lost]);
  take(127, { clients: 2, subscriptions: 1, delivered: 10, published: 20 });
  const idle = "Nothing was delivered for more than 10 s though 6 clients are connected: nothing is published.";
  assert.deepEqual(cluster.health(127), ["note", idle]);
  take(130, { clients: 2, subscriptions: 1, delivered: 40, published: 30 });
  assert.deepEqual(cluster.health(130), ["good", "All 3 brokers serve."]);
});

test("the seconds of silence that are said change rarely", () => {
  const cluster = running();
  const said = new Set();
  for (let now = 102; now < 400; now += 2) {
    for (const name of NAMES) cluster.take(status(name, now, { clients: 1 }), now, 5);
    said.add(cluster.health(now)[1].match(/more than (.*) though/)?.[1]);
  }
  assert.deepEqual([...said], [undefined, "10 s", "30 s", "1 min"]);
});

test("a broker that left the cluster is forgotten", () => {
  const cluster = running();
  const left = { brokers: ["b", "c"], live: ["b", "c"] };
  ["b", "c"].forEach((name) => cluster.take(status(name, 120, left), 120, 5));
  cluster.tick(120);
  assert.deepEqual(texts(cluster), ["a left the cluster"]);
  assert.deepEqual(cluster.brokers(120).map(({ name }) => name), ["b", "c"]);
  assert.equal(cluster.health(120)[0], "good");
});

test("no broker is forgotten while none answers", () => {
  const cluster = running();
  cluster.tick(130);
  assert.deepEqual(cluster.brokers(130).map(({ state }) => state), ["gone", "gone", "gone"]);
});

test("time in which the page did not ask is no silence", () => {
  const cluster = running();
  NAMES.forEach((name) => cluster.take(status(name, 102, { clients: 1, subscriptions: 1 }), 102, 5));
  cluster.take(status("c", 110, { clients: 1, subscriptions: 1 }), 110, 5);
  cluster.skip(3600, 3702);
  cluster.tick(3702);
  assert.deepEqual(texts(cluster), []);
  assert.deepEqual(cluster.health(3702), ["good", "All 3 brokers serve."]);
  cluster.tick(3720);
  assert.equal(texts(cluster).length, 3);
});

test("groups that wait, a lost ZooKeeper and a broker that is not ready are said", () => {
  const cluster = running();
  const cut = { connected: false, denied: "", age_seconds: 9, data_losses: 0 };
  cluster.take(status("b", 102, { zookeeper: cut, groups: [["a", 1, 3, 0, 0, ""], ["b", 1, 3, 0, 0, "members"]] }), 102, 5);
  cluster.take(status("c", 102, { ready: false, reason: "learning" }), 102, 5);
  const [level, text] = cluster.health(102);
  assert.equal(level, "bad");
  assert.match(text, /c \(not ready: learning\)/);
  assert.match(text, /1 topic group without a coordinator that serves/);
  assert.match(text, /Not connected to ZooKeeper: b\./);
});

test("without an answer the refusal is said", () => {
  const cluster = new Cluster();
  assert.deepEqual(cluster.health(1), ["bad", "No broker answers this page."]);
  cluster.refuse("a token is needed");
  assert.deepEqual(cluster.health(1), ["bad", "a token is needed"]);
});

test("the time line is bounded", () => {
  const cluster = new Cluster();
  for (let index = 0; index < 300; index += 1) cluster.note(index, `entry ${index}`);
  assert.equal(cluster.line.length, 200);
  assert.equal(cluster.line[0].text, "entry 299");
});
