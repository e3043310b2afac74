// `Client` with scripted sockets: what applications see, and what leaves in which frame.
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";

import { createClock } from "../src/driver.js";
import { Client, Closed, comparePositions, ConnectError, GapError, PublishError, SubscribeError } from "../src/index.js";

const SERVERS = ["ws://a/ws", "ws://b/ws"];

/** A WebSocket of which the test plays the broker. */
class FakeSocket {
  static all = [];
  bufferedAmount = 0;
  readyState = 0;
  frames = [];

  constructor(url, protocol) {
    assert.equal(protocol, "migratory.v1.json");
    this.url = url;
    FakeSocket.all.push(this);
  }

  /** Complete the handshake. */
  accept(protocol = "migratory.v1.json") {
    this.protocol = protocol;
    this.readyState = 1;
    this.onopen?.({});
  }

  give(...messages) {
    this.onmessage?.({ data: JSON.stringify(messages) });
  }

  welcome(fields) {
    this.give({
      op: "welcome", version: 1, cluster: "quotes", broker: `broker-${this.url[5]}`, incarnation: 1, servers: [], heartbeat: 15,
      limits: { payload: 1000, topic: 255, subscriptions: 10, queue: 1000 }, duplicate_window: 120, ...fields,
    });
  }

  end(code = 1006, reason = "") {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }

  send(frame) {
    this.frames.push(JSON.parse(frame));
  }

  close(code) {
    this.closed = code;
    this.readyState = 2;
  }

  /** The messages that the client sent, of all frames. */
  get sent() {
    return this.frames.flat();
  }
}

const clients = [];

function create(options) {
  const client = new Client(SERVERS, { WebSocket: FakeSocket, firstRetry: 0.001, ...options });
  client.log = [];
  for (const type of ["connecting", "connected", "disconnected", "moved", "ready", "problem"]) {
    client.addEventListener(type, (event) => client.log.push(event));
  }
  clients.push(client);
  return client;
}

/** Wait until `condition` holds; each round lets timers and promises run. */
async function until(condition) {
  for (let round = 0; round < 10_000; round += 1) {
    if (condition()) return;
    await turn();
  }
  assert.fail(`never: ${condition}`);
}

const newest = () => FakeSocket.all.at(-1);

async function connect(client) {
  const before = FakeSocket.all.length;
  client.connect();
  await until(() => FakeSocket.all.length > before);
  newest().accept();
  newest().welcome();
  await turn();
  return newest();
}

const receipt = (request, topic, position, fields) => (
  { op: "subscribed", request, topics: [{ topic, receipt: "complete", position, ...fields }] }
);
const message = (topic, position, data = position) => ({ op: "message", topic, position, data });
const read = async (stream) => (await stream.next()).value?.text;

afterEach(async () => {
  for (const client of clients.splice(0)) await client.close({ flush: 0 });
  FakeSocket.all = [];
});

test("states: connecting, connected, disconnected and back", async () => {
  const client = create();
  assert.equal(client.state, "disconnected");
  const connected = client.connect();
  assert.equal(client.state, "connecting");
  const first = newest();
  first.accept();
  first.welcome();
  await connected;
  assert.deepEqual([client.state, client.broker], ["connected", `broker-${first.url[5]}`]);
  first.end(1012, "restarting");
  assert.deepEqual([client.state, client.broker], ["disconnected", null]);
  await until(() => newest() !== first);
  assert.equal(client.state, "connecting");
  newest().end(); // a failed attempt does not change the state
  assert.equal(client.state, "connecting");
  await until(() => FakeSocket.all.length === 3);
  newest().accept();
  newest().welcome();
  await client.close();
  assert.equal(client.state, "disconnected");
  assert.deepEqual(client.log.map(({ type }) => type), [
    "connecting", "connected", "ready", "disconnected", "connecting", "problem", "connected", "ready", "disconnected",
  ]);
  const [{ code, reason, final, cause }, last] = client.log.filter(({ type }) => type === "disconnected");
  assert.deepEqual([code, reason, final, cause], [1012, "restarting", false, "broken"]);
  assert.deepEqual([last.code, last.final], [1000, true]);
  assert.deepEqual(client.reconnects, { broken: 1, drained: 0, moved: 0 });
});

