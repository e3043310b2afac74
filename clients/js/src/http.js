/**
 * `FallbackSocket`: what a client uses in place of `WebSocket` where networks block that. It is a WebSocket as long as
 * one works, and otherwise a stream of events by `fetch` with publications by POST (docs/reference/protocol.md#http). It
 * comes back to WebSocket by itself.
 *
 *     import { Client } from "migratory-client";
 *     import { FallbackSocket } from "migratory-client/http";
 *     const client = new Client(servers, { WebSocket: FallbackSocket });
 *
 * The client's core is the same: this class speaks the protocol of a broker to it, and asks it to move (`drain`) once a
 * WebSocket opens again.
 */

import { BAD_MESSAGE, LOST, SUBPROTOCOL, UNAUTHENTICATED } from "./core/protocol.js";

const TIMES = Object.freeze({ open: 4000, early: 2000, firstProbe: 30_000, lastProbe: 600_000, request: 20_000 }); // ms
const RESTARTING = 1012;
const MAX_BODY = 20_000; // characters of a request with several publications
const MAX_PUBLICATIONS = 500; // of a request
const PONG = '{"op":"pong"}';
const STATUS_CODES = { 400: BAD_MESSAGE, 401: UNAUTHENTICATED, 403: 1008, 413: 1009 }; // of refused streams

