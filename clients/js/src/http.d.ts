/** The fallback to HTTP of the client: docs/reference/client-js.md. */

import type { WebSocketLike } from "migratory-client";

/** Times of the fallback, in milliseconds. */
export interface FallbackTimes {
  /** Within which a WebSocket must open before HTTP is used; default 4,000. */
  open?: number;
  /** A WebSocket that breaks sooner is taken to be blocked, and one that lasts longer to work; default 2,000. */
  early?: number;
  /** After which a WebSocket is tried again; doubled with each failure; default 30,000. */
  firstProbe?: number;
  /** The longest time between two tries; default 600,000. */
  lastProbe?: number;
  /** Of a request that publishes; default 20,000. */
  request?: number;
}

export interface FallbackOptions {
  /** An implementation of WebSocket; default: the global one. Without one, HTTP is used. */
  WebSocket?: WebSocketLike;
  fetch?: typeof globalThis.fetch;
  times?: FallbackTimes;
}

/** The option `WebSocket` of a client that falls back to HTTP where WebSocket is blocked, and comes back. */
export const FallbackSocket: WebSocketLike;

/** Return such a class with means of its own. Its sockets share what they learn about the network. */
export function createFallbackSocket(options?: FallbackOptions): WebSocketLike;
