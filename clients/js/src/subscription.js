/** `Subscription`: the stream that an application iterates over or listens to. */

import { GapError, SubscribeError } from "./errors.js";

/** An event of a client or a subscription. Its fields are properties of the event. */
export class MigratoryEvent extends Event {
  constructor(type, fields) {
    super(type);
    Object.assign(this, fields);
  }
}

/**
 * The ordered stream of the publications of some topics, created by `Client.subscribe`.
 *
 * It is an async iterator of messages, and an event target of `message`. An application uses one of both: the first use
 * decides. An iterator that is slow buffers up to `limit` messages and those on their way. Then the subscription leaves
 * its topics, and resumes after the last buffered position once half of the buffer is read. Publications that left the
 * brokers' caches meanwhile are reported like any other gap.
 */
export class Subscription extends EventTarget {
  #step;
  #forget;
  #limit;
  #topics;
  #snapshot = false;
  #mode = ""; // "iteration" or "events", once it is decided
  #hearsGaps = false;
  #items = [];
  #waiters = [];
  #paused = false;
  #buffered = new Map(); // topic -> the last position in the buffer
  #seen = new Map(); // topic -> the last position that the application was given

  /** `step` gives events to the core, `forget(topic)` says that the subscription leaves a topic. */
  constructor(step, forget, topics, limit) {
    super();
    this.#step = step;
    this.#forget = forget;
    this.#topics = new Set(topics);
    this.#limit = limit;
  }

  /** The topics that this subscription still has. */
  get topics() {
    return [...this.#topics];
  }

  /** {topic: position}: the last position of each topic that the application was given. Pass it as `after` to resume. */
  get positions() {
    return Object.fromEntries(this.#seen);
  }

  // ---- for the application -----------------------------------------------------------------------------------------

  addEventListener(type, ...rest) {
    super.addEventListener(type, ...rest);
    if (type === "gap") this.#hearsGaps = true;
    if (type === "message" && this.#mode !== "events") {
      this.#decide("events");
      queueMicrotask(() => this.#dispatchItems()); // after the other listeners are added
    }
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /**
   * Return the next message. Throw GapError for missing publications, unless there is a listener of `gap`, and
   * SubscribeError for a topic that was refused or taken over, each in its place. The iteration may continue after them.
   */
  async next() {
    this.#decide("iteration");
    for (;;) {
      while (this.#items.length) {
        const item = this.#items.shift();
        if (this.#paused && 2 * this.#items.length <= this.#limit) this.#resume();
        if (item.type === "refused") throw new SubscribeError(item.code, item.topic, item.text);
        if (item.type === "deliver") {
          this.#seen.set(item.message.topic, item.message.position);
          return { value: item.message, done: false };
        }
        if (this.#isGap(item)) {
          if (!this.#hearsGaps) throw new GapError(item);
          this.#dispatch("gap", item);
        }
      }
      if (!this.#topics.size) return { value: undefined, done: true };
      await new Promise((resolve) => this.#waiters.push(resolve));
    }
  }

  /** End the iteration, as `break` in `for await` does: close. */
  async return(value) {
    this.close();
    return { value, done: true };
  }

  /**
   * Leave all topics and end the iteration. Buffered messages are dropped, but not lost: the client's next subscription
   * to a topic resumes after the last message that the application was given.
   */
  close() {
    for (const topic of this.#topics) this.#leave(topic);
    this.#items = [];
    this.#wake();
  }

  // ---- for the client ----------------------------------------------------------------------------------------------

  /** Subscribe to the topics, each after its position in the Map `after`, if it has one. */
  start(after, snapshot, fresh) {
    this.#snapshot = snapshot;
    for (const topic of this.#topics) {
      const position = after.get(topic);
      if (position !== undefined) {
        this.#buffered.set(topic, position);
        this.#seen.set(topic, position);
      }
      this.#step({ type: "subscribe", topic, after: position, snapshot, fresh });
    }
  }

  /** Leave a topic that a newer subscription of the client takes over, and drop its buffered messages. */
  release(topic) {
    this.#leave(topic);
    this.#items = this.#items.filter((item) => topicOf(item) !== topic);
    this.put({ type: "refused", topic, code: "taken_over", text: "a newer subscription of this client took it over" });
  }

  /** Append the effect deliver, receipt or refused to the stream. A refusal ends the subscription to its topic. */
  put(item) {
    this.#items.push(item);
    if (item.type === "refused") {
      this.#topics.delete(item.topic);
    } else if (item.type === "deliver") {
      this.#buffered.set(item.message.topic, item.message.position);
      if (this.#items.length >= this.#limit && !this.#paused && this.#mode !== "events") this.#pause();
    } else if (item.after !== null && (item.kind === "reset" || !this.#buffered.has(item.topic))) {
      this.#buffered.set(item.topic, item.after);
    }
    if (this.#mode === "events") this.#dispatchItems();
    else this.#wake();
  }

  #decide(mode) {
    if (this.#mode === mode) return;
    if (this.#mode) throw new TypeError("read a subscription by iteration or by events of `message`, not by both");
    this.#mode = mode;
  }

  #dispatchItems() {
    while (this.#items.length) {
      const item = this.#items.shift();
      if (item.type === "deliver") {
        this.#seen.set(item.message.topic, item.message.position);
        this.#dispatch("message", { message: item.message });
      } else if (item.type === "refused") {
        this.#dispatch("refused", { topic: item.topic, code: item.code, text: item.text });
      } else if (this.#isGap(item)) {
        this.#dispatch("gap", item);
      }
    }
    if (this.#paused) this.#resume();
  }

  #dispatch(type, { type: _, ...fields } = {}) {
    this.dispatchEvent(new MigratoryEvent(type, fields));
  }

  /** Return whether publications are missing at this receipt, which the application now reaches. */
  #isGap({ topic, kind, after, resumed }) {
    if (after !== null && (kind === "reset" || !this.#seen.has(topic))) this.#seen.set(topic, after);
    return kind !== "complete" && (kind !== "reset" || resumed);
  }

  /** Leave the topic. The client remembers the position that the application has reached. */
  #leave(topic) {
    this.#topics.delete(topic);
    const start = this.#items.find((item) => item.type === "receipt" && item.topic === topic && item.after !== null);
    if (start && !this.#seen.has(topic)) this.#seen.set(topic, start.after); // nothing was read
    this.#step({ type: "unsubscribe", topic, seen: this.#seen.get(topic) });
    this.#forget(topic);
  }

  #pause() {
    this.#paused = true;
    for (const topic of this.#topics) this.#step({ type: "unsubscribe", topic });
  }

  #resume() {
    this.#paused = false;
    for (const topic of this.#topics) {
      this.#step({ type: "subscribe", topic, after: this.#buffered.get(topic), snapshot: this.#snapshot });
    }
  }

  #wake() {
    for (const resolve of this.#waiters.splice(0)) resolve();
  }
}

const topicOf = (item) => (item.type === "deliver" ? item.message.topic : item.topic);
