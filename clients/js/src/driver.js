/**
 * The driver: it runs the core on WebSockets and timers, and decides nothing itself. Effects that concern the
 * application are passed on in their order.
 */

import { BAD_MESSAGE, decode, encode, LOST, NORMAL, SUBPROTOCOL, TRY_ANOTHER } from "./core/protocol.js";

const MAX_FRAME_LENGTH = 20_000; // characters, at most 60,000 bytes: what a broker accepts whatever its payload limit
const MAX_FRAME_MESSAGES = 1000; // brokers accept up to 4,096
const MAX_TIMEOUT = 2 ** 31 - 1; // milliseconds; more would be no wait at all
const LATE = 2; // seconds: a timer that is later was held up, and the page was asleep

/**
 * Return a clock in seconds that never goes back and counts sleep. `performance.now` stands still while some machines
 * sleep, so a second or more that only the wall clock counts is added.
 */
export function createClock(monotonic = () => performance.now(), wall = () => Date.now()) {
  let slept = 0;
  let [last, lastWall] = [monotonic(), wall()];
  return () => {
    const [now, nowWall] = [monotonic(), wall()];
    const jump = nowWall - lastWall - (now - last);
    if (jump >= 1000) slept += jump;
    [last, lastWall] = [now, nowWall];
    return (now + slept) / 1000;
  };
}

/** Call `step` with wake and sleep as the page's life goes on. Return a function that ends this. Without a page: nothing. */
function watchPage(step) {
  const { document } = globalThis;
  const ending = new AbortController();
  const on = (target, type, event, applies = () => true) =>
    target?.addEventListener?.(type, (e) => applies(e) && step({ type: event }), { signal: ending.signal });
  // A page with an open connection is not kept for "back", and messages pile up for a frozen one: leave the broker.
  on(globalThis, "pagehide", "sleep");
  on(globalThis, "pageshow", "wake", (event) => event.persisted);
  on(document, "freeze", "sleep");
  on(document, "resume", "wake");
  on(document, "visibilitychange", "wake", () => document.visibilityState === "visible");
  // The browser may be wrong about the network, so neither is taken for a fact.
  on(globalThis, "online", "wake");
  on(globalThis, "offline", "wake");
  return () => ending.abort();
}

export class Driver {
  #core;
  #WebSocket;
  #getToken;
  #notify;
  #clock = createClock();
  #links = new Map(); // number -> {socket, queue, length, reason}
  #effects = [];
  #performing = false;
  #timer;
  #due = Infinity;
  #unwatch = () => {};

  constructor(core, WebSocket, getToken, notify) {
    this.#core = core;
    this.#WebSocket = WebSocket;
    this.#getToken = getToken;
    this.#notify = notify;
  }

  open() {
    this.#unwatch = watchPage((event) => this.step(event));
    this.step({ type: "open" });
  }

  close() {
    this.step({ type: "close" });
    this.stop();
  }

  /** Stop watching the page. The core is closed. */
  stop() {
    this.#unwatch();
  }

