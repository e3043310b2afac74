// The fallback to HTTP: a client with scripted WebSockets, and a scripted broker behind `fetch`.
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setImmediate as turn, setTimeout as sleep } from "node:timers/promises";

import { createFallbackSocket } from "../src/http.js";
import { Client } from "../src/index.js";

const HEARTBEAT = 50; // milliseconds
const TIMES = { open: 40, early: 20, firstProbe: 60, lastProbe: 200, request: 1000 };

/** A WebSocket that the network blocks, as `mode` says: at once, after it was opened, or without an answer. */
class Socket {
  static mode = "refused";
  static opened = [];
  bufferedAmount = 0;
  readyState = 0;

  constructor(url, protocol) {
    this.url = url;
    Socket.opened.push(this);
    const mode = Socket.mode;
    if (mode === "throws") throw new Error("mixed content");
    setTimeout(() => {
      if (mode === "refused") return this.end(1006);
      if (mode === "silent") return undefined;
      this.protocol = protocol;
      this.readyState = 1;
      this.onopen?.({});
      if (mode === "dies") this.end(1006);
      return undefined;
    }, 1);
  }

  end(code) {
    this.readyState = 3;
    this.onclose?.({ code, reason: "" });
  }

  send(text) {
    for (const { op } of [JSON.parse(text)].flat()) {
      if (op === "connect") this.onmessage?.({ data: JSON.stringify(welcome("by-websocket", this.url)) });
    }
  }

  close() {
    this.readyState = 3;
  }
}

const welcome = (broker, ...urls) => ({
  op: "welcome", version: 1, cluster: "c", broker, incarnation: 1, heartbeat: HEARTBEAT / 1000,
  servers: urls.map((url) => ({ url, weight: 100 })),
  limits: { payload: 1000, topic: 255, subscriptions: 10, queue: 1000 }, duplicate_window: 120,
});

/** A broker behind `fetch`, of one topic history per name. */
class Broker {
  requests = [];
  streams = [];
  topics = new Map(); // topic -> payloads
  servers = [];
  refuses = null; // [status, body] of streams
  hangs = false; // streams get no answer
  answers = (messages) => messages.map(({ topic, publisher, id }) => (
    { op: "ack", topic, publisher, id, position: `1:${id}` }
  ));

  fetch = async (url, { method = "GET", body, signal } = {}) => {
    const content = body === undefined ? null : JSON.parse(body);
    this.requests.push({ url, method, content });
    await turn();
    signal?.throwIfAborted();
    if (this.down) throw new TypeError("fetch failed");
    const [{ op }, ...messages] = content;
    assert.equal(op, "connect");
    if (url.endsWith("/v1/publish")) {
      const answers = this.answers(messages);
      return answers === null ? new Response("", { status: 503 }) : Response.json(answers);
    }
    if (this.hangs) return new Promise(() => {});
    if (this.refuses) return new Response(this.refuses[1], { status: this.refuses[0] });
    const stream = { topics: messages[0].topics.map(({ topic }) => topic) };
    const readable = new ReadableStream({ start: (controller) => (stream.controller = controller) });
    signal.addEventListener("abort", () => {
      stream.aborted = true;
      stream.controller.error(signal.reason);
    });
    this.streams.push(stream);
    stream.write = (text) => stream.controller.enqueue(new TextEncoder().encode(text));
    stream.control = (message, id) => (
      stream.write(`${id ? `id: ${id}\n` : ""}event: control\ndata: ${JSON.stringify(message)}\n\n`)
    );
    stream.control(welcome("by-http", ...this.servers));
    for (const { topic, after } of messages[0].topics) {
      const history = this.topics.get(topic) ?? [];
      const position = `1:${history.length}`;
      const topics = [{ topic, receipt: "complete", position }];
      stream.control({ op: "subscribed", request: 1, topics }, after ? "" : position);
      const known = after ? +after.split(":")[1] : history.length;
      history.slice(known).forEach((data, index) => this.#send(stream, topic, known + index + 1, data));
    }
    return new Response(readable, { headers: { "Content-Type": "text/event-stream" } });
  };

  #send(stream, topic, sequence, data) {
    const message = { op: "message", topic, position: `1:${sequence}`, data };
    const text = `id: 1:${sequence}\ndata: ${JSON.stringify(message)}\n\n`;
    stream.write(text.slice(0, 9)); // cut at any place
    stream.write(text.slice(9));
  }

