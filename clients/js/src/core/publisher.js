/**
 * QoS 1 publications that await their answers, and when they are sent again.
 *
 * - Ids rise by one per topic, from 1. An id is issued once and stands for one payload.
 * - Every publication carries the *mark*: the lowest id of its topic that is neither answered nor given up.
 * - After `gap`, `retry`, a timeout, a new link, a give-up or a final refusal, all pending ids of the topic are sent
 *   again from the lowest. The first ones are sent at once, and each answer sends two more.
 * - After `rate_limited` nothing is sent until the broker reads on. It refuses nothing then, so nothing is sent again.
 * - On a new link, and with a new token, the broker may refuse what it accepted before. So a publication that was sent
 *   before and is refused then fails with `outcome_unknown`, except for the codes of the coordinator.
 * - Giving up is final. The last id of a topic is remembered for ever: an id used twice would be answered as a repeat.
 */

import { byteLength, encode, ENVELOPE, topicFault } from "./protocol.js";

const DEFAULT_RETRY_AFTER = 0.1; // seconds until a resend after a `retry` that names no time
const MIN_RETRY_AFTER = 0.01;
const RESEND_WINDOW = 64; // ids that a resend sends at once
const GAP_RESEND_INTERVAL = 0.2; // seconds: further `gap` answers are about what was sent before the resend
const LARGEST_ID = Number.MAX_SAFE_INTEGER;
const JSON_GROWTH = 6; // a control character becomes an escape of six characters

export class Publisher {
  #settings;
  #turn;
  #last = new Map(); // topic -> last issued id
  #queues = new Map(); // topics with a pending publication
  #pausedUntil = 0; // the broker reads nothing before: a rate is reached
  waiting = 0; // pending publications of all topics
  access = 0; // the links and new tokens so far; each may change what the broker refuses
  deadline = Infinity; // the earliest time at which `tick` may have something to do
  duplicateWindow = Infinity; // seconds for which the cluster recognises a repeat
  maxPayload;

  constructor(name, settings, turn) {
    this.name = name;
    this.#settings = settings;
    this.#turn = turn;
    this.maxPayload = settings.maxPayload;
  }

