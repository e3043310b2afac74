// Follow a topic in Node.js. Print a line of JSON for each message and each state, until standard input ends.
import { createRequire } from "node:module";

import { Client } from "../../../clients/js/src/index.js";

const { WebSocket } = createRequire(new URL("../../../clients/js/", import.meta.url))("ws");
const print = (content) => process.stdout.write(`${JSON.stringify(content)}\n`);

const client = new Client(process.argv.slice(3), { WebSocket });
for (const state of ["connecting", "connected", "disconnected"]) {
  client.addEventListener(state, ({ broker, code, final }) => print({ state, broker, code, final }));
}
client.connect();
process.stdin.on("end", () => client.close()).resume();
for await (const { text } of client.subscribe(process.argv[2])) print({ text });
