// The conformance vectors that all clients share: tests/conformance/vectors.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { comparePositions, decode, encode, makePayload, parsePosition, topicFault } from "../src/core/protocol.js";
import { createCore, step } from "./adapter.js";

const FOR_PEOPLE = new Set(["text", "reason", "abort", "cluster", "broker"]);
const SETTINGS = {
  subscribe_batch: "subscribeBatch", publish_timeout: "publishTimeout", connect_timeout: "connectTimeout",
  max_waiting: "maxWaiting",
};

function cases(name) {
  const file = new URL(`../../../tests/conformance/vectors/${name}.json`, import.meta.url);
  const found = JSON.parse(readFileSync(file, "utf8")).cases;
  assert.ok(found.length);
  return found;
}

const messages = cases("messages");

for (const { name, json } of messages.filter(({ from }) => from === "broker")) {
  test(`message: ${name}`, () => {
    const [message] = decode(json);
    for (const [field, value] of Object.entries(JSON.parse(json))) {
      assert.deepEqual(structuredClone(message[field]), fill(value, message[field]), field);
    }
  });
}

/** Return `value` with the defaults that the decoder filled into the structures of a list. */
function fill(value, decoded) {
  if (!Array.isArray(value)) return value;
  return value.map((item, index) => (typeof item === "object" ? { ...decoded[index], ...item } : item));
}

test("message: a broker's frame of several", () => {
  const frames = messages.filter(({ from }) => from === "broker").map(({ json }) => json);
  assert.deepEqual(decode(`[${frames}]`), frames.flatMap(decode));
});

for (const { name, json } of messages.filter(({ json: text }) => text.includes('"op":"publish"'))) {
  test(`message: ${name}`, () => {
    const { data, data64, ...rest } = JSON.parse(json);
    const bytes = data64 === undefined ? new TextEncoder().encode(data) : Buffer.from(data64, "base64");
    const payload = makePayload(bytes);
    assert.equal(payload.size, bytes.length);
    const { op, topic, ...others } = rest;
    assert.equal(encode({ op, topic, ...payload.content, ...others }), json);
  });
}

for (const { name, from, format, data, same_as: same } of cases("accepted")) {
  if (from !== "broker" || format !== "json") continue;
  test(`message: ${name}`, () => {
    assert.deepEqual(decode(data), decode(messages.find((message) => message.name === same).json));
  });
}

for (const { name, json, positions } of cases("positions")) {
  test(`position: ${name}`, () => {
    for (const [index, { after = null }] of JSON.parse(json).topics.entries()) {
      if (positions[index] === "none") assert.equal(after, null);
      // Only text is a position in JSON; brokers are more lenient.
      else if (positions[index] === "bad" || typeof after !== "string") assert.throws(() => parsePosition(after), TypeError);
      else assert.equal(comparePositions(parsePosition(after), parsePosition(positions[index])), 0);
    }
  });
}

for (const { topic, ok, why } of cases("topics")) {
  test(`topic: ${why} ${JSON.stringify(topic).slice(0, 40)}`, () => assert.equal(topicFault(topic) === "", ok));
}

for (const session of cases("sessions")) {
  test(`session: ${session.name}`, () => {
    const settings = Object.entries(session.settings ?? {}).map(([key, value]) => [SETTINGS[key], value]);
    const core = createCore({
      servers: session.servers,
      random: [session.random],
      options: {
        client: "c", publisher: "p", token: session.asksForTokens ?? session.token, settings: Object.fromEntries(settings),
      },
    });
    for (const { at, event, effects } of session.steps) {
      const found = [];
      while (core.deadline <= at) found.push(...step(core, { type: "tick" }, core.deadline));
      if (event) found.push(...step(core, event, at));
      assert.deepEqual(notation(found), effects, `at ${at}: ${JSON.stringify(event)}`);
    }
  });
}

/** Return effects as the sessions have them: one `send` for neighbours, without pings and what carries no information. */
function notation(effects) {
  const out = [];
  for (const effect of effects.filter(({ type }) => type !== "closed")) {
    const known = ([key, value]) => !FOR_PEOPLE.has(key) && ![null, undefined, false, ""].includes(value);
    const content = Object.fromEntries(Object.entries(effect).filter(known));
    if (content.type === "send") {
      const sent = content.messages.map((message) => JSON.parse(encode(message))).filter(({ op }) => op !== "ping");
      content.messages = sent.map(withoutVersion);
      if (!sent.length) continue;
      const last = out.at(-1);
      if (last?.type === "send" && last.link === content.link) {
        last.messages.push(...content.messages);
        continue;
      }
    }
    out.push(content);
  }
  return out;
}

/** Return a client's message without the version, which is the default. */
function withoutVersion({ version, ...message }) {
  assert.ok(version === undefined || version === 1);
  return message;
}