test("a refused token ends everything for good", async () => {
  const client = create({ token: "wrong" });
  const connected = client.connect();
  const stream = client.subscribe("t");
  const stored = client.publish("t", "x");
  newest().accept();
  await turn();
  assert.deepEqual(newest().sent, [{ op: "connect", version: 1, client: newest().sent[0].client, token: "wrong" }]);
  newest().give({ op: "error", code: "unauthenticated", text: "revoked", closes: true });
  newest().end(4001);
  await assert.rejects(connected, ConnectError);
  await assert.rejects(stored, { code: "unauthenticated", isUnknown: true });
  await assert.rejects(stream.next(), { name: "SubscribeError", code: "unauthenticated", topic: "t" });
  assert.deepEqual(await stream.next(), { value: undefined, done: true });
  const last = client.log.at(-1);
  assert.deepEqual([last.type, last.code, last.final], ["disconnected", 4001, true]);
  assert.equal(FakeSocket.all.length, 1);
});

test("connect of a client that lost its broker waits for another one", async () => {
  const client = create();
  const socket = await connect(client);
  const first = client.connect();
  assert.equal(client.connect(), first); // connected: nothing to wait for
  await first;
  let connected;
  client.addEventListener("disconnected", () => (connected ??= client.connect()), { once: true });
  socket.end();
  let done = false;
  connected.then(() => (done = true));
  await until(() => newest() !== socket);
  newest().accept();
  await turn();
  assert.equal(done, false);
  newest().welcome();
  await connected;
  assert.equal(client.state, "connected");
  newest().end();
  const closed = client.connect();
  await client.close();
  await assert.rejects(closed, Closed);
});

test("nobody has to wait for connect", async () => {
  const client = create();
  client.connect();
  await client.close();
  await assert.rejects(client.publish("t", "x"), Closed);
  assert.throws(() => client.subscribe("t"), Closed);
});

test("a closed client connects again, and resumes", async () => {
  const client = create();
  let socket = await connect(client);
  const stream = client.subscribe("t");
  await turn();
  socket.give(receipt(1, "t", "1:0"), message("t", "1:1"), message("t", "1:2"));
  assert.equal(await read(stream), "1:1");
  await client.close();
  assert.equal((await stream.next()).done, true);
  assert.deepEqual(socket.sent.at(-1), { op: "bye" });
  assert.equal(socket.closed, 1000);
  socket = await connect(client);
  client.subscribe("t");
  await turn();
  assert.deepEqual(socket.sent.at(-1).topics, [{ topic: "t", after: "1:1" }]);
});

test("publications of one turn leave in one frame, in order, with their answers", async () => {
  const client = create();
  const socket = await connect(client);
  const before = socket.frames.length;
  const stored = [1, 2, 3].map((number) => client.publish("t", `${number}`));
  await turn();
  assert.equal(socket.frames.length, before + 1);
  const [first, second] = socket.frames.at(-1);
  assert.deepEqual([first.data, first.id, first.mark, first.qos], ["1", 1, 1, 1]);
  assert.deepEqual([second.data, second.id, second.mark], ["2", 2, 1]);
  assert.ok(Math.abs(first.sent - Date.now() / 1000) < 60);
  for (const id of [1, 2, 3]) socket.give({ op: "ack", topic: "t", publisher: first.publisher, id, position: `1:${id}` });
  assert.deepEqual(await Promise.all(stored), ["1:1", "1:2", "1:3"]);
});

test("a frame has at most 1,000 messages and 20,000 characters, or is one message", async () => {
  const client = create({ maxWaiting: 5000, ackTimeout: 600 });
  const socket = await connect(client);
  const before = socket.frames.length;
  for (let number = 0; number < 3000; number += 1) client.publish("t", "").catch(() => {});
  for (let number = 0; number < 100; number += 1) client.publish("u", "y".repeat(900)).catch(() => {});
  await turn();
  const frames = socket.frames.slice(before);
  for (const frame of frames) assert.ok(JSON.stringify(frame).length < 22_000 && [frame].flat().length <= 1000);
  assert.equal(frames.flat().length, 3100);
});

test("a publication survives a reconnect under its id", async () => {
  const client = create();
  const socket = await connect(client);
  const stored = client.publish("t", new Uint8Array([0xff, 0]));
  await turn();
  const { id, publisher, data64 } = socket.sent.at(-1);
  assert.equal(data64, "/wA=");
  socket.end();
  await until(() => newest() !== socket);
  newest().accept();
  newest().welcome();
  await turn();
  const again = newest().sent.at(-1);
  assert.deepEqual([again.id, again.publisher, again.data64], [id, publisher, data64]);
  newest().give({ op: "ack", topic: "t", publisher, id, position: "1:1" });
  assert.equal(await stored, "1:1");
});