  /** Characters that wait to be sent. */
  get buffered() {
    let sum = 0;
    for (const { socket, length } of this.#links.values()) sum += length + socket.bufferedAmount;
    return sum;
  }

  /** Give an event to the core and carry out its effects, in order even when one of them calls `step` again. */
  step = (event) => {
    if (event.type === "wake") for (const { socket } of this.#links.values()) socket.wake?.();
    this.#effects.push(...this.#core.step(event, this.#clock()));
    if (this.#performing) return;
    this.#performing = true;
    try {
      while (this.#effects.length) this.#perform(this.#effects.shift());
    } finally {
      this.#performing = false;
    }
    this.#setTimer();
  };

  #perform(effect) {
    switch (effect.type) {
      case "send": this.#send(effect.link, effect.messages); break;
      case "dial":
        this.#dial(effect.link, effect.url);
        this.#notify(effect);
        break;
      case "disconnect": this.#disconnect(effect.link, effect.abort); break;
      case "requestToken": this.#requestToken(effect.link); break;
      default: this.#notify(effect);
    }
  }

  async #requestToken(link) {
    try {
      const token = await this.#getToken();
      if (typeof token !== "string") throw new TypeError(`a token is a string, not ${typeof token}`);
      this.step({ type: "token", link, token });
    } catch (error) {
      this.step({ type: "tokenFailed", link, reason: `no token: ${error}` });
    }
  }

  // ---- links -------------------------------------------------------------------------------------------------------

  #dial(number, url) {
    const ended = (code, reason) => {
      this.#links.delete(number);
      this.step({ type: "disconnected", link: number, code, reason });
    };
    let socket;
    try {
      socket = new this.#WebSocket(url, SUBPROTOCOL);
    } catch (error) { // a page over TLS may not use ws://, for example
      queueMicrotask(() => ended(LOST, error.message));
      return;
    }
    const link = { socket, queue: [], length: 0, reason: "" };
    this.#links.set(number, link);
    const refuse = (code, reportedCode, reason) => {
      this.#silence(socket);
      socket.close(code);
      ended(reportedCode, reason);
    };
    socket.onopen = () => {
      if (socket.protocol === SUBPROTOCOL) this.step({ type: "connected", link: number });
      else refuse(NORMAL, 1002, `the server does not speak ${SUBPROTOCOL}`);
    };
    socket.onmessage = ({ data }) => {
      let messages;
      try {
        if (typeof data !== "string") throw new TypeError("a binary frame");
        messages = decode(data);
      } catch (error) {
        refuse(BAD_MESSAGE, TRY_ANOTHER, `the broker sent an invalid message: ${error.message}`);
        return;
      }
      this.step({ type: "received", link: number, messages });
    };
    socket.onerror = ({ message }) => (link.reason = message); // `close` follows; browsers give no reason
    socket.onclose = ({ code, reason }) => ended(code, reason || link.reason);
  }

  /** Queue messages, which leave together, in as few frames as possible, at the end of the turn. */
  #send(number, messages) {
    const link = this.#links.get(number);
    if (!link) return; // ended: `disconnected` was posted
    if (!link.queue.length) queueMicrotask(() => this.#flush(link));
    for (const message of messages) {
      const text = encode(message);
      link.queue.push(text);
      link.length += text.length;
    }
  }

  #flush(link) {
    const { socket, queue } = link;
    link.length = 0;
    while (queue.length) {
      let count = 1;
      let length = queue[0].length;
      while (count < Math.min(queue.length, MAX_FRAME_MESSAGES) && length + queue[count].length <= MAX_FRAME_LENGTH) {
        length += queue[count].length;
        count += 1;
      }
      const frame = queue.splice(0, count);
      if (socket.readyState === 1) socket.send(count === 1 ? frame[0] : `[${frame}]`);
    }
  }

  #disconnect(number, abort) {
    const link = this.#links.get(number);
    if (!link) return;
    this.#links.delete(number);
    const { socket } = link;
    this.#silence(socket);
    if (!abort) this.#flush(link);
    if (abort && socket.terminate) socket.terminate(); // `ws` in Node.js; a browser has no such thing
    else socket.close(NORMAL);
  }

  #silence(socket) {
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.onerror = () => {};
  }

  // ---- time --------------------------------------------------------------------------------------------------------

  #setTimer() {
    const { deadline } = this.#core;
    if (this.#due <= deadline && deadline < Infinity) return; // an early tick is harmless
    clearTimeout(this.#timer);
    this.#due = deadline;
    if (deadline === Infinity) return;
    const wait = Math.min(Math.max(deadline - this.#clock(), 0) * 1000, MAX_TIMEOUT);
    this.#timer = setTimeout(() => {
      const late = this.#clock() - this.#due;
      this.#due = Infinity;
      this.step({ type: late > LATE ? "wake" : "tick" });
    }, wait);
  }
}
