/** The errors of the client. `code` is an error code of the protocol, or one of the client itself. */

import { parsePosition } from "./core/protocol.js";

export class MigratoryError extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

/** A broker refused the client's token for good, and the client is closed. */
export class ConnectError extends MigratoryError {}

/**
 * A publication failed. It was not stored, unless `isUnknown`: after the codes timeout, closed, unauthenticated and
 * outcome_unknown it may have been, and publishing it again may duplicate it.
 */
export class PublishError extends MigratoryError {
  get isUnknown() {
    return ["timeout", "closed", "unauthenticated", "outcome_unknown"].includes(this.code);
  }
}

/** A subscription to one topic was refused, or a newer subscription took the topic over. Others are not affected. */
export class SubscribeError extends MigratoryError {
  constructor(code, topic, text) {
    super(code, `${topic}: ${text}`);
    this.topic = topic;
  }
}

/** Publications are missing at this point of the stream; `receipt` says which. Iterate again to continue. */
export class GapError extends MigratoryError {
  constructor(receipt) {
    super(receipt.kind, `${receipt.topic}: ${describeGap(receipt)}; read on`);
    this.receipt = receipt;
  }
}

/** The client is closed: call `connect`. */
export class Closed extends MigratoryError {
  constructor() {
    super("closed", "the client is closed: call `connect` first");
  }
}

const named = { MigratoryError, ConnectError, PublishError, SubscribeError, GapError, Closed };
for (const name in named) named[name].prototype.name = name; // classes have other names once they are minified

function describeGap({ kind, after, before, first, last }) {
  if (kind !== "reset") return `the publications ${first} to ${last} are missing (${kind})`;
  const [old, start] = [before ?? "0:1", after ?? "0:0"].map(parsePosition);
  const isLost = old.epoch !== start.epoch || old.sequence > start.sequence;
  return `the history after ${before ?? "its start"} ${isLost ? "is lost" : "is not replayed"}`;
}
