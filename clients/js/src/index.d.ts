/** The client of Migratory for browsers and Node.js. docs/reference/client-js.md has the behaviour of each. */

/** The place of a publication in its topic: `"epoch:sequence"`. Compare with `comparePositions`. */
export type Position = `${bigint}:${bigint}`;

/** The address of a broker, alone or with its share of new clients (default 100). */
export type Server = string | { url: string; weight?: number };

/** Why a client changed its broker: its connection broke, the broker leaves, or it has more clients than its share. */
export type Cause = "broken" | "drained" | "moved";

export type State = "connecting" | "connected" | "disconnected";

/** Limits and times, in seconds unless named. */
export interface Settings {
  /** From dialling to the broker's welcome. Default 10. */
  connectTimeout?: number;
  /** Upper bound of the first random wait before a reconnect. Default 1. */
  firstRetry?: number;
  /** The longest wait between two attempts. Default 30. */
  backoffCap?: number;
  /** How long a server that failed is avoided, unless all failed. Default 60. */
  blacklist?: number;
  /** Age of a connection from which it counts as a success. Default 5. */
  stableAfter?: number;
  /** Age up to which changes of broker are told to the next broker. Default 600. */
  recentChanges?: number;
  /** How long a broker has to answer a ping after the page was asleep. Default 5. */
  wakeTimeout?: number;
  /** How long a broker has to answer a subscribe request. Default 10. */
  receiptTimeout?: number;
  /** The largest number of topics in one subscribe request. Default 500. */
  subscribeBatch?: number;
  /** The largest number of positions that are remembered of topics that were left. Default 1,000. */
  rememberedPositions?: number;
  /** When an unanswered publication is given up. Default 60. */
  publishTimeout?: number;
  /** When unanswered publications are sent again. Default 2. */
  ackTimeout?: number;
  /** The longest wait between two resends. Default 8. */
  resendCap?: number;
  /** The largest number of unanswered publications. Default 1,000. */
  maxWaiting?: number;
  /** Bytes of the largest payload until a broker says what it allows. Default 1 MiB. */
  maxPayload?: number;
}

/** What the client needs of a WebSocket: the browser's, or that of the package `ws`. */
export interface WebSocketLike {
  new (url: string, protocols: string): {
    readonly protocol: string;
    readonly readyState: number;
    readonly bufferedAmount: number;
    onopen: ((event: any) => any) | null;
    onmessage: ((event: any) => any) | null;
    onerror: ((event: any) => any) | null;
    onclose: ((event: any) => any) | null;
    send(data: string): void;
    close(code?: number, reason?: string): void;
  };
}

export interface ClientOptions extends Settings {
  /** A token, or a function that returns one: called before each connect, and before the token expires. */
  token?: string | (() => string | Promise<string>);
  /** The client's name in the brokers' logs. */
  name?: string;
  /** Messages that a subscription buffers for a slow reader. Default 1,000. */
  queue?: number;
  /** Default: the global one. Node.js has none before version 22: pass that of the package `ws`. */
  WebSocket?: WebSocketLike;
}

/** The state of a subscription, as the broker reported it or the client noticed it. */
export interface Receipt {
  readonly topic: string;
  readonly kind: "complete" | "truncated" | "reset" | "hole";
  /** The topic's newest position at the broker. */
  readonly position: Position | null;
  /** The stream continues after it. `reset`: the start of the new history. */
  readonly after: Position | null;
  /** `reset`: the position until then. */
  readonly before: Position | null;
  /** `truncated` and `hole`: the first and the last missing sequence number. */
  readonly first: string | null;
  readonly last: string | null;
  /** Whether the subscription had a position before. */
  readonly resumed: boolean;
}

export class Message {
  private constructor();
  readonly topic: string;
  readonly position: Position;
  /** The payload as text. Bytes that are not UTF-8 become U+FFFD. */
  readonly text: string;
  /** The payload as new bytes. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** The publisher's wall clock, and the coordinator's, in seconds since 1970. */
  readonly sent: number | null;
  readonly time: number | null;
  readonly replayed: boolean;
  /** A conflated topic: the first sequence number that the message stands for. */
  readonly first: string | null;
  /** Return the value of a payload in JSON. Throw SyntaxError when it is none. */
  json<T = unknown>(): T;
}