test("errors of publishing", async () => {
  const client = create({ maxWaiting: 1 });
  await assert.rejects(client.publish("t", "x"), Closed);
  const socket = await connect(client);
  await assert.rejects(client.publish("t", 3), TypeError);
  await assert.rejects(client.publish(3, "x"), TypeError);
  await assert.rejects(client.publish("t", "\ud800"), TypeError);
  await assert.rejects(client.publish("t", "x", { qos: 2 }), TypeError);
  await assert.rejects(client.publish("", "x"), { code: "bad_topic", isUnknown: false });
  await assert.rejects(client.publish("t", "x".repeat(1001)), { name: "PublishError", code: "too_large" });
  const pending = client.publish("t", "x");
  await assert.rejects(client.publish("t", "x"), { code: "too_many_waiting" });
  socket.end();
  await assert.rejects(client.publish("t", "x", { qos: 0 }), { code: "not_connected" });
  const closing = client.close({ flush: 0.01 });
  await assert.rejects(pending, (error) => error instanceof PublishError && error.code === "closed" && error.isUnknown);
  await closing;
});

test("QoS 0 resolves once sent, and is refused when too much waits to be sent", async () => {
  const client = create();
  const socket = await connect(client);
  assert.equal(await client.publish("t", "x", { qos: 0 }), null);
  await turn();
  assert.deepEqual(Object.keys(socket.sent.at(-1)), ["op", "topic", "data", "sent"]);
  socket.bufferedAmount = 2 ** 21;
  await assert.rejects(client.publish("t", "x", { qos: 0 }), { code: "too_many_waiting" });
});

test("an aborted publication is given up, and its listener is removed", async () => {
  const client = create();
  const socket = await connect(client);
  const controller = new AbortController();
  const first = client.publish("t", "x", { signal: controller.signal });
  const second = client.publish("t", "y");
  controller.abort(new Error("enough"));
  await assert.rejects(first, /enough/);
  await turn();
  assert.deepEqual([socket.sent.at(-1).id, socket.sent.at(-1).mark], [2, 2]);
  await assert.rejects(client.publish("t", "z", { signal: controller.signal }), /enough/);
  socket.give({ op: "ack", topic: "t", publisher: socket.sent.at(-1).publisher, id: 2, position: "1:1" });
  assert.equal(await second, "1:1");
});

test("close waits for answers", async () => {
  const client = create();
  const socket = await connect(client);
  const stored = client.publish("t", "x");
  await turn();
  const closing = client.close();
  await turn();
  assert.equal(client.state, "connected");
  socket.give({ op: "ack", topic: "t", publisher: socket.sent.at(-1).publisher, id: 1, position: "1:1" });
  await closing;
  assert.equal(await stored, "1:1");
});

test("iteration: messages in order, gaps and refusals in their place", async () => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe(["t", "u"]);
  await turn();
  const { request } = socket.sent.findLast(({ op }) => op === "subscribe");
  socket.give(
    receipt(request - 1, "t", "1:0"), receipt(request, "u", "1:4"), message("t", "1:1"), message("t", "1:3"),
    { op: "subscribed", request: 0, topics: [{ topic: "u", receipt: null, code: "not_allowed", text: "no" }] }, message("t", "1:4"),
  );
  assert.equal(await read(stream), "1:1");
  await assert.rejects(stream.next(), (error) => error instanceof GapError && error.receipt.first === "2" && error.code === "hole");
  assert.deepEqual(stream.positions, { t: "1:1", u: "1:4" });
  assert.equal(await read(stream), "1:3");
  await assert.rejects(stream.next(), (error) => error instanceof SubscribeError && error.topic === "u");
  assert.equal(await read(stream), "1:4");
  assert.deepEqual(stream.topics, ["t"]);
  assert.deepEqual(stream.positions, { t: "1:4", u: "1:4" });
});

