/**
 * Subscriptions: the position of each topic, gaps and duplicates, and subscribe requests that await their receipts.
 *
 * - The position advances before the application sees a publication.
 * - Publications of a topic are accepted only from the link whose receipt came last. While a client moves, the old link
 *   delivers until the new one's receipt. A publication that arrives twice is dropped by its position.
 * - Between two publications no sequence number may be missing, unless a receipt named it or a message stands for it
 *   (conflation). A broker that breaks this is reported as a `hole`.
 */

import { comparePositions, formatPosition, Message, parsePosition, topicFault } from "./protocol.js";

const MIN_RETRY_AFTER = 0.1; // seconds before a topic is requested again, whatever an overloaded broker asks for

/** The stream of one topic. `next` is the sequence number expected next, 0 while unknown. */
class TopicStream {
  next = 0n;
  floor = 0n; // the last sequence number that was reported missing
  link = 0; // the link whose publications are accepted
  request = 0; // the number of the unanswered request, 0 after its receipt

  constructor(topic, position, snapshot) {
    this.topic = topic;
    this.snapshot = snapshot; // the latest publication is still awaited
    this.#restartAt(position);
  }

  #restartAt(position) {
    this.position = position;
    this.next = position ? position.sequence + 1n : 0n;
    this.floor = 0n;
  }

  #report(kind, position, fields) {
    const after = formatPosition(this.position);
    const at = formatPosition(position);
    return { type: "receipt", topic: this.topic, kind, position: at, after, first: null, last: null, before: null, ...fields };
  }

  /** Return the effects of a publication that arrived on `link`: none for a duplicate. */
  acceptMessage(link, message) {
    const position = parsePosition(message.position);
    const last = this.position;
    const deliver = { type: "deliver", link, message: new Message(message) };
    if (link !== this.link) return [];
    if (last && comparePositions(position, last) <= 0) {
      if (!this.snapshot || comparePositions(position, last) < 0) return [];
      this.snapshot = false;
      return [deliver];
    }
    const out = [];
    const { sequence } = position;
    const first = BigInt(message.first) || sequence; // conflated: the message stands for all from `first` on
    if (!(first <= this.next && this.next <= sequence)) {
      if (sequence <= this.floor) return []; // from before a reported gap, which can't be taken back
      const resumed = true;
      if (first > this.next && this.next > 0n) {
        const missing = { first: String(this.next), last: String(first - 1n), resumed };
        out.push(this.#report("hole", position, missing));
      } else if (this.next) {
        this.position = { epoch: position.epoch, sequence: first - 1n };
        out.push(this.#report("reset", position, { resumed, before: formatPosition(last) }));
      }
    }
    this.snapshot = false;
    this.position = position;
    this.next = sequence + 1n;
    out.push(deliver);
    return out;
  }

  /** Return the effect of a receipt that arrived on `link`. From now on publications are accepted from this link only. */
  acceptReceipt(link, receipt) {
    this.link = link;
    const before = this.position;
    const resumed = before !== null;
    const position = receipt.position === null ? null : parsePosition(receipt.position);
    if (receipt.receipt === "reset") {
      this.#restartAt(position);
      this.snapshot = false;
      return this.#report("reset", position, { resumed, before: formatPosition(before) });
    }
    if (!resumed) {
      this.#restartAt(position);
      this.snapshot &&= position !== null && position.sequence > 0n;
    }
    let first = BigInt(receipt.first);
    const last = BigInt(receipt.last);
    if (first < this.next) first = this.next;
    if (receipt.receipt === "truncated" && last >= first) {
      this.floor = last;
      this.next = last + 1n;
      return this.#report("truncated", position, { first: String(first), last: String(last), resumed });
    }
    // complete, or truncated below what the other link delivered or what was reported meanwhile
    return this.#report("complete", position, { resumed });
  }
}

/**
 * The subscriptions of one client. `deadline`: when the link counts as failed for want of a receipt. `retryAt`: when
 * topics that an overloaded broker refused are requested again. `turn` is the step under way: time, link, effects.
 */
export class Subscriptions {
  #settings;
  #turn;
  #inactive = new Map(); // topics that were left, the most recent last: at most `rememberedPositions`
  #lastRequest = 0;
  #overloaded = [];
  active = new Map(); // topic -> TopicStream
  deadline = Infinity;
  retryAt = Infinity;

  constructor(settings, turn) {
    this.#settings = settings;
    this.#turn = turn;
  }

  /** True while a topic awaits its receipt. */
  get isWaiting() {
    for (const stream of this.active.values()) if (stream.request) return true;
    return false;
  }

  subscribe({ topic, after = null, snapshot = false, fresh = false }) {
    if (this.active.has(topic)) return;
    const fault = topicFault(topic);
    if (fault) {
      this.#turn.emit({ type: "refused", topic, code: "bad_topic", text: fault });
      return;
    }
    const position = after === null ? null : parsePosition(after);
    let stream = this.#inactive.get(topic);
    this.#inactive.delete(topic);
    if (!stream || fresh || (position && formatPosition(stream.position) !== after)) {
      stream = new TopicStream(topic, position, snapshot && !position);
    }
    this.active.set(topic, stream);
    if (this.#turn.link) this.#request([stream]);
  }

  /** End a subscription. `seen` is the last position that the application was given, if not the last delivered one. */
  unsubscribe({ topic, seen = null }) {
    if (this.#leave(topic, seen) && this.#turn.link) {
      this.#turn.send(this.#turn.link, { op: "unsubscribe", request: ++this.#lastRequest, topics: [topic] });
    }
  }

  #leave(topic, seen) {
    let stream = this.active.get(topic);
    const known = stream ?? this.#inactive.get(topic);
    if (!known) return false;
    if (seen !== null && formatPosition(known.position) !== seen) {
      const replaced = new TopicStream(topic, parsePosition(seen), false);
      if (stream) stream = replaced;
      else this.#inactive.set(topic, replaced);
    }
    if (!stream) return false;
    stream.link = stream.request = 0;
    this.active.delete(topic);
    this.#inactive.delete(topic);
    if (stream.position) {
      this.#inactive.set(topic, stream);
      if (this.#inactive.size > this.#settings.rememberedPositions) {
        this.#inactive.delete(this.#inactive.keys().next().value);
      }
    }
    return true;
  }

  leaveAll() {
    for (const topic of [...this.active.keys()]) this.#leave(topic, null);
    this.deadline = Infinity;
  }

  #refuse(topic, code, text) {
    this.active.delete(topic);
    this.#turn.emit({ type: "refused", topic, code, text });
  }

  refuseAll(code, text) {
    for (const topic of [...this.active.keys()]) this.#refuse(topic, code, text);
  }

  /** Request these streams on the current link, each from its position. */
  #request(streams) {
    const { link, now } = this.#turn;
    for (let start = 0; start < streams.length; start += this.#settings.subscribeBatch) {
      const request = ++this.#lastRequest;
      const topics = streams.slice(start, start + this.#settings.subscribeBatch).map((stream) => {
        stream.request = request;
        const after = formatPosition(stream.position) ?? undefined;
        return { topic: stream.topic, after, snapshot: stream.snapshot || undefined };
      });
      this.#turn.send(link, { op: "subscribe", request, topics });
    }
    if (streams.length && this.deadline === Infinity) this.deadline = now + this.#settings.receiptTimeout;
  }

  /** Request all topics on a new link. */
  restart() {
    this.#overloaded = [];
    this.retryAt = Infinity;
    this.#request([...this.active.values()]);
  }

  /** Request the topics again that an overloaded broker refused, if that is due. */
  tick() {
    if (!this.#turn.link || this.retryAt > this.#turn.now) return;
    const waiting = this.#overloaded;
    this.#overloaded = [];
    this.retryAt = Infinity;
    this.#request(waiting.filter((stream) => this.active.get(stream.topic) === stream && !stream.request));
  }

  acceptMessage(link, message) {
    this.#turn.emit(...(this.active.get(message.topic)?.acceptMessage(link, message) ?? []));
  }

  acceptReceipts(link, { request, topics }) {
    const { now } = this.#turn;
    let problem = "";
    for (const receipt of topics) {
      const stream = this.active.get(receipt.topic);
      // Not the answer to an earlier request, nor from a link that does not serve this topic.
      if (!stream || (request ? stream.request !== request : stream.link !== link)) continue;
      if (request && receipt.code === "overloaded") {
        const { backoffCap } = this.#settings;
        stream.request = 0;
        this.#overloaded.push(stream);
        const wait = Math.min(Math.max(receipt.retry_after ?? backoffCap, MIN_RETRY_AFTER), backoffCap);
        this.retryAt = Math.min(this.retryAt, now + wait);
        problem = receipt.text;
      } else if (receipt.receipt === null) {
        this.#refuse(receipt.topic, receipt.code, receipt.text);
      } else {
        if (request) stream.request = 0;
        this.#turn.emit(stream.acceptReceipt(link, receipt));
      }
    }
    if (problem) this.#turn.emit({ type: "problem", code: "overloaded", text: problem, fatal: false });
    if (this.isWaiting) this.deadline = now + this.#settings.receiptTimeout; // the time limit is for progress
  }

  /** End the subscriptions of a request that is refused as a whole. Return whether there were any. */
  acceptError({ request, code, text }) {
    const refused = [...this.active.values()].filter((stream) => request && stream.request === request);
    for (const { topic } of refused) this.#refuse(topic, code, text);
    return refused.length > 0;
  }
}