  publish(topic, data) {
    const history = this.topics.get(topic) ?? [];
    this.topics.set(topic, history);
    history.push(data);
    for (const stream of this.streams) {
      const follows = !stream.aborted && !stream.dead && stream.topics.includes(topic);
      if (follows) this.#send(stream, topic, history.length, data);
    }
  }

  get stream() {
    return this.streams.at(-1);
  }
}

const clients = [];

function create(broker, servers = ["ws://a/ws"]) {
  const WebSocket = createFallbackSocket({ WebSocket: Socket, fetch: broker.fetch, times: TIMES });
  const settings = { firstRetry: 0.001, blacklist: 0.01, ackTimeout: 0.05, resendCap: 0.05 };
  const client = new Client(servers, { WebSocket, ...settings });
  client.states = [];
  for (const state of ["connected", "disconnected", "moved"]) {
    client.addEventListener(state, (event) => (
      client.states.push(state === "connected" ? event.broker : event.code ?? state)
    ));
  }
  clients.push(client);
  return client;
}

async function until(condition) {
  for (let round = 0; round < 3000; round += 1) {
    if (condition()) return;
    await sleep(1);
  }
  assert.fail(`never: ${condition}`);
}

async function follow(client, topic) {
  const texts = [];
  const stream = client.subscribe(topic);
  stream.addEventListener("message", ({ message }) => texts.push(message.text));
  const gaps = [];
  Object.defineProperty(texts, "gaps", { value: gaps }); // not compared with the texts
  stream.addEventListener("gap", ({ kind }) => gaps.push(kind));
  await new Promise((resolve) => client.addEventListener("receipt", (event) => event.topic === topic && resolve()));
  return texts;
}

/** Let a client follow a topic, kill the connection of its stream unnoticed, and publish "2" that does not arrive. */
async function loseStream() {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  const texts = await follow(client, "a");
  broker.publish("a", "1");
  await until(() => texts.length === 1);
  const dead = broker.stream;
  dead.dead = true;
  broker.publish("a", "2");
  return { broker, client, texts, dead };
}

afterEach(async () => {
  for (const client of clients.splice(0)) await client.close({ flush: 0 });
  Object.assign(Socket, { mode: "refused", opened: [] });
});

for (const mode of ["refused", "silent", "throws", "dies"]) {
  test(`HTTP takes over when a WebSocket ${mode}`, async () => {
    Socket.mode = mode;
    const broker = new Broker();
    const client = create(broker);
    client.connect();
    await until(() => client.broker === "by-http");
    const texts = await follow(client, "t");
    broker.publish("t", "1");
    broker.publish("t", "2");
    await until(() => texts.length === 2);
    assert.deepEqual(texts, ["1", "2"]);
    assert.equal(await client.publish("u", "x"), "1:1");
    assert.equal(broker.requests[0].url, "http://a/v1/stream");
  });
}

test("the client comes back to a WebSocket that works again", async () => {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  await until(() => client.broker === "by-http");
  const tried = Socket.opened.length;
  await until(() => Socket.opened.length > tried); // in vain
  assert.equal(client.broker, "by-http");
  Socket.mode = "works";
  await until(() => client.broker === "by-websocket");
  assert.deepEqual(client.states, ["by-http", 1012, "by-websocket"]);
});

test("the client moves back without a gap where it has another server", async () => {
  const broker = new Broker();
  broker.servers = ["ws://a/ws", "ws://b/ws"];
  const client = create(broker, ["ws://a/ws", "ws://b/ws"]);
  client.connect();
  await until(() => client.broker === "by-http");
  Socket.mode = "works";
  await until(() => client.broker === "by-websocket");
  await until(() => client.states.includes("moved"));
  assert.deepEqual(client.states.toSorted(), ["by-http", "by-websocket", "moved"]);
});