test("a gap's error says what is missing and how to go on", () => {
  const text = (fields) => new GapError({ topic: "t", kind: "reset", before: null, after: null, ...fields }).message;
  assert.equal(text({}), "t: the history after its start is lost; read on");
  assert.equal(text({ after: "1:2" }), "t: the history after its start is lost; read on");
  assert.equal(text({ before: "1:7", after: "2:9" }), "t: the history after 1:7 is lost; read on");
  assert.equal(text({ before: "1:10", after: "1:9" }), "t: the history after 1:10 is lost; read on");
  assert.equal(text({ before: "1:9" }), "t: the history after 1:9 is lost; read on");
  assert.equal(text({ before: "1:9", after: "1:10" }), "t: the history after 1:9 is not replayed; read on");
  const hole = { kind: "hole", first: "2", last: "3" };
  assert.equal(text(hole), "t: the publications 2 to 3 are missing (hole); read on");
});

test("iteration: gaps go to a listener where there is one", async () => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe("t");
  const gaps = [];
  stream.addEventListener("gap", ({ kind, first, last }) => gaps.push([kind, first, last]));
  await turn();
  socket.give(receipt(1, "t", "1:0"), message("t", "1:1"), message("t", "1:4"));
  assert.deepEqual([await read(stream), await read(stream), gaps], ["1:1", "1:4", [["hole", "2", "3"]]]);
});

test("iteration: break leaves the topics, and a later subscription goes on behind what was read", async () => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe("t");
  await turn();
  socket.give(receipt(1, "t", "1:0"), message("t", "1:1"), message("t", "1:2"), message("t", "1:3"));
  for await (const { position } of stream) if (position === "1:2") break;
  await turn();
  assert.equal(socket.sent.at(-1).op, "unsubscribe");
  client.subscribe("t");
  await turn();
  assert.deepEqual(socket.sent.at(-1).topics, [{ topic: "t", after: "1:2" }]);
});

test("iteration: readers that wait end when the stream is closed, or its client", async () => {
  const client = create();
  await connect(client);
  const [first, second] = [client.subscribe("t"), client.subscribe("u")];
  const waiting = [first.next(), first.next(), second.next()];
  first.close();
  await client.close();
  assert.deepEqual(await Promise.all(waiting), Array(3).fill({ value: undefined, done: true }));
});

test("iteration: a stream that was closed unread resumes at its start", async () => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe("t");
  await turn();
  socket.give(receipt(1, "t", "1:5"), message("t", "1:6"));
  stream.close();
  client.subscribe("t");
  await turn();
  assert.deepEqual(socket.sent.at(-1).topics, [{ topic: "t", after: "1:5" }]);
});

test("iteration: a slow reader's buffer is bounded, and nothing is lost", async () => {
  const client = create({ queue: 10 });
  const socket = await connect(client);
  const stream = client.subscribe("t");
  await turn();
  socket.give(receipt(1, "t", "1:0"));
  for (let number = 1; number <= 30; number += 1) socket.give(message("t", `1:${number}`));
  await turn();
  assert.equal(socket.sent.at(-1).op, "unsubscribe");
  const seen = [];
  for (let number = 0; number < 3; number += 1) seen.push(await read(stream));
  await turn();
  assert.equal(socket.sent.at(-1).op, "unsubscribe");
  seen.push(await read(stream));
  await turn();
  const { op, request, topics } = socket.sent.at(-1);
  assert.equal(op, "subscribe");
  const after = Number(topics[0].after.split(":")[1]);
  assert.equal(after, 9, "the buffer holds a receipt and nine messages");
  socket.give(receipt(request, "t", "1:30"), ...range(10, 30).map((number) => message("t", `1:${number}`)));
  while (seen.length < 30) {
    seen.push(await read(stream));
    await turn();
    const renewed = socket.sent.at(-1);
    if (renewed.op === "subscribe" && renewed.request > request) {
      const from = Number(renewed.topics[0].after.split(":")[1]);
      socket.give(receipt(renewed.request, "t", "1:30"), ...range(from + 1, 30).map((number) => message("t", `1:${number}`)));
    }
  }
  assert.deepEqual(seen, range(1, 30).map((number) => `1:${number}`));
});

const range = (first, last) => Array.from({ length: last - first + 1 }, (_, index) => first + index);