  submit({ ticket, topic, payload, qos, sent }) {
    const { link, now } = this.#turn;
    const badTopic = topicFault(topic);
    if (badTopic) return this.#fail(ticket, "bad_topic", badTopic);
    const tooLarge = this.#sizeFault(topic, payload);
    if (tooLarge) return this.#fail(ticket, "too_large", tooLarge);
    if (qos === 0) {
      if (!link) {
        const text = "not connected, and QoS 0 publications are not stored";
        return this.#fail(ticket, "not_connected", text);
      }
      this.#turn.send(link, { op: "publish", topic, ...payload.content, sent });
      return this.#turn.emit({ type: "acknowledged", ticket, position: null });
    }
    if (this.waiting >= this.#settings.maxWaiting) {
      const text = `${this.waiting} publications await their answers, which is the limit`;
      return this.#fail(ticket, "too_many_waiting", text);
    }
    const id = (this.#last.get(topic) ?? 0) + 1;
    this.#last.set(topic, id);
    let queue = this.#queues.get(topic);
    if (!queue) {
      const { ackTimeout } = this.#settings;
      queue = {
        topic,
        pending: new Map(), // by id, rising
        resendAt: Math.max(now, this.#pausedUntil) + ackTimeout,
        ackTimeout, // the current wait for an answer; doubles while none arrives
        backingOff: false, // after `retry`: new publications wait for the resend, too
        mustResend: false, // after `gap`: an answer must not postpone the resend
        deferred: [], // ids that a resend left for its answers, or a pause; rising
        gapResendAfter: 0, // no resend for `gap` before
      };
      this.#queues.set(topic, queue);
      this.#wakeAt(queue.resendAt);
    }
    const publication = { ticket, payload, sent, expiresAt: now + this.#settings.publishTimeout };
    queue.pending.set(id, publication);
    this.waiting += 1;
    this.#wakeAt(publication.expiresAt);
    const isPaused = link && now < this.#pausedUntil && !queue.backingOff;
    if (queue.deferred.length || isPaused) queue.deferred.push(id);
    else if (link && !queue.backingOff) this.#turn.send(link, this.#publish(queue, id, publication));
  }

  acceptAck(ack) {
    const { link, now } = this.#turn;
    const queue = this.#find(ack);
    if (!queue) return;
    this.#turn.emit({ type: "acknowledged", ticket: this.#remove(queue, ack.id).ticket, position: ack.position });
    queue.ackTimeout = this.#settings.ackTimeout;
    if (queue.backingOff || queue.mustResend) return;
    queue.resendAt = Math.max(now, this.#pausedUntil) + queue.ackTimeout;
    if (link && now >= this.#pausedUntil) this.#sendDeferred(queue, 2);
  }

  /** Send the next `count` publications that a resend or a pause left out. */
  #sendDeferred(queue, count) {
    const { link, now } = this.#turn;
    for (let sent = 0; queue.deferred.length && sent < count;) {
      const id = queue.deferred.shift();
      const publication = queue.pending.get(id); // undefined: answered, from an earlier sending
      if (publication && publication.expiresAt > now) {
        this.#turn.send(link, this.#publish(queue, id, publication));
        sent += 1;
      }
    }
  }

  acceptNack(nack) {
    const { now } = this.#turn;
    const queue = this.#find(nack);
    if (!queue) return;
    if (nack.code === "gap") {
      queue.mustResend = true;
      this.#resendAt(queue, Math.max(now, queue.gapResendAfter));
    } else if (nack.code === "retry") {
      queue.backingOff = true;
      const wait = Math.max(nack.retry_after ?? DEFAULT_RETRY_AFTER, MIN_RETRY_AFTER);
      this.#resendAt(queue, now + Math.min(wait, this.#settings.resendCap));
    } else {
      this.#refuse(this.#remove(queue, nack.id), nack.code, nack.text);
      this.#resendAt(queue, now); // the later ids wait behind one that will never be published
    }
    this.tick();
  }

  /** Send nothing for `seconds`, because the broker reads on only then. It answers later what it has received. */
  pause(seconds) {
    this.#pausedUntil = this.#turn.now + Math.min(seconds, this.#settings.backoffCap);
    for (const queue of this.#queues.values()) {
      queue.resendAt = Math.max(queue.resendAt, this.#pausedUntil + queue.ackTimeout);
    }
    this.#wakeAt(this.#pausedUntil);
  }

  /** Drop the publication with this ticket, and send the others of its topic again. */
  giveUp(ticket) {
    for (const queue of this.#queues.values()) {
      for (const [id, publication] of queue.pending) {
        if (publication.ticket !== ticket) continue;
        this.#remove(queue, id);
        this.#resendAt(queue, this.#turn.now);
        this.tick();
        return;
      }
    }
  }

  /** Send all pending publications on a new link, whose broker may have another limit of the payload's size. */
  resendAll() {
    this.access += 1;
    this.#pausedUntil = 0;
    for (const queue of [...this.#queues.values()]) {
      for (const [id, { payload }] of [...queue.pending]) {
        const tooLarge = this.#sizeFault(queue.topic, payload);
        if (tooLarge) this.#refuse(this.#remove(queue, id), "too_large", tooLarge);
      }
      queue.ackTimeout = this.#settings.ackTimeout;
      this.#resendAt(queue, this.#turn.now);
    }
    this.tick();
  }

  failAll(code, text) {
    for (const { pending } of this.#queues.values()) {
      for (const { ticket } of pending.values()) this.#fail(ticket, code, text);
    }
    this.#queues.clear();
    this.waiting = 0;
    this.deadline = Infinity;
  }

  /** End expired publications and, when there is a link, send again what is due. */
  tick() {
    const { link, now } = this.#turn;
    if (now < this.deadline) return;
    const resumes = this.#pausedUntil > 0 && this.#pausedUntil <= now;
    if (resumes) this.#pausedUntil = 0;
    this.deadline = this.#pausedUntil || Infinity;
    for (const queue of [...this.#queues.values()]) {
      this.#expire(queue);
      if (!queue.pending.size) continue;
      if (link && queue.resendAt <= now && !this.#pausedUntil) this.#resend(queue);
      else if (link && resumes && !queue.backingOff) this.#sendDeferred(queue, RESEND_WINDOW);
      this.#wakeAt(queue.pending.values().next().value.expiresAt);
      if (link) this.#wakeAt(Math.max(queue.resendAt, this.#pausedUntil));
    }
  }

  #expire(queue) {
    const { now } = this.#turn;
    for (const [id, { expiresAt }] of [...queue.pending]) {
      if (expiresAt > now) break;
      const seconds = Math.min(this.#settings.publishTimeout, this.duplicateWindow);
      const text = `no answer within ${seconds} s; the publication may still appear, never after a later one`;
      this.#fail(this.#remove(queue, id).ticket, "timeout", text);
      queue.resendAt = now;
    }
  }

  #resend(queue) {
    const { link, now } = this.#turn;
    const ids = [...queue.pending.keys()];
    const messages = ids.slice(0, RESEND_WINDOW).map((id) => this.#publish(queue, id, queue.pending.get(id)));
    this.#turn.send(link, ...messages);
    queue.deferred = ids.slice(RESEND_WINDOW);
    queue.backingOff = queue.mustResend = false;
    queue.gapResendAfter = now + GAP_RESEND_INTERVAL;
    queue.resendAt = now + queue.ackTimeout;
    queue.ackTimeout = Math.min(queue.ackTimeout * 2, this.#settings.resendCap);
  }

  #publish(queue, id, publication) {
    if (!publication.access) {
      // Sent again after the duplicate window, it could be stored a second time.
      publication.access = this.access;
      publication.expiresAt = Math.min(publication.expiresAt, this.#turn.now + this.duplicateWindow);
      this.#wakeAt(publication.expiresAt);
    }
    const mark = queue.pending.keys().next().value;
    return this.#message(queue.topic, publication.payload, id, mark, publication.sent);
  }

  #message(topic, { content }, id, mark, sent) {
    return { op: "publish", topic, ...content, qos: 1, publisher: this.name, id, mark, sent };
  }

  /** Return the queue in which the answer's publication is pending, or undefined: given up, or answered before. */
  #find({ topic, publisher, id }) {
    const queue = publisher === this.name ? this.#queues.get(topic) : undefined;
    return queue?.pending.has(id) ? queue : undefined;
  }

  #remove(queue, id) {
    const publication = queue.pending.get(id);
    queue.pending.delete(id);
    this.waiting -= 1;
    if (!queue.pending.size) this.#queues.delete(queue.topic);
    return publication;
  }

  #resendAt(queue, time) {
    queue.resendAt = time;
    this.#wakeAt(time);
  }

  #wakeAt(time) {
    this.deadline = Math.min(this.deadline, time);
  }

  /**
   * End a publication that was refused. What was sent under an earlier `access` may be stored; only id_reused,
   * id_too_high and outcome_unknown say what the coordinator knows about the id.
   */
  #refuse({ ticket, access }, code, text) {
    if (access < this.access && !/^id_|unknown/.test(code)) {
      this.#fail(ticket, "outcome_unknown", `${code}: ${text}; it may be stored`);
    } else this.#fail(ticket, code, text);
  }

  #fail(ticket, code, text) {
    this.#turn.emit({ type: "failed", ticket, code, text });
  }

  /**
   * Return why the broker would refuse the publication as too large, or "". It is checked here because the broker would
   * close the link, and the message would be sent again on the next one.
   */
  #sizeFault(topic, payload) {
    const { size } = payload;
    if (size > this.maxPayload) return `the payload has ${size} bytes; this cluster takes at most ${this.maxPayload}`;
    if (size * JSON_GROWTH <= this.maxPayload) return "";
    const length = byteLength(encode(this.#message(topic, payload, LARGEST_ID, LARGEST_ID, 1e12)));
    const limit = this.maxPayload + ENVELOPE;
    if (length <= limit) return "";
    return `the publication has ${length} bytes in JSON; this cluster takes at most ${limit}`;
  }
}
