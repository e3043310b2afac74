/** The client of Migratory for browsers and Node.js: docs/reference/client-js.md. */

import { comparePositions as compare, parsePosition } from "./core/protocol.js";

export { Client } from "./client.js";
export { Closed, ConnectError, GapError, MigratoryError, PublishError, SubscribeError } from "./errors.js";
export { Message } from "./core/protocol.js";
export { Subscription } from "./subscription.js";

/** Return a negative number, 0 or a positive number when position `a` is before, at or behind `b`, for `sort`. */
export const comparePositions = (a, b) => compare(parsePosition(a), parsePosition(b));