test("events: messages, gaps and refusals", async () => {
  const client = create({ queue: 1 });
  const socket = await connect(client);
  const stream = client.subscribe("t");
  const seen = [];
  await turn();
  socket.give(receipt(1, "t", "1:0"), message("t", "1:1"));
  stream.addEventListener("message", ({ message: { position } }) => seen.push(position));
  stream.addEventListener("gap", ({ kind }) => seen.push(kind));
  stream.addEventListener("refused", ({ code }) => seen.push(code));
  await turn();
  const renewed = socket.sent.at(-1); // it was full before there was a listener
  socket.give(receipt(renewed.request, "t", "1:1"), message("t", "1:2"), message("t", "1:4"));
  await assert.rejects(stream.next(), /not by both/);
  assert.deepEqual(seen, ["1:1", "1:2", "hole", "1:4"]);
  assert.deepEqual(stream.positions, { t: "1:4" });
  client.subscribe("t");
  assert.equal(seen.at(-1), "taken_over");
});

test("events: a listener that throws stops nothing", async (context) => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe("t");
  const seen = [];
  stream.addEventListener("message", () => {
    throw new Error("of the application");
  });
  stream.addEventListener("message", ({ message: { position } }) => seen.push(position));
  const caught = [];
  const listeners = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.on("uncaughtException", (error) => caught.push(error.message));
  context.after(() => {
    process.removeAllListeners("uncaughtException");
    for (const listener of listeners) process.on("uncaughtException", listener);
  });
  await turn();
  socket.give(receipt(1, "t", "1:0"), message("t", "1:1"), message("t", "1:2"));
  await until(() => caught.length === 2);
  assert.deepEqual(seen, ["1:1", "1:2"]);
});

test("a message is text, bytes and JSON", async () => {
  const client = create();
  const socket = await connect(client);
  const stream = client.subscribe("t");
  await turn();
  socket.give(
    receipt(1, "t", "1:0"),
    { ...message("t", "1:1", '{"v":1.5}'), sent: 5, time: 6.5, replayed: true },
    { op: "message", topic: "t", position: "1:3", data64: "/wA=", first: "2" },
  );
  const { value: first } = await stream.next();
  assert.deepEqual([first.json(), first.sent, first.time, first.replayed, first.first], [{ v: 1.5 }, 5, 6.5, true, null]);
  assert.deepEqual([...first.bytes], [...Buffer.from('{"v":1.5}')]);
  const { value: second } = await stream.next();
  assert.deepEqual([...second.bytes], [255, 0]);
  assert.deepEqual([second.text, second.first], ["\ufffd\0", "2"]);
  assert.throws(() => second.json(), SyntaxError);
});

test("a token function is asked before each connect, and when the token expires", async () => {
  const tokens = ["one", "two", "three"];
  const client = create({ token: async () => tokens.shift() });
  client.connect();
  const socket = newest();
  socket.accept();
  await until(() => socket.sent.length);
  assert.equal(socket.sent[0].token, "one");
  socket.welcome();
  socket.give({ op: "token_expiring", seconds: 60 });
  await until(() => socket.sent.length > 1);
  assert.equal(socket.sent.at(-1).token, "two");
  socket.end(4002, "expired");
  await until(() => newest() !== socket);
  newest().accept();
  await until(() => newest().sent.length);
  assert.equal(newest().sent[0].token, "three");
  newest().end(4002); // and no token any more
  await until(() => FakeSocket.all.length === 3);
  newest().accept();
  await until(() => client.log.at(-1).code === "no_token");
  assert.match(client.log.at(-1).text, /a token is a string, not undefined/);
});

test("what a broker may not send ends the connection, and the client goes on", async () => {
  const client = create({ backoffCap: 0.001 });
  client.connect();
  for (const data of ["{", '{"op":"ack"}', "[1]", '{"op":"message","topic":"t","position":"1:1"}', new ArrayBuffer(3)]) {
    const socket = newest();
    socket.accept();
    socket.onmessage({ data });
    assert.equal(socket.closed, 4000);
    assert.match(client.log.at(-1).text, /invalid message/);
    await until(() => newest() !== socket);
  }
  newest().accept("other");
  assert.match(client.log.at(-1).text, /does not speak/);
});

test("a WebSocket that cannot be made is an attempt that failed", async () => {
  class Forbidden {
    constructor() {
      throw new Error("insecure");
    }
  }
  const client = create({ WebSocket: Forbidden });
  client.connect();
  await until(() => client.log.some(({ type }) => type === "problem"));
  assert.match(client.log.at(-1).text, /insecure/);
});

test("moves are make-before-break", async () => {
  const client = create();
  const socket = await connect(client);
  const other = SERVERS.find((url) => url !== socket.url);
  socket.give({ op: "drain", period: 0, servers: [{ url: other }] });
  await until(() => newest() !== socket);
  assert.equal(client.state, "connected");
  newest().accept();
  newest().welcome();
  await until(() => socket.closed);
  assert.deepEqual(client.log.map(({ type }) => type), ["connecting", "connected", "ready", "connected", "moved", "ready"]);
});