/** Return the class of sockets of these means: for tests, and for other implementations of WebSocket. */
export function createFallbackSocket({ WebSocket = globalThis.WebSocket, fetch = globalThis.fetch, times } = {}) {
  const { open, early, firstProbe, lastProbe, request } = { ...TIMES, ...times };
  // Shared by all sockets, as the network is. `suspected`: the last WebSocket ended early, so that HTTP is tried first.
  const network = { blocked: false, suspected: false };

  return class FallbackSocket {
    onopen = null;
    onmessage = null;
    onerror = null;
    onclose = null;
    protocol = "";
    readyState = 0;
    #url;
    #socket = null; // the WebSocket, or null for HTTP
    #timer;
    // ---- of HTTP
    #base = "";
    #connect = null; // the client's last `connect`
    #awaited = true; // its `welcome` is still to be passed on
    #topics = new Map(); // topic -> the position to resume from, or null
    #snapshots = new Set(); // topics whose snapshot has not come
    #requests = new Map(); // topic -> the number of the request that waits for its receipt
    #servers = [];
    #stream = null; // the AbortController of the current stream
    #scheduled = false; // a new stream is about to be opened
    #heard = false; // the current stream has brought something
    #heartbeat = 0; // the interval in milliseconds, 0 before the first `welcome`
    #silence; // the timer that ends a stream that brings nothing
    #publications = [];
    #publishing = false;

    constructor(url, protocol) {
      this.#url = url;
      this.#base = url.replace(/^ws/, "http").replace(/[?#].*/, "").replace(/\/(ws)?$/, "");
      if (network.blocked || network.suspected) queueMicrotask(() => this.#useHttp());
      else this.#useWebSocket(protocol);
    }

    get bufferedAmount() {
      return this.#socket ? this.#socket.bufferedAmount : this.#publications.reduce((sum, { size }) => sum + size, 0);
    }

    send(text) {
      if (this.#socket) this.#socket.send(text);
      else if (this.readyState === 1) this.#handle([JSON.parse(text)].flat());
    }

    close(code) {
      this.readyState = 3;
      clearTimeout(this.#timer);
      clearTimeout(this.#silence);
      this.#stream?.abort();
      this.#socket?.close(code);
    }

    /** End at once: `ws` in Node.js can, a browser can only close. */
    terminate() {
      if (this.#socket?.terminate) this.#socket.terminate();
      this.close();
    }

    /** Replace the stream: after a sleep its connection may have gone without a sign. */
    wake() {
      if (!this.#socket) this.#renew();
    }

    // ---- WebSocket --------------------------------------------------------------------------------------------------

    #useWebSocket(protocol) {
      let socket;
      try {
        socket = new WebSocket(this.#url, protocol);
      } catch {
        queueMicrotask(() => this.#useHttp());
        return;
      }
      this.#socket = socket;
      let openedAt = 0;
      const giveUp = () => {
        silence(socket);
        this.#socket = null;
        this.#useHttp();
      };
      this.#timer = setTimeout(giveUp, open);
      socket.onopen = () => {
        clearTimeout(this.#timer);
        openedAt = Date.now();
        this.protocol = socket.protocol;
        this.readyState = 1;
        this.onopen?.({});
      };
      socket.onmessage = (event) => this.onmessage?.(event);
      socket.onerror = (event) => this.onerror?.(event);
      socket.onclose = ({ code, reason }) => {
        clearTimeout(this.#timer);
        if (!openedAt && this.readyState === 0) {
          giveUp();
          return;
        }
        network.suspected = code === LOST && Date.now() - openedAt < early;
        this.#end(code, reason);
      };
    }

    // ---- HTTP -------------------------------------------------------------------------------------------------------

    #useHttp() {
      clearTimeout(this.#timer);
      if (this.readyState !== 0) return;
      this.protocol = SUBPROTOCOL;
      this.readyState = 1;
      this.onopen?.({});
    }

    #end(code, reason = "") {
      if (this.readyState === 3) return;
      if (!this.#socket && this.#awaited) network.blocked = network.suspected = false; // HTTP does not work either
      this.close();
      this.onclose?.({ code, reason });
    }

    #give(...messages) {
      if (this.readyState === 1) this.onmessage?.({ data: `[${messages}]` });
    }

    /** Do what messages of the client ask for. */
    #handle(messages) {
      for (const message of messages) {
        switch (message.op) {
          case "connect":
            this.#connect = message;
            this.#awaited = true;
            this.#renew();
            break;
          case "subscribe":
            for (const { topic, after = null, snapshot } of message.topics) {
              this.#requests.set(topic, message.request);
              this.#topics.set(topic, after);
              if (snapshot) this.#snapshots.add(topic);
            }
            this.#renew();
            break;
          case "unsubscribe":
            for (const topic of message.topics) this.#forget(topic);
            this.#give(JSON.stringify({ op: "unsubscribed", request: message.request, topics: message.topics }));
            this.#renew();
            break;
          case "publish":
            this.#publications.push({ message, size: JSON.stringify(message).length });
            break;
          case "ping": // a stream that is being opened answers with its `welcome`
            if (this.#heard) this.#give(PONG);
            break;
          default: this.close(); // bye
        }
      }
      this.#publish();
    }

    #forget(topic) {
      this.#topics.delete(topic);
      this.#requests.delete(topic);
      this.#snapshots.delete(topic);
    }

    // ---- the stream -------------------------------------------------------------------------------------------------

    /** Replace the stream by one of the present topics, once the messages of this turn are handled. */
    #renew() {
      if (this.#scheduled || !this.#connect) return;
      this.#scheduled = true;
      this.#heard = false;
      this.#stream?.abort();
      queueMicrotask(() => {
        this.#scheduled = false;
        if (this.readyState === 1) this.#follow((this.#stream = new AbortController()));
      });
    }

    /**
     * Call `end` unless the stream brings something within two heartbeat intervals, within which the broker writes two
     * comments. No other request shows that the stream's connection lives.
     */
    #watch(end) {
      clearTimeout(this.#silence);
      if (this.#heartbeat && this.readyState === 1) this.#silence = setTimeout(end, 2 * this.#heartbeat);
    }

    async #follow(stream) {
      const topics = Array.from(this.#topics, ([topic, after]) => (
        { topic, after: after ?? undefined, snapshot: this.#snapshots.has(topic) || undefined }
      ));
      const end = (code, reason) => {
        if (!stream.signal.aborted) this.#end(code, reason);
      };
      this.#watch(() => end(LOST, "no answer to the request for a stream"));
      try {
        const answer = await fetch(`${this.#base}/v1/stream`, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify([this.#connect, { op: "subscribe", request: 1, topics }]),
          signal: stream.signal,
          cache: "no-store",
        });
        if (!answer.ok) {
          await this.#refused(answer, end);
          return;
        }
        const decoder = new TextDecoder();
        const reader = answer.body.getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done || stream.signal.aborted) break;
          this.#heard = true;
          rest += decoder.decode(value, { stream: true });
          const blocks = rest.split("\n\n");
          rest = blocks.pop();
          this.#give(...blocks.flatMap((block) => this.#read(block, end)));
          this.#watch(() => this.#renew());
        }
        end(LOST, "the stream ended");
      } catch (error) {
        end(LOST, error.message);
      }
    }

    /** End as the broker would end a WebSocket. */
    async #refused(answer, end) {
      const body = await answer.text();
      try {
        const { code, text } = JSON.parse(body);
        this.#give(JSON.stringify({ op: "error", code, text, closes: true }));
        end(code === "token_expired" ? 4002 : STATUS_CODES[answer.status] ?? LOST, text);
      } catch { // not of a broker, or not of its client's port
        end(LOST, `${answer.status}: ${body.slice(0, 100)}`);
      }
    }

    /** Return the messages, in JSON, that an event stands for. */
    #read(block, end) {
      let id = null;
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("id: ")) id = line.slice(4);
        else if (line.startsWith("data: ")) data = line.slice(6);
      }
      if (!data) return [];
      const message = JSON.parse(data);
      switch (message.op) {
        case "message":
          if (!this.#topics.has(message.topic)) return [];
          this.#topics.set(message.topic, id);
          this.#snapshots.delete(message.topic);
          return [data];
        case "welcome": return this.#welcome(message, data);
        case "subscribed": return this.#receipts(message, id);
        case "close":
          end(message.code, message.reason);
          return [];
        default: return [data];
      }
    }

    #welcome({ servers, heartbeat }, data) {
      this.#servers = servers;
      this.#heartbeat = 1000 * heartbeat;
      if (!this.#awaited) return [PONG];
      this.#awaited = false;
      network.blocked = true;
      network.suspected = false;
      this.#probeLater(firstProbe);
      return [data];
    }

    /** Pass on the receipts that a request waits for, and those that report a gap of a topic that was there before. */
    #receipts({ topics }, id) {
      return topics.flatMap((receipt) => {
        const { topic } = receipt;
        if (!this.#topics.has(topic)) return [];
        const request = this.#requests.get(topic) ?? 0;
        this.#requests.delete(topic);
        if (receipt.receipt === undefined || receipt.receipt === null) this.#forget(topic);
        else if (id !== null && topics.length === 1) this.#topics.set(topic, id);
        if (!request && receipt.receipt === "complete") return [];
        return [JSON.stringify({ op: "subscribed", request, topics: [receipt] })];
      });
    }

    // ---- publications -----------------------------------------------------------------------------------------------

    /** Send what waits, one request after the other: the ids of a publisher must arrive in order. */
    async #publish() {
      if (this.#publishing) return;
      this.#publishing = true;
      while (this.#publications.length && this.readyState === 1) {
        const { qos = 0 } = this.#publications[0].message;
        let [count, size] = [0, 0];
        for (const next of this.#publications) {
          size += next.size;
          if (count && (size > MAX_BODY || count >= MAX_PUBLICATIONS || (next.message.qos ?? 0) !== qos)) break;
          count += 1;
        }
        const messages = this.#publications.splice(0, count).map(({ message }) => message);
        try {
          const answer = await fetch(`${this.#base}/v1/publish`, {
            method: "POST",
            headers: { "Content-Type": "application/json" },
            body: JSON.stringify([{ ...this.#connect, moves: undefined }, ...messages]),
            signal: AbortSignal.timeout(request),
          });
          const answers = [await answer.json()].flat();
          const wanted = qos ? ["ack", "nack"] : ["error"];
          this.#give(...answers.filter(({ op }) => wanted.includes(op)).map((each) => JSON.stringify(each)));
        } catch {
          // without an answer the client sends it again
        }
      }
      this.#publishing = false;
    }

    // ---- back to WebSocket ------------------------------------------------------------------------------------------

    #probeLater(wait) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#probe(wait), wait);
    }

    /** Try a WebSocket. One that stays open for a while shows that they work again. */
    #probe(wait) {
      let probe;
      let timer;
      const finish = (works) => {
        clearTimeout(timer);
        silence(probe);
        if (this.readyState !== 1) return;
        if (!works) {
          this.#probeLater(Math.min(2 * wait, lastProbe));
          return;
        }
        network.blocked = false;
        const others = this.#servers.filter(({ url }) => url !== this.#url);
        // the client moves without a gap where it has another server, and else connects to this one again
        if (others.length) {
          this.#give(JSON.stringify({ op: "drain", period: 1, servers: others, closes: false }));
          this.#probeLater(lastProbe);
        } else {
          this.#end(RESTARTING, "WebSocket works again");
        }
      };
      try {
        probe = new WebSocket(this.#url, SUBPROTOCOL);
      } catch {
        this.#probeLater(lastProbe);
        return;
      }
      timer = setTimeout(() => finish(false), open);
      probe.onopen = () => {
        clearTimeout(timer);
        timer = setTimeout(() => finish(true), early);
      };
      probe.onclose = () => finish(false);
      probe.onerror = () => {}; // `close` follows
    }
  };
}

/** End a WebSocket of which nothing more is heard. */
function silence(socket) {
  socket.onopen = socket.onmessage = socket.onclose = null;
  socket.onerror = () => {};
  socket.close();
}

/** The class for a browser's own `WebSocket` and `fetch`, which all clients of a page share. */
export const FallbackSocket = createFallbackSocket();