export interface ClientEvents {
  connecting: Event & { readonly url: string };
  connected: Event & { readonly broker: string; readonly url: string; readonly cluster: string };
  disconnected: Event & {
    readonly code: number;
    readonly reason: string;
    readonly cause: Cause | null;
    /** False: the client reconnects by itself. */
    readonly final: boolean;
  };
  /** Every subscription has its receipt. `seconds` since the connection was lost; null at the first one. */
  ready: Event & { readonly seconds: number | null };
  /** The client changed its broker without an interruption. */
  moved: Event & { readonly cause: Cause; readonly broker: string };
  /** What a person should read. `fatal`: retries will probably fail too. */
  problem: Event & { readonly code: string; readonly text: string; readonly fatal: boolean };
  receipt: Event & Receipt;
}

export interface SubscriptionEvents {
  message: Event & { readonly message: Message };
  gap: Event & Receipt;
  refused: Event & { readonly topic: string; readonly code: string; readonly text: string };
}

interface TypedTarget<Events> extends Omit<EventTarget, "addEventListener" | "removeEventListener"> {
  addEventListener<Type extends keyof Events & string>(
    type: Type,
    listener: (event: Events[Type]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener<Type extends keyof Events & string>(
    type: Type,
    listener: (event: Events[Type]) => unknown,
    options?: boolean | EventListenerOptions,
  ): void;
}

declare const ClientTarget: new () => TypedTarget<ClientEvents>;
declare const SubscriptionTarget: new () => TypedTarget<SubscriptionEvents>;

export class Client extends ClientTarget {
  /** Throw TypeError or RangeError for arguments that are not allowed. */
  constructor(servers: Server[], options?: ClientOptions);
  readonly state: State;
  /** The name of the broker that serves this client. */
  readonly broker: string | null;
  /** The number of changes of broker so far. */
  readonly reconnects: Readonly<Record<Cause, number>>;
  /**
   * Connect, and reconnect until `close`. Resolve once a broker serves the client, however long it takes: on a client
   * that is connected at once, on one that lost its broker when it has another one. Reject with ConnectError when a
   * broker refuses the token for good, with Closed when the client is closed.
   */
  connect(): Promise<void>;
  /** Wait up to `flush` seconds (5) for the answers to publications, then disconnect. Positions are remembered. */
  close(options?: { flush?: number }): Promise<void>;
  /**
   * Publish. With QoS 1 (the default) resolve with the position once the cluster has stored the publication; with QoS 0
   * resolve with null once it is sent. Reject with PublishError, Closed, TypeError, or the reason of `signal`.
   */
  publish(
    topic: string,
    payload: string | ArrayBuffer | ArrayBufferView,
    options?: { qos?: 0 | 1; signal?: AbortSignal },
  ): Promise<Position | null>;
  /** Return the stream of these topics. Throw Closed, or TypeError. */
  subscribe(
    topics: string | Iterable<string>,
    options?: {
      /** Where to resume: a position for one topic, or an object of positions by topic. */
      after?: Position | Readonly<Record<string, Position>> | null;
      /** Start a new topic with its latest publication. */
      snapshot?: boolean;
      /** Start with the next publication, wherever this client left the topic. */
      fresh?: boolean;
      /** Messages that are buffered for a slow reader. */
      queue?: number;
    },
  ): Subscription;
}

export class Subscription extends SubscriptionTarget implements AsyncIterableIterator<Message, undefined> {
  private constructor();
  readonly topics: string[];
  /** The last position of each topic that the application was given. */
  readonly positions: Record<string, Position>;
  [Symbol.asyncIterator](): this;
  next(): Promise<IteratorResult<Message, undefined>>;
  return(): Promise<IteratorResult<Message, undefined>>;
  /** Leave all topics. The client's next subscription to one resumes after the last message that was read. */
  close(): void;
}

export class MigratoryError extends Error {
  constructor(code: string, text: string);
  readonly code: string;
}
export class ConnectError extends MigratoryError {}
export class PublishError extends MigratoryError {
  /** True if the publication may have been stored. */
  readonly isUnknown: boolean;
}
export class SubscribeError extends MigratoryError {
  constructor(code: string, topic: string, text: string);
  readonly topic: string;
}
export class GapError extends MigratoryError {
  constructor(receipt: Receipt);
  readonly receipt: Receipt;
}
export class Closed extends MigratoryError {
  constructor();
}

/** Return a negative number, 0 or a positive number when `a` is before, at or behind `b`. */
export function comparePositions(a: Position, b: Position): number;
export {};
