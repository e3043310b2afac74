/**
 * The wire protocol in JSON (docs/reference/protocol.md): messages, positions, topic names, payloads, close codes.
 * Pure functions without I/O.
 */

export const SUBPROTOCOL = "migratory.v1.json";
export const VERSION = 1;

/** Bytes that a WebSocket message may have besides its payload. */
export const ENVELOPE = 65_536;
const MAX_TOPIC = 255;
const LARGEST = 2n ** 63n - 1n;

/** Close codes that are named in the code. The protocol's page has all of them. */
export const NORMAL = 1000;
export const DRAINING = 1001;
export const LOST = 1006; // no close frame (RFC 6455, 7.4.1)
export const TRY_ANOTHER = 1013;
export const BAD_MESSAGE = 4000;
export const UNAUTHENTICATED = 4001;

/** Codes for faults of the client: a retry with the same input fails in the same way at every broker. */
export const FATAL = new Set([1002, 1003, 1007, 1008, 1009, 4000, 4001]);

/** Codes after which the client may reconnect to the same broker: token expired, slow consumer. */
export const SAME_BROKER = new Set([4002, 4003]);

// ---- positions ---------------------------------------------------------------------------------------------------
// Epoch and sequence number are BigInts: they have up to 63 bits.

/** Return the position {epoch, sequence} for its text "epoch:sequence". Throw TypeError for anything else. */
export function parsePosition(text) {
  const match = typeof text === "string" && /^(\d{1,19}):(\d{1,19})$/.exec(text);
  const [epoch, sequence] = match ? [BigInt(match[1]), BigInt(match[2])] : [-1n, -1n];
  if (!match || epoch > LARGEST || sequence > LARGEST) {
    throw new TypeError(
      `position ${show(text)} is not "epoch:sequence", two whole numbers of up to 19 digits, each below 2^63`,
    );
  }
  return { epoch, sequence };
}

export const formatPosition = (position) => position && `${position.epoch}:${position.sequence}`;

/** Return a negative number, 0 or a positive number when `a` is before, at or behind `b`. */
export function comparePositions(a, b) {
  const difference = a.epoch === b.epoch ? a.sequence - b.sequence : a.epoch - b.epoch;
  return difference < 0n ? -1 : Number(difference > 0n);
}

// ---- topics and payloads -----------------------------------------------------------------------------------------

const encoder = new TextEncoder();
const strictDecoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const looseDecoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Return the number of bytes of a text in UTF-8. */
export const byteLength = (text) => encoder.encode(text).length;

const show = (value) => JSON.stringify(String(value).slice(0, 60));

/** Return why `topic` is not a valid name, or "" for a valid one: 1 to 255 bytes of UTF-8 without control characters. */
export function topicFault(topic) {
  const index = topic.search(/[\u0000-\u001f\u007f-\u009f]|\p{Surrogate}/u);
  if (index >= 0) return `topic ${show(topic)} holds a control character or a lone surrogate at index ${index}`;
  const size = byteLength(topic);
  return size >= 1 && size <= MAX_TOPIC ? "" : `topic ${show(topic)} has ${size} bytes; a name has 1 to ${MAX_TOPIC}`;
}

/**
 * Return the payload {content: {data | data64}, size} of a publication: a string, an ArrayBuffer or a view of one. `size`
 * is in bytes. Throw TypeError for anything else, and for text with a lone surrogate, which has no UTF-8.
 */
export function makePayload(value) {
  if (typeof value === "string") {
    if (/\p{Surrogate}/u.test(value)) throw new TypeError("the payload holds a lone surrogate: it is not valid text");
    return { content: { data: value }, size: byteLength(value) };
  }
  let bytes;
  if (value instanceof ArrayBuffer) bytes = new Uint8Array(value);
  else if (ArrayBuffer.isView(value)) bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  else throw new TypeError(`the payload is a string, an ArrayBuffer or a view of one, not ${typeof value}`);
  try {
    return { content: { data: strictDecoder.decode(bytes) }, size: bytes.length };
  } catch {
    let binary = ""; // in pieces: a call takes a limited number of arguments
    for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
    return { content: { data64: btoa(binary) }, size: bytes.length };
  }
}

