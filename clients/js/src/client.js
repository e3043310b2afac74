/** `Client`: what applications use. */

import { makePayload, parsePosition } from "./core/protocol.js";
import { parseServers } from "./core/servers.js";
import { ClientCore, SETTINGS } from "./core/session.js";
import { Driver } from "./driver.js";
import { Closed, ConnectError, PublishError } from "./errors.js";
import { MigratoryEvent, Subscription } from "./subscription.js";

const MAX_BUFFERED = 1_048_576; // characters that may wait to be sent before QoS 0 publications are refused

/** Return a new random id of 32 hexadecimal digits. `crypto.randomUUID` is missing in pages that did not come over TLS. */
const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A connection to a cluster that changes to another broker by itself when its broker fails or leaves. */
export class Client extends EventTarget {
  #core;
  #driver;
  #queue;
  #problems; // malformed servers, to be reported once
  #subscriptions = new Map(); // topic -> Subscription
  #state = "disconnected";
  #broker = null;
  #opened = null; // the promise of `connect`; a new one when the connection is lost
  #opening = null; // {resolve, reject} of it
  #answered = () => {}; // a publication was answered

  constructor(servers, { token, name, queue = 1000, WebSocket = globalThis.WebSocket, ...settings } = {}) {
    super();
    if (!Array.isArray(servers)) throw new TypeError(`servers is an array of URLs, not ${typeof servers}`);
    if (typeof WebSocket !== "function") {
      throw new TypeError("no WebSocket here: pass an implementation, such as { WebSocket } of the package `ws`");
    }
    if (!["undefined", "string", "function"].includes(typeof token)) {
      throw new TypeError(`the token is a string or a function that returns one, not ${typeof token}`);
    }
    if (!(queue >= 1)) throw new RangeError(`queue is ${queue}: a subscription holds at least 1 message`);
    for (const key in settings) {
      if (!Object.hasOwn(SETTINGS, key)) throw new TypeError(`unknown option ${key}`);
      if (!(settings[key] > 0)) throw new RangeError(`${key} is ${settings[key]}: a number above 0 is needed`);
    }
    const [usable, problems] = parseServers(servers);
    if (!usable.length && problems.length) throw new TypeError(`no usable server: ${problems.slice(0, 3).join("; ")}`);
    this.#problems = problems;
    this.#queue = queue;
    const publisher = randomId();
    this.#core = new ClientCore(usable, Math.random, {
      client: name ?? `js-${publisher.slice(0, 12)}`,
      publisher,
      token: typeof token === "function" ? true : token,
      settings,
    });
    this.#driver = new Driver(this.#core, WebSocket, token, (effect) => this.#handle(effect));
  }

  get state() {
    return this.#state;
  }

  get broker() {
    return this.#broker;
  }

  get reconnects() {
    return { ...this.#core.reconnects };
  }

  /** Connect, and reconnect until `close`. Resolve while a broker serves the client, however long that takes. */
  connect() {
    if (this.#core.closed) {
      this.#expectConnection();
      for (const text of this.#problems.splice(0)) this.#emit("problem", { code: "bad_server", text, fatal: false });
      this.#driver.open();
    }
    return this.#opened;
  }

  /** Wait up to `flush` seconds for the answers to publications, then disconnect. */
  async close({ flush = 5 } = {}) {
    if (this.#core.closed) return;
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, flush * 1000);
      this.#answered = () => {
        if (this.#core.publisher.waiting) return;
        clearTimeout(timer);
        resolve();
      };
      this.#answered();
    });
    if (this.#core.closed) return; // meanwhile
    for (const subscription of new Set(this.#subscriptions.values())) subscription.close();
    this.#driver.close();
    this.#ended(1000, "the client was closed", new Closed());
  }

  /** Publish, and resolve with the position once the publication is stored (QoS 1), or with null once sent (QoS 0). */
  async publish(topic, payload, { qos = 1, signal } = {}) {
    if (this.#core.closed) throw new Closed();
    if (qos !== 0 && qos !== 1) throw new TypeError(`qos is ${qos}; use 0 (at most once) or 1 (acknowledged)`);
    if (typeof topic !== "string") throw new TypeError(`the topic is a string, not ${typeof topic}`);
    signal?.throwIfAborted();
    if (qos === 0 && this.#driver.buffered > MAX_BUFFERED) {
      throw new PublishError("too_many_waiting", `more than ${MAX_BUFFERED} characters wait to be sent`);
    }
    const content = makePayload(payload);
    const ticket = {};
    const answer = new Promise((resolve, reject) => Object.assign(ticket, { resolve, reject }));
    const giveUp = () => {
      this.#driver.step({ type: "giveUp", ticket });
      ticket.reject(signal.reason);
      this.#answered();
    };
    signal?.addEventListener("abort", giveUp);
    this.#driver.step({ type: "submit", ticket, topic, payload: content, qos, sent: Date.now() / 1000 });
    try {
      return await answer;
    } finally {
      signal?.removeEventListener("abort", giveUp);
    }
  }

  /** Return the stream of one topic, or of an array of topics. */
  subscribe(topics, { after, snapshot = false, fresh = false, queue = this.#queue } = {}) {
    if (this.#core.closed) throw new Closed();
    const names = typeof topics === "string" ? [topics] : [...new Set(topics)];
    if (!names.length) throw new TypeError("name at least one topic");
    for (const name of names) if (typeof name !== "string") throw new TypeError(`a topic is a string, not ${typeof name}`);
    const positions = asPositions(after, names);
    const subscription = new Subscription(
      this.#driver.step,
      (topic) => this.#subscriptions.get(topic) === subscription && this.#subscriptions.delete(topic),
      names,
      queue,
    );
    for (const topic of names) {
      this.#subscriptions.get(topic)?.release(topic);
      this.#subscriptions.set(topic, subscription);
    }
    subscription.start(positions, snapshot, fresh);
    return subscription;
  }

  #handle(effect) {
    switch (effect.type) {
      case "deliver": this.#subscriptions.get(effect.message.topic)?.put(effect); break;
      case "acknowledged":
        effect.ticket.resolve(effect.position);
        this.#answered();
        break;
      case "failed":
        effect.ticket.reject(new PublishError(effect.code, effect.text));
        this.#answered();
        break;
      case "receipt":
        this.#subscriptions.get(effect.topic)?.put(effect);
        this.#emit("receipt", effect);
        break;
      case "refused": {
        const subscription = this.#subscriptions.get(effect.topic);
        this.#subscriptions.delete(effect.topic);
        subscription?.put(effect);
        break;
      }
      case "dial":
        if (this.#state === "disconnected") this.#setState("connecting", { url: effect.url });
        break;
      case "linkUp":
        this.#broker = effect.broker;
        this.#setState("connected", effect);
        this.#opening.resolve();
        break;
      case "linkDown":
        if (effect.replaced) {
          this.#emit("moved", { cause: effect.cause, broker: this.#broker });
        } else {
          this.#broker = null;
          this.#expectConnection();
          const { code, reason, cause } = effect;
          this.#setState("disconnected", { code, reason, cause, final: false });
        }
        break;
      case "closed":
        this.#driver.stop();
        this.#ended(effect.code, effect.reason, new ConnectError("unauthenticated", effect.reason));
        break;
      default: this.#emit(effect.type, effect); // ready, problem
    }
  }

  #expectConnection() {
    this.#opened = new Promise((resolve, reject) => (this.#opening = { resolve, reject }));
    this.#opened.catch(() => {}); // nobody has to wait: `disconnected` says the same
  }

  #ended(code, reason, error) {
    this.#broker = null;
    this.#opening.reject(error);
    this.#setState("disconnected", { code, reason, cause: null, final: true });
  }

  #setState(state, fields) {
    this.#state = state;
    this.#emit(state, fields);
  }

  #emit(type, { type: _, link: __, ...fields }) {
    this.dispatchEvent(new MigratoryEvent(type, fields));
  }
}

/** Return the Map of positions that `after` gives to these topics: a position, or an object of positions by topic. */
function asPositions(after, topics) {
  if (after === undefined || after === null) return new Map();
  if (typeof after === "string") {
    if (topics.length > 1) throw new TypeError("one position for several topics: give an object {topic: position}");
    after = { [topics[0]]: after };
  }
  const known = topics.filter((topic) => Object.hasOwn(after, topic));
  for (const topic of known) parsePosition(after[topic]);
  return new Map(known.map((topic) => [topic, after[topic]]));
}