test("arguments are checked at once", () => {
  assert.throws(() => new Client("ws://a/ws"), /an array of URLs/);
  assert.throws(() => new Client(["a:8800"], { WebSocket: FakeSocket }), /a URL such as ws:\/\/host/);
  assert.throws(() => new Client(["ws://u:p@a/"], { WebSocket: FakeSocket }), /a user name/);
  assert.throws(() => new Client(["ws://a b/"], { WebSocket: FakeSocket }), /server "ws:\/\/a b\/"/);
  assert.throws(() => new Client([], { WebSocket: FakeSocket }), /no usable server/);
  assert.throws(() => new Client(SERVERS, { WebSocket: null }), /package `ws`/);
  assert.throws(() => create({ token: 3 }), /the token/);
  assert.throws(() => create({ queue: 0 }), RangeError);
  assert.throws(() => create({ backoffCap: -1 }), RangeError);
  assert.throws(() => create({ backofCap: 1 }), /unknown option backofCap/);
  const client = create();
  client.connect();
  assert.throws(() => client.subscribe([]), /at least one topic/);
  assert.throws(() => client.subscribe([1]), TypeError);
  assert.throws(() => client.subscribe("t", { after: "1" }), /position "1"/);
  assert.throws(() => client.subscribe(["t", "u"], { after: "1:1" }), /several topics/);
  assert.equal(comparePositions("1:10", "1:9"), 1);
});

test("malformed servers are reported, and the others used", async () => {
  const client = new Client(["ws://a/ws", "nonsense"], { WebSocket: FakeSocket });
  clients.push(client);
  const problems = [];
  client.addEventListener("problem", ({ code, text, fatal }) => problems.push([code, text, fatal]));
  client.connect();
  assert.equal(problems.length, 1);
  assert.match(problems[0].join(), /bad_server,server "nonsense".*,false$/);
});

test("the page's life reaches the core", async (context) => {
  const document = new EventTarget();
  Object.assign(document, { visibilityState: "visible" });
  const page = new EventTarget();
  globalThis.document = document;
  globalThis.addEventListener = page.addEventListener.bind(page);
  context.after(() => {
    delete globalThis.document;
    delete globalThis.addEventListener;
  });
  const client = create();
  const socket = await connect(client);
  const pings = () => socket.sent.filter(({ op }) => op === "ping").length;
  page.dispatchEvent(new Event("offline"));
  await turn();
  assert.equal(pings(), 1);
  page.dispatchEvent(new Event("online"));
  document.dispatchEvent(new Event("visibilitychange"));
  await turn();
  assert.equal(pings(), 3);
  document.visibilityState = "hidden";
  document.dispatchEvent(new Event("visibilitychange"));
  page.dispatchEvent(Object.assign(new Event("pageshow"), { persisted: false }));
  await turn();
  assert.equal(pings(), 3);
  document.dispatchEvent(new Event("freeze"));
  assert.deepEqual([client.state, client.log.at(-1).final, socket.closed], ["disconnected", false, 1000]);
  document.dispatchEvent(new Event("resume"));
  await until(() => newest() !== socket);
  newest().accept();
  newest().welcome();
  page.dispatchEvent(new Event("pagehide"));
  assert.equal(client.state, "disconnected");
  page.dispatchEvent(Object.assign(new Event("pageshow"), { persisted: true }));
  await until(() => FakeSocket.all.length === 3);
  await client.close();
  const count = FakeSocket.all.length;
  document.dispatchEvent(new Event("resume"));
  await turn();
  assert.equal(FakeSocket.all.length, count);
});

test("the clock counts sleep, and never goes back", () => {
  let [monotonic, wall] = [5000, 1e12];
  const clock = createClock(() => monotonic, () => wall);
  assert.equal(clock(), 5);
  const pass = (one, other) => {
    monotonic += one;
    wall += other;
    return clock();
  };
  assert.equal(pass(1000, 1000), 6);
  assert.equal(pass(1000, 3_601_000), 3607); // asleep for an hour, of which the monotonic clock knows nothing
  assert.equal(pass(1000, -7_000_000), 3608); // the wall clock was set back
  assert.equal(pass(3_600_000, 3_600_000), 7208); // asleep, and both know
});
