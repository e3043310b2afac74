/**
 * The client core: the state machine of one client, and everything that every client does (docs/reference/protocol.md).
 * It has no socket, clock or timer: `step(event, now)` returns effects, which a driver (`../driver.js`) carries out.
 *
 *     closed ──open──> waiting ──time──> dialling ──connected, token──> connecting ──welcome──> serving
 *                         ^──────────────────┴── disconnected, timeout ──┴── disconnected, silence ──┘
 *
 * A *link* is one connection attempt and the connection that results from it. While serving, a broker may ask for a
 * move. The core then opens a second link, which becomes the current one at its `welcome`; the first is the *leaving*
 * one, which still delivers until every subscription has its receipt on the current link: make before break.
 *
 * Events: {type, …}
 *     open; close                connect, and reconnect until closed; positions outlive `close`
 *     connected {link}           the WebSocket handshake is complete
 *     received {link, messages}  messages that arrived, decoded
 *     disconnected {link, code, reason}
 *     token {link, token}; tokenFailed {link, reason}    the answer to `requestToken`
 *     subscribe {topic, after, snapshot, fresh}; unsubscribe {topic, seen}
 *     submit {ticket, topic, payload, qos, sent}; giveUp {ticket}
 *     tick                       the time `deadline` has come; harmless at any other time
 *     wake                       the page was asleep, or the network changed: what was true before may not be now
 *     sleep                      the page is put aside, and its timers stand still: leave the broker until `wake`
 *
 * Effects for the driver: dial {link, url}, requestToken {link}, send {link, messages}, disconnect {link, abort}
 *
 * Effects for the application: deliver {link, message}, receipt {topic, kind, position, after, before, first, last,
 * resumed}, refused {topic, code, text}, acknowledged {ticket, position}, failed {ticket, code, text}, linkUp {link, url,
 * cluster, broker}, linkDown {link, code, reason, cause, replaced}, ready {link, seconds}, problem {code, text, fatal},
 * closed {code, reason}: a broker refused the client's identity for good
 */

import { DRAINING, FATAL, LOST, NORMAL, SAME_BROKER, TRY_ANOTHER, UNAUTHENTICATED, VERSION } from "./protocol.js";
import { Publisher } from "./publisher.js";
import { ServerPool } from "./servers.js";
import { Subscriptions } from "./streams.js";

const MOVE_SHARE = 0.9; // of a move's period, within which the client dials; the rest is for connecting
const MAX_CHANGE_TIMES = 16; // brokers treat clients with more recent changes of broker alike

/** Limits and times of a client, in seconds. docs/reference/client-js.md has the reasons. */
export const SETTINGS = Object.freeze({
  connectTimeout: 10, firstRetry: 1, backoffCap: 30, blacklist: 60, stableAfter: 5, recentChanges: 600, wakeTimeout: 5,
  receiptTimeout: 10, subscribeBatch: 500, rememberedPositions: 1000,
  publishTimeout: 60, ackTimeout: 2, resendCap: 8, maxWaiting: 1000, maxPayload: 1_048_576,
});

/** The step under way: its time, the number of the current link (0 without one), and the effects so far. */
class Turn {
  now = 0;
  link = 0;
  effects = [];

  emit(...effects) {
    this.effects.push(...effects);
  }

  send(link, ...messages) {
    this.emit({ type: "send", link, messages });
  }

  problem(code, text, fatal = false) {
    this.emit({ type: "problem", code, text, fatal });
  }
}

export class ClientCore {
  #settings;
  #random;
  #client;
  #token;
  #turn = new Turn();
  #lastLink = 0;
  #candidate = null;
  #current = null;
  #leaving = null;
  #asleep = false;
  #readyPending = false; // `ready` is due once all receipts have arrived
  #lostAt = null; // when the last current link was lost
  #renewing = 0; // the link for which a new token was requested
  #nextAttempt = Infinity;
  #targets = []; // servers that the current broker proposed and that are untried
  #penalty = 0; // consecutive short-lived links that the client itself caused
  #changes = []; // times of the most recent changes of broker
  closed = true;
  reconnects = { broken: 0, drained: 0, moved: 0 };