test("a broker that is down does not look like a blocked WebSocket", async () => {
  const broker = new Broker();
  broker.down = true;
  const client = create(broker);
  client.connect();
  await until(() => broker.requests.length > 1);
  Socket.mode = "works";
  await until(() => client.broker === "by-websocket");
  assert.deepEqual(client.states, ["by-websocket"]);
});

test("a changed subscription replaces the stream, and nothing is lost or doubled", async () => {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  const first = await follow(client, "a");
  broker.publish("a", "1");
  await until(() => first.length === 1);
  const pending = follow(client, "b");
  broker.publish("a", "2");
  const second = await pending;
  broker.publish("a", "3");
  broker.publish("b", "1");
  await until(() => first.length === 3 && second.length === 1);
  assert.deepEqual([first, second].map((texts) => [...texts]), [["1", "2", "3"], ["1"]]);
  assert.deepEqual(broker.stream.topics, ["a", "b"]);
  assert.equal(broker.streams.filter(({ aborted }) => !aborted).length, 1);
  assert.deepEqual(first.gaps, []);
});

test("a stream that ends is resumed", async () => {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  const texts = await follow(client, "a");
  broker.publish("a", "1");
  await until(() => texts.length === 1);
  broker.stream.aborted = true;
  broker.stream.controller.close();
  broker.publish("a", "2");
  await until(() => texts.length === 2);
  broker.stream.aborted = true;
  broker.stream.control({ op: "close", code: 1001, reason: "draining" });
  broker.publish("a", "3");
  await until(() => texts.length === 3);
  assert.deepEqual([...texts], ["1", "2", "3"]);
  assert.deepEqual(client.states, ["by-http", 1006, "by-http", 1001, "by-http"]);
});

test("a gap of a subscription is reported", async () => {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  const texts = await follow(client, "a");
  const receipt = { topic: "a", receipt: "truncated", position: "1:5", first: "1", last: "5" };
  broker.stream.control({ op: "subscribed", request: 0, topics: [receipt] }, "1:5");
  await until(() => texts.gaps.length === 1);
  assert.deepEqual(texts.gaps, ["truncated"]);
});

test("publications go one request after the other, and again without an answer", async () => {
  const broker = new Broker();
  const client = create(broker);
  client.connect();
  await until(() => client.broker === "by-http");
  const answers = broker.answers;
  broker.answers = () => null;
  const published = Promise.all([1, 2, 3].map((number) => client.publish("t", String(number))));
  await until(() => broker.requests.some(({ url }) => url.endsWith("/v1/publish")));
  broker.answers = answers;
  assert.deepEqual(await published, ["1:1", "1:2", "1:3"]);
  assert.equal(await client.publish("t", "x", { qos: 0 }), null);
  await until(() => broker.requests.at(-1).content[1]?.qos !== 1);
});

for (const [status, body, code] of [
  [401, { code: "unauthenticated", text: "no" }, 4001],
  [401, { code: "token_expired", text: "old" }, 4002],
  [400, { code: "bad_message", text: "what" }, 4000],
]) {
  test(`a stream that is refused with ${status} ends with ${code}`, async () => {
    const broker = new Broker();
    broker.refuses = [status, JSON.stringify({ op: "error", ...body })];
    const WebSocket = createFallbackSocket({ WebSocket: Socket, fetch: broker.fetch, times: TIMES });
    const socket = new WebSocket("ws://a/ws?x=1", "migratory.v1.json");
    const messages = [];
    socket.onopen = () => socket.send('{"op":"connect"}');
    socket.onmessage = ({ data }) => messages.push(...JSON.parse(data));
    const ended = await new Promise((resolve) => (socket.onclose = resolve));
    assert.deepEqual([ended.code, ended.reason], [code, body.text]);
    assert.deepEqual(messages, [{ op: "error", ...body, closes: true }]);
  });
}