/**
 * A publication as an application receives it. `position` is "epoch:sequence"; times are seconds since 1970. `first` is
 * null, or in a conflated topic the first sequence number that the message stands for.
 */
export class Message {
  #data;
  #data64;

  constructor({ topic, position, data, data64, sent = null, time = null, replayed = false, first }) {
    this.topic = topic;
    this.position = position;
    this.sent = sent;
    this.time = time;
    this.replayed = replayed;
    this.first = first === "0" ? null : first;
    this.#data = data;
    this.#data64 = data64;
  }

  /** The payload as text. Bytes that are not UTF-8 become U+FFFD. */
  get text() {
    return this.#data ?? looseDecoder.decode(this.bytes);
  }

  /** The payload as a new Uint8Array. */
  get bytes() {
    if (this.#data64 === undefined) return encoder.encode(this.#data);
    return Uint8Array.from(atob(this.#data64), (character) => character.charCodeAt(0));
  }

  /** Return the value of a payload in JSON. Throw SyntaxError when it is none. */
  json() {
    return JSON.parse(this.text);
  }
}

// ---- messages ----------------------------------------------------------------------------------------------------

const number = (value) => typeof value === "number" && value >= 0 && value <= 1e12;
const count = (value) => Number.isSafeInteger(value) && value >= 0;
const flag = (value) => typeof value === "boolean";
const sequence = (value) => /^\d{1,19}$/.test(value);
const nullable = (kind) => (value) => value === null || kind(value);
const oneOf = (...values) => (value) => values.includes(value);
const list = (kind) => (value) => Array.isArray(value) && value.every(kind);
const position = (value) => Boolean(parsePosition(value));
/** Return a check of an object's fields, which fills in defaults: each is [check, default], or [check] if required. */
const structure = (fields) => (value) => {
  for (const name in fields) {
    const [check, fallback] = fields[name];
    if (value[name] === undefined && fallback !== undefined) value[name] = fallback;
    else if (!check(value[name])) throw new TypeError(`${name}: ${show(JSON.stringify(value[name]))} is not allowed`);
  }
  return true;
};

const servers = [list(structure({ weight: [count, 100] }))]; // a URL is checked where it is parsed
const wait = [nullable(number), null];
const receipt = structure({
  receipt: [oneOf("complete", "truncated", "reset", null)], position: [nullable(position), null],
  first: [sequence, "0"], last: [sequence, "0"], retry_after: wait,
});

/** The messages of a broker, with what each field that the client counts with may be. Texts are passed on as they are. */
const BROKER_MESSAGES = {
  welcome: { servers, heartbeat: [number], limits: [structure({ payload: [count] })], duplicate_window: [number, 0] },
  subscribed: { request: [count], topics: [list(receipt)] },
  message: { position: [position], first: [sequence, "0"] },
  ack: { id: [count], position: [nullable(position)] },
  nack: { id: [count], retry_after: wait },
  servers: { servers },
  drain: { period: [number], servers, closes: [flag, true] },
  error: { closes: [flag, false], retry_after: wait },
  token_expiring: { seconds: [number] },
};

/**
 * Return the messages of a frame that a broker sent, with defaults filled in. Operations of a later version are passed
 * on. Throw TypeError or SyntaxError, with the field, for a frame that is not valid.
 */
export function decode(frame) {
  const content = JSON.parse(frame);
  const messages = Array.isArray(content) ? content : [content];
  for (const message of messages) {
    if (typeof message?.op !== "string") throw new TypeError("a message without an operation");
    structure(Object.hasOwn(BROKER_MESSAGES, message.op) ? BROKER_MESSAGES[message.op] : {})(message);
    if (message.op === "message" && typeof (message.data ?? message.data64) !== "string") {
      throw new TypeError("a message without data");
    }
  }
  return messages;
}

/** Return a client's message as JSON. Fields that are undefined are left out. */
export const encode = (message) => JSON.stringify(message);
