// Follow a topic in Node.js where WebSocket is blocked until a line comes from standard input. Print a line of JSON for
// each message, each state and each WebSocket that opens, until standard input ends.
import { createRequire } from "node:module";

import { createFallbackSocket } from "../../../clients/js/src/http.js";
import { Client } from "../../../clients/js/src/index.js";

const { WebSocket } = createRequire(new URL("../../../clients/js/", import.meta.url))("ws");
const print = (content) => process.stdout.write(`${JSON.stringify(content)}\n`);
let blocked = true;

class Blocked extends WebSocket {
  constructor(url, protocol) {
    super(blocked ? "ws://127.0.0.1:9/ws" : url, protocol);
    this.once("open", () => print({ state: "websocket" }));
  }
}

const times = { firstProbe: 1000, lastProbe: 1000, early: 200 };
const client = new Client(process.argv.slice(3), { WebSocket: createFallbackSocket({ WebSocket: Blocked, times }) });
for (const state of ["connecting", "connected", "disconnected"]) {
  client.addEventListener(state, ({ broker, code, final }) => print({ state, broker, code, final }));
}
client.connect();
process.stdin.on("data", () => (blocked = false)).on("end", () => client.close()).resume();
for await (const { text } of client.subscribe(process.argv[2])) print({ text });