  /**
   * Create a closed client of `servers` (see `parseServers`). `random` returns numbers r with 0 <= r < 1. `publisher`
   * must be unique in the cluster: only this object knows which ids it has issued. `token` is a text, or true to be asked
   * for one by `requestToken` before each connect. Throw TypeError when no server has a weight above 0.
   */
  constructor(servers, random, { client = "", publisher = "", token, settings } = {}) {
    if (!servers.some(({ weight }) => weight > 0)) {
      throw new TypeError("no usable server: give at least one ws:// or wss:// URL with a weight above 0");
    }
    this.#settings = { ...SETTINGS, ...settings };
    this.#random = random;
    this.#client = client;
    this.#token = token;
    this.servers = new ServerPool(servers, this.#settings);
    this.subscriptions = new Subscriptions(this.#settings, this.#turn);
    this.publisher = new Publisher(publisher, this.#settings, this.#turn);
  }

  /** Handle one event at time `now`, in seconds of a monotonic clock. Return the effects, to be carried out in order. */
  step(event, now) {
    const turn = this.#turn;
    turn.now = now;
    turn.effects = [];
    switch (event.type) {
      case "received": this.#received(event); break;
      case "submit":
        if (this.closed) turn.emit({ type: "failed", ticket: event.ticket, code: "closed", text: "the client is closed" });
        else this.publisher.submit(event);
        break;
      case "tick": this.#tick(); break;
      case "subscribe": this.subscriptions.subscribe(event); break;
      case "unsubscribe":
        this.subscriptions.unsubscribe(event);
        this.#checkReady();
        break;
      case "giveUp": this.publisher.giveUp(event.ticket); break;
      case "open": this.#open(); break;
      case "close": this.#close(); break;
      case "connected": this.#connected(event); break;
      case "token": this.#sendConnect(event.link, event.token); break;
      case "tokenFailed": this.#tokenFailed(event); break;
      case "disconnected": {
        const link = this.#find(event.link);
        if (link) this.#linkEnded(link, event.code, event.reason);
        break;
      }
      case "wake": this.#wake(); break;
      case "sleep": this.#sleep(); break;
      default: throw new TypeError(`unknown event ${event.type}`);
    }
    return turn.effects;
  }

  /** The time at which a `tick` is needed at the latest; Infinity without one. */
  get deadline() {
    if (this.closed) return Infinity;
    const { subscriptions, publisher } = this;
    const current = this.#current;
    return Math.min(
      subscriptions.deadline, publisher.deadline, this.#candidate?.welcomeBy ?? this.#nextAttempt,
      current ? Math.min(current.pingAt, current.deadAt, subscriptions.retryAt) : Infinity,
    );
  }

  // ---- events ----------------------------------------------------------------------------------------------------

  #open() {
    if (!this.closed) return;
    this.closed = false;
    this.#dial();
  }

  #close() {
    this.closed = true;
    this.#leaveLinks();
    this.subscriptions.leaveAll();
    this.publisher.failAll("closed", "the client was closed; the publication may still appear");
    this.#asleep = false;
    this.#lostAt = null;
  }

  /** End all links without a report. */
  #leaveLinks() {
    for (const link of [this.#candidate, this.#leaving, this.#current]) {
      if (link) this.#disconnect(link, { bye: link !== this.#candidate });
    }
    this.#candidate = this.#leaving = null;
    this.#setCurrent(null);
    this.#cancelAttempt();
    this.#readyPending = false;
    this.subscriptions.deadline = Infinity;
  }

  #sleep() {
    if (this.closed || this.#asleep) return;
    this.#asleep = true;
    const current = this.#current;
    this.#leaveLinks();
    if (current) this.#reportLoss(current, NORMAL, "the page was put aside", "broken");
  }

  /**
   * Look at once whether the current link is alive, and connect at once without one.
   *
   * A socket may stay open for minutes after its connection has gone. Its silence alone proves nothing, because the
   * timers of a sleeping page do not run: messages may wait to be read, and pings were not sent. So the link has a short
   * time to answer a new ping. One that has left two pings unanswered ends.
   */
  #wake() {
    const { now } = this.#turn;
    if (this.closed) return;
    this.#asleep = false;
    const current = this.#current;
    if (current && current.deadAt <= now && current.unanswered > 1) this.#loseSilent(current);
    else if (current) this.#ping(current, Math.min(current.heartbeat, this.#settings.wakeTimeout));
    const candidate = this.#candidate;
    const soon = now + this.#settings.wakeTimeout;
    const { subscriptions } = this;
    if (subscriptions.deadline < soon) subscriptions.deadline = soon;
    if (candidate) {
      candidate.welcomeBy = Math.max(candidate.welcomeBy, soon);
    } else if (!this.#current) {
      this.#nextAttempt = Math.min(this.#nextAttempt, now + this.#random() * this.#settings.firstRetry);
    }
    this.#tick();
  }

