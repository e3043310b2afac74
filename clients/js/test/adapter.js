// A client core that another process drives, for tests in Python (migratory_testing/corejson.py): one line of JSON for
// each request and each answer. The first request creates the core.
import { createInterface } from "node:readline";

import { decode, makePayload } from "../src/core/protocol.js";
import { parseServers } from "../src/core/servers.js";
import { ClientCore } from "../src/core/session.js";

export function createCore({ servers, random, options }) {
  let drawn = 0;
  return new ClientCore(parseServers(servers)[0], () => random[drawn++ % random.length], options);
}

/** Give an event in JSON to the core. Return its effects in JSON. */
export function step(core, event, now) {
  const given = { ...event };
  if (event.type === "submit") Object.assign(given, { qos: event.qos ?? 1, payload: makePayload(event.payload) });
  if (event.type === "received") given.messages = decode(JSON.stringify(event.messages));
  return core.step(given, now).map((effect) => {
    if (effect.type !== "deliver") return effect;
    const { topic, position, text } = effect.message;
    return { ...effect, message: { topic, position, data: text } };
  });
}

if (import.meta.filename === process.argv[1]) {
  let core;
  for await (const line of createInterface({ input: process.stdin })) {
    const { event, now, ...created } = JSON.parse(line);
    core ??= createCore(created);
    const effects = event ? step(core, event, now) : [];
    const { deadline, closed, reconnects, publisher } = core;
    console.log(JSON.stringify({
      effects,
      deadline: deadline === Infinity ? null : deadline,
      closed,
      reconnects: Object.values(reconnects).reduce((sum, count) => sum + count),
      waiting: publisher.waiting,
    }));
  }
}