/** Open a socket over HTTP whose timers the test moves. */
async function open(broker, context) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  Socket.mode = "throws";
  const times = { firstProbe: 1e9 };
  const WebSocket = createFallbackSocket({ WebSocket: Socket, fetch: broker.fetch, times });
  const socket = new WebSocket("ws://a/ws", "migratory.v1.json");
  const seen = { socket, ops: [], closes: [] };
  context.after(() => socket.close());
  socket.onopen = () => socket.send('{"op":"connect"}');
  socket.onmessage = ({ data }) => seen.ops.push(...JSON.parse(data).map(({ op }) => op));
  socket.onclose = ({ code }) => seen.closes.push(code);
  await turns();
  assert.deepEqual(seen.ops.splice(0), ["welcome"]);
  seen.pass = async (time) => {
    context.mock.timers.tick(time);
    await turns();
  };
  return seen;
}

async function turns() {
  for (let count = 0; count < 10; count += 1) await turn();
}

test("a quiet stream with comments is kept, and answers pings", async (context) => {
  const broker = new Broker();
  const { socket, ops, closes, pass } = await open(broker, context);
  for (let beat = 0; beat < 20; beat += 1) {
    await pass(1.9 * HEARTBEAT);
    broker.stream.write(":\n\n");
    await turns();
    socket.send('{"op":"ping"}');
  }
  assert.deepEqual(ops, Array(20).fill("pong")); // and a comment is no message
  assert.deepEqual([broker.requests.length, closes], [1, []]);
});

test("a stream silent for two intervals is replaced, and without an answer the socket ends", async (context) => {
  const broker = new Broker();
  const { socket, ops, closes, pass } = await open(broker, context);
  await pass(2 * HEARTBEAT - 1);
  assert.equal(broker.requests.length, 1);
  await pass(1);
  assert.equal(broker.streams[0].aborted, true);
  assert.equal(broker.streams.length, 2);
  assert.deepEqual([ops.splice(0), closes], [["pong"], []]); // the new stream answers
  broker.hangs = true;
  await pass(2 * HEARTBEAT);
  assert.equal(broker.requests.length, 3);
  socket.send('{"op":"ping"}');
  await pass(2 * HEARTBEAT - 1);
  assert.deepEqual([ops, closes], [[], []]);
  await pass(1);
  assert.deepEqual([ops, closes], [[], [1006]]);
  await pass(10 * HEARTBEAT);
  assert.equal(broker.requests.length, 3);
});

test("after a wake only a new stream answers", async (context) => {
  const broker = new Broker();
  const { socket, ops, pass } = await open(broker, context);
  broker.streams[0].write(":\n\n"); // came before the sleep, and is not read yet
  socket.wake();
  socket.send('{"op":"ping"}');
  assert.deepEqual(ops, []);
  await pass(0);
  assert.deepEqual([ops, broker.streams.length], [["pong"], 2]);
  socket.close();
  socket.wake();
  await pass(10 * HEARTBEAT);
  assert.equal(broker.requests.length, 2);
});

test("a client that publishes loses nothing when the connection of its stream dies", async () => {
  const { broker, client, texts, dead } = await loseStream();
  broker.publish("a", "3");
  for (let count = 0; texts.length < 3 && count < 3000; count += 1) {
    await client.publish("b", "x"); // its acknowledgements come by other connections
    await sleep(1);
  }
  broker.publish("a", "4");
  await until(() => texts.length >= 4);
  assert.deepEqual([...texts], ["1", "2", "3", "4"]);
  assert.deepEqual([dead.aborted, texts.gaps, client.states], [true, [], ["by-http"]]);
});

test("a page that wakes replaces its stream, and loses nothing", async (context) => {
  const page = new EventTarget();
  globalThis.addEventListener = page.addEventListener.bind(page);
  context.after(() => delete globalThis.addEventListener);
  const { broker, client, texts, dead } = await loseStream();
  page.dispatchEvent(new Event("online"));
  assert.equal(dead.aborted, true);
  await until(() => texts.length === 2);
  assert.deepEqual([[...texts], texts.gaps, client.states], [["1", "2"], [], ["by-http"]]);
});

test("a socket over HTTP leaves with bye", async (context) => {
  const broker = new Broker();
  const { socket, ops } = await open(broker, context);
  socket.send('[{"op":"unsubscribe","request":3,"topics":["a"]},{"op":"bye"}]');
  assert.deepEqual(ops, ["unsubscribed"]);
  assert.equal(socket.readyState, 3);
  socket.terminate();
});
