// Compiled by `npm run types`, never run: each line is a use that must be allowed, or one that must not.
import { createFallbackSocket, FallbackSocket } from "migratory-client/http";
import { Client, comparePositions, GapError, type Message, type Position, PublishError, type Receipt } from "migratory-client";
import { WebSocket } from "ws";

const client = new Client(["ws://a/ws", { url: "wss://b/ws", weight: 50 }], {
  token: async () => "t",
  WebSocket,
  backoffCap: 10,
});
client.addEventListener("disconnected", ({ code, reason, final, cause }) => {
  const all: [number, string, boolean, "broken" | "drained" | "moved" | null] = [code, reason, final, cause];
  return all;
});
client.addEventListener("receipt", (receipt: Event & Receipt) => receipt.after);
const state: "connecting" | "connected" | "disconnected" = client.state;
const stored: Promise<Position | null> = client.publish("t", new Uint8Array(3), { qos: 1, signal: AbortSignal.timeout(9) });
const stream = client.subscribe(new Set(["t"]), { after: { t: "1:2" }, snapshot: true });
stream.addEventListener("message", ({ message }) => message.json<{ price: number }>().price);
stream.addEventListener("gap", ({ kind, first }) => [kind, first]);
for await (const message of stream) {
  const given: Message = message;
  const bytes: Uint8Array = given.bytes;
  [bytes, comparePositions(given.position, "1:2") > 0].length;
}
try {
  await stored;
} catch (error) {
  if (error instanceof PublishError) [error.code, error.isUnknown].length;
  if (error instanceof GapError) error.receipt.first?.length;
}
await client.close({ flush: 0 });

new Client(["ws://a/ws"], { WebSocket: FallbackSocket });
new Client([], { WebSocket: createFallbackSocket({ times: { firstProbe: 1000 } }) });
// @ts-expect-error: no such time
createFallbackSocket({ times: { probe: 1 } });

// @ts-expect-error: an array of servers
new Client("ws://a/ws");
// @ts-expect-error: no such option
new Client([], { backofCap: 1 });
// @ts-expect-error: no such event
client.addEventListener("conected", () => {});
// @ts-expect-error: 0 or 1
client.publish("t", "x", { qos: 2 });
// @ts-expect-error: numbers are no payload
client.publish("t", 1.0842);
// @ts-expect-error: a position is "epoch:sequence"
client.subscribe("t", { after: "12" });
// @ts-expect-error: read only
client.state = state;