  #connected({ link: number }) {
    const link = this.#candidate;
    if (link?.number !== number) return;
    if (this.#token === true) this.#turn.emit({ type: "requestToken", link: number });
    else this.#sendConnect(number, this.#token);
  }

  #tokenFailed({ link: number, reason }) {
    const link = this.#candidate;
    if (link?.number === number) {
      this.#turn.problem("no_token", reason);
      this.#disconnect(link);
      this.#attemptFailed();
    } else if (number === this.#renewing && number === this.#turn.link) {
      this.#renewing = 0; // the link ends with its token, and the next one asks again
      this.#turn.problem("no_token", reason);
    }
  }

  #sendConnect(number, token) {
    const message = { op: "connect", version: VERSION, client: this.#client, token };
    if (number === this.#renewing && number === this.#turn.link) {
      this.#renewing = 0;
      this.publisher.access += 1;
      this.#turn.send(number, message);
    } else if (this.#candidate?.number === number) {
      const since = this.#turn.now - this.#settings.recentChanges;
      const changes = this.#changes.filter((time) => time >= since).length;
      this.#turn.send(number, { ...message, moves: changes + (this.#current ? 1 : 0) || undefined });
    }
  }

  #tick() {
    const { now } = this.#turn;
    if (this.closed) return;
    const candidate = this.#candidate;
    if (candidate && candidate.welcomeBy <= now) {
      this.#disconnect(candidate, { abort: true });
      this.#linkEnded(candidate, TRY_ANOTHER, `no welcome within ${this.#settings.connectTimeout} s`);
    }
    const current = this.#current;
    if (current) {
      if (current.deadAt <= now) {
        this.#loseSilent(current);
      } else if (this.subscriptions.deadline <= now) {
        this.#disconnect(current, { abort: true });
        this.#linkEnded(current, TRY_ANOTHER, "a subscribe request was not answered");
      } else if (current.pingAt <= now) {
        const due = current.lastHeard + current.heartbeat;
        if (due > now) current.pingAt = due;
        else this.#ping(current, current.heartbeat);
      }
    }
    if (!this.#candidate && this.#nextAttempt <= now) this.#dial();
    this.subscriptions.tick();
    this.publisher.tick();
  }

  #loseSilent(link) {
    this.#disconnect(link, { abort: true });
    this.#linkEnded(link, LOST, "no answer to a ping");
  }

  #ping(link, limit) {
    link.unanswered += 1;
    link.pingAt = this.#turn.now + link.heartbeat;
    link.deadAt = this.#turn.now + limit;
    this.#turn.send(link.number, { op: "ping" });
  }

  // ---- messages --------------------------------------------------------------------------------------------------

  #received({ link: number, messages }) {
    const link = this.#find(number);
    if (!link) return;
    link.lastHeard = this.#turn.now;
    link.unanswered = 0;
    link.deadAt = Infinity;
    for (const message of messages) {
      if (message.op === "message") this.subscriptions.acceptMessage(number, message);
      else this.#control(link, message);
    }
  }

  #control(link, message) {
    switch (message.op) {
      case "ack": this.publisher.acceptAck(message); break;
      case "nack": this.publisher.acceptNack(message); break;
      case "subscribed":
        this.subscriptions.acceptReceipts(link.number, message);
        this.#checkReady();
        break;
      case "welcome": this.#welcome(link, message); break;
      case "servers": this.#learn(link, message.servers); break;
      case "drain":
        if (link === this.#current) this.#planMove(link, message);
        break;
      case "token_expiring": this.#tokenExpiring(link, message); break;
      case "error": this.#error(link, message); break;
      default: // pong and unsubscribed: they only show that the broker is alive
    }
  }

  #welcome(link, { servers, heartbeat, limits, duplicate_window: window, cluster, broker }) {
    if (link !== this.#candidate) return;
    const { now } = this.#turn;
    link.openedAt = now;
    link.heartbeat = heartbeat || Infinity;
    link.pingAt = now + link.heartbeat;
    this.publisher.maxPayload = limits.payload;
    this.publisher.duplicateWindow = window || Infinity;
    this.#learn(link, servers);
    this.#finishMove(); // this move began before the previous one had all its receipts
    this.#leaving = this.#current;
    this.#candidate = null;
    this.#setCurrent(link);
    this.#cancelAttempt();
    this.#turn.emit({ type: "linkUp", link: link.number, url: link.url, cluster, broker });
    this.#readyPending = true;
    this.subscriptions.restart();
    this.publisher.resendAll();
    this.#checkReady();
  }

  #tokenExpiring(link, { seconds }) {
    if (link !== this.#current) return;
    if (this.#token === true) {
      this.#renewing = link.number;
      this.#turn.emit({ type: "requestToken", link: link.number });
    } else {
      this.#turn.problem("token_expiring", `the token expires in ${seconds} s`);
    }
  }

  #error(link, message) {
    const { code, text, closes } = message;
    if (closes) link.brokerError = `${code}: ${text}`;
    if (code === "rate_limited" && link === this.#current) this.publisher.pause(message.retry_after ?? 0);
    const refused = code === "unauthenticated" && closes; // reported as the link ends
    if (!this.subscriptions.acceptError(message) && !refused) this.#turn.problem(code, text, closes);
    this.#checkReady();
  }

  #learn(link, servers) {
    for (const line of this.servers.learn(servers, link.url)) this.#turn.problem("bad_server", line);
  }

  /**
   * Schedule the move that the broker asks for, at a random time within the period. A broker that leaves (`closes`) is
   * left for any server; one that stays only for a server that it proposes.
   */
  #planMove(link, { period, servers, closes }) {
    const { now } = this.#turn;
    if (link.moveCause === "drained" && !closes) return;
    const [proposed, problems] = this.servers.parse(servers, link.url);
    for (const line of problems) this.#turn.problem("bad_server", line);
    this.#targets = proposed.filter(({ url, weight }) => url !== link.url && weight > 0);
    if (closes) {
      link.moveCause = "drained";
      if (this.#wasStable(link)) this.servers.resetRounds();
      this.servers.avoid(link.url, now);
    } else if (this.#targets.length) {
      link.moveCause = "moved";
    } else {
      return;
    }
    this.#nextAttempt = Math.min(this.#nextAttempt, now + this.#random() * period * MOVE_SHARE);
  }

  // ---- links -----------------------------------------------------------------------------------------------------

  #find(number) {
    if (this.#current?.number === number) return this.#current;
    return [this.#candidate, this.#leaving].find((link) => link?.number === number);
  }

  #setCurrent(link) {
    this.#current = link;
    this.#turn.link = link?.number ?? 0;
  }

  /** Begin to connect to the next server, and never to the current link's. */
  #dial() {
    const { now } = this.#turn;
    this.#nextAttempt = Infinity;
    const url = this.servers.pick(now, this.#random, this.#current?.url, this.#targets);
    if (url === null) {
      if (!this.#current) {
        this.#turn.problem("no_servers", "all servers have weight 0: none takes clients");
      }
      this.#scheduleRetry();
      return;
    }
    this.#targets = this.#targets.filter((server) => server.url !== url);
    this.#lastLink += 1;
    this.#candidate = {
      number: this.#lastLink,
      url,
      welcomeBy: now + this.#settings.connectTimeout,
      openedAt: 0, // when `welcome` arrived
      lastHeard: 0,
      heartbeat: Infinity, // seconds between two pings
      pingAt: Infinity,
      deadAt: Infinity, // when the connection counts as dead: a ping was not answered
      unanswered: 0, // pings since the last message
      brokerError: "", // the error that the broker sent before it closed the connection
      moveCause: null, // the broker asked for a move: "drained", it leaves; "moved", it stays
    };
    this.#turn.emit({ type: "dial", link: this.#lastLink, url });
  }

  /** Handle the end of a link: report it, and schedule a reconnect if no other attempt is under way. */
  #linkEnded(link, code, reason) {
    const why = link.brokerError || reason || "the connection was lost";
    if (link === this.#leaving) {
      this.#countMove(link);
      return;
    }
    const isCurrent = link === this.#current;
    if (code === UNAUTHENTICATED && (isCurrent || !this.#current)) {
      this.#endRefused(`${link.url}: ${why} (${code})`);
      return;
    }
    if (!SAME_BROKER.has(code)) this.servers.avoid(link.url, this.#turn.now);
    if (!isCurrent) {
      const suffix = code === LOST ? "" : ` (${code})`;
      this.#turn.problem("connect_failed", `${link.url}: ${why}${suffix}`, FATAL.has(code));
      this.#attemptFailed();
      return;
    }
    this.#cancelAttempt();
    if (this.#wasStable(link)) {
      this.servers.resetRounds();
      this.#penalty = 0;
    } else if (FATAL.has(code) || SAME_BROKER.has(code)) {
      this.#penalty += 1;
    }
    this.#finishMove(); // half moved, topics on either link: start again from the positions
    this.#setCurrent(null);
    this.subscriptions.deadline = Infinity;
    this.#reportLoss(link, code, why, code === DRAINING || link.moveCause === "drained" ? "drained" : "broken");
    if (!this.#candidate) this.#scheduleRetry();
  }

  #reportLoss(link, code, reason, cause) {
    this.#lostAt ??= this.#turn.now;
    this.#count(cause);
    this.#turn.emit({ type: "linkDown", link: link.number, code, reason, cause, replaced: false });
  }

  /** The client's identity is refused for good, by every broker: end everything with that refusal. */
  #endRefused(reason) {
    this.#turn.problem("unauthenticated", reason, true);
    this.subscriptions.refuseAll("unauthenticated", reason);
    this.publisher.failAll("unauthenticated", `${reason}; the publication may still appear`);
    this.#close();
    this.#turn.emit({ type: "closed", code: UNAUTHENTICATED, reason });
  }

  #attemptFailed() {
    this.#candidate = null;
    const current = this.#current;
    if (current?.moveCause === "moved" && !this.#targets.length) current.moveCause = null; // stay
    else this.#scheduleRetry();
  }

  #scheduleRetry() {
    this.#nextAttempt = this.#turn.now + this.servers.backoff(this.#random(), this.#penalty);
  }

  #cancelAttempt() {
    this.#nextAttempt = Infinity;
    this.#targets = [];
  }

  #wasStable(link) {
    return this.#turn.now - link.openedAt >= this.#settings.stableAfter;
  }

  #finishMove() {
    if (!this.#leaving) return;
    this.#disconnect(this.#leaving, { bye: true });
    this.#countMove(this.#leaving);
  }

  #countMove(link) {
    this.#leaving = null;
    const cause = link.moveCause ?? "drained";
    this.#count(cause);
    const code = cause === "drained" ? DRAINING : NORMAL;
    this.#turn.emit({ type: "linkDown", link: link.number, code, reason: "moved away", cause, replaced: true });
  }

  #count(cause) {
    this.reconnects[cause] += 1;
    this.#changes = [...this.#changes.slice(1 - MAX_CHANGE_TIMES), this.#turn.now];
  }

  #disconnect(link, { abort = false, bye = false } = {}) {
    if (bye) this.#turn.send(link.number, { op: "bye" });
    this.#turn.emit({ type: "disconnect", link: link.number, abort });
  }

  /** Once every subscription was answered on the current link, report `ready` and finish a move. */
  #checkReady() {
    if (this.subscriptions.isWaiting) return;
    this.subscriptions.deadline = Infinity;
    if (!this.#readyPending || !this.#current) return;
    this.#readyPending = false;
    let seconds = null;
    if (this.#leaving) {
      seconds = 0;
      this.#finishMove();
    } else if (this.#lostAt !== null) {
      seconds = this.#turn.now - this.#lostAt;
    }
    this.#lostAt = null;
    this.#turn.emit({ type: "ready", link: this.#current.number, seconds });
  }
}
