"""Events and effects of the client core: the whole interface of `ClientCore.step(event, now) -> effects`, for its
drivers.

Times are seconds of one monotonic clock, which the driver chooses. A *link* is one connection attempt and the
connection that results from it. The core numbers links in the order of `Dial`, and uses no number twice. A *ticket* is
any object by which the application knows one publication. It comes back in exactly one `Acknowledged` or
`PublishFailed`, or in none after `GiveUp`. All types are msgspec structs, which are cheap to create: a load generator
creates one or two of them for every delivery.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.errors import OUTCOME_UNKNOWN, UNAUTHENTICATED
from migratory_protocol.messages import BrokerMessage, ClientMessage, Message
from migratory_protocol.positions import Position
from msgspec import Struct

Cause = Literal["broken", "drained", "moved"]
"""The reason for which a client changed its broker. `broken`: the connection ended or timed out. `drained`: the broker
is leaving the cluster. `moved`: the broker has more clients than its share, and asked this one to move."""

# ---- events: given by the driver ---------------------------------------------------------------------------------


class Open(Struct):
    """Event: connect to a broker, and reconnect until `Close`, or until a broker refuses the client's identity for
    good. Positions from before an earlier `Close` are still known."""


class Close(Struct):
    """Event: disconnect, and stop reconnecting. Subscriptions end, and publications without an answer end with
    `PublishFailed` and the code `closed`."""


class Connected(Struct):
    """Event: the WebSocket handshake of `link` is complete."""

    link: int


class Received(Struct):
    """Event: messages that arrived on `link`, in order. Empty for a frame without messages, such as a WebSocket ping,
    which shows that the broker is alive."""

    link: int
    messages: list[BrokerMessage]


class Disconnected(Struct):
    """Event: `link` could not be connected, or its connection ended. `code` is the WebSocket close code, or 1006
    without a close frame."""

    link: int
    code: int = 1006
    reason: str = ""


class Token(Struct):
    """Event: the token that the effect `RequestToken` asked for."""

    link: int
    token: str


class TokenFailed(Struct):
    """Event: no token could be obtained after `RequestToken`; `reason` says why. The core ends the attempt to connect
    and makes another one later. If a current link was to get a new token, it only reports the problem: the link ends
    with its old token."""

    link: int
    reason: str


class SubscribeTopic(Struct):
    """Event: subscribe to `topic`. Nothing happens if it is subscribed already.

    The stream resumes after the position `after`, or without one where this client left the topic. `fresh` ignores the
    remembered position and starts with the next publication. `snapshot` starts a subscription that has no position with
    the topic's latest publication.
    """

    topic: str
    after: Position | None = None
    snapshot: bool = False
    fresh: bool = False


class UnsubscribeTopic(Struct):
    """Event: unsubscribe from `topic`. `seen` is the last position that the application was given, if it is not the
    last delivered one: a later subscription resumes after it. For a topic that is not subscribed, only `seen` replaces
    the remembered position."""

    topic: str
    seen: Position | None = None


class Submit(Struct):
    """Event: publish `payload`. `sent` is the wall clock in seconds, from which subscribers compute the latency; None
    without. QoS 0 is answered at once."""

    ticket: object
    topic: str
    payload: bytes
    qos: int = 1
    sent: float | None = None


class GiveUp(Struct):
    """Event: stop waiting for the answer of a publication. Its ticket does not come back, and later answers are
    ignored. The publication may still be stored."""

    ticket: object


class Tick(Struct):
    """Event: the time `ClientCore.deadline` has come. Harmless at any other time."""


Event = (
    Open
    | Close
    | Connected
    | Received
    | Disconnected
    | Token
    | TokenFailed
    | SubscribeTopic
    | UnsubscribeTopic
    | Submit
    | GiveUp
    | Tick
)

# ---- effects: carried out by the driver ----------------------------------------------------------------------------


class Dial(Struct):
    """Effect: connect to `url`, then step the core with `Connected` or `Disconnected`. The core enforces the time
    limit."""

    link: int
    url: str


class RequestToken(Struct):
    """Effect: obtain a token, then step the core with `Token` or `TokenFailed`. Only with `Settings.request_token`."""

    link: int


class Send(Struct):
    """Effect: write these messages to the link, in order."""

    link: int
    messages: list[ClientMessage]


class Disconnect(Struct):
    """Effect: end the link after everything that was sent on it. The core ignores later events of the link. `abort`:
    the broker does not answer, so end the connection at once, without a closing handshake."""

    link: int
    abort: bool = False


# ---- effects: passed to the application ----------------------------------------------------------------------------


class Deliver(Struct):
    """Effect for the application: the next publication of its topic. The positions of a subscription strictly increase,
    except after a `Receipt` with `reset`. The core has advanced its own position before it returns this effect."""

    link: int
    message: Message


class Receipt(Struct):
    """Effect for the application: the state of a subscription, as the broker reported it or the core noticed it
    (`hole`, and a `reset` that the broker did not report). None is left out, so that every gap is reported.

    `position` is the topic's newest position at the broker. The stream continues after the position `after`. With
    `reset`, `after` is where the new history starts for the subscription, and `before` is its position until then, if
    it had one. They belong to different histories unless `not_replayed`, so the number of publications between them is
    unknown.

    complete   nothing is missing up to `position`
    truncated  the sequence numbers `first` to `last` are no longer available
    reset      the topic has another history: an unknown number of publications of the old one is lost. Or the client
               may not read the history (`not_replayed`)
    hole       `first` to `last` are missing although the broker reported no gap: a fault of the broker
    """

    topic: str
    kind: Literal["complete", "truncated", "reset", "hole"]
    position: Position | None
    after: Position | None
    first: int = 0
    last: int = 0
    resumed: bool = False  # the subscription had a position before
    before: Position | None = None

    @property
    def not_replayed(self) -> bool:
        """True if `reset` and the topic's history is known to go on: nothing is lost before `before`, and the broker
        does not replay what follows it, because the client may not read the history."""
        before, after = self.before, self.after
        if self.kind != "reset" or before is None or after is None:
            return False
        return before.epoch == after.epoch and before.sequence <= after.sequence


class SubscribeRefused(Struct):
    """Effect for the application: the subscription to `topic` was refused, by the broker or for a malformed topic, and
    has ended."""

    topic: str
    code: str
    text: str


class Acknowledged(Struct):
    """Effect for the application: the publication is stored, or with QoS 0 sent. `position` is None for QoS 0, and for
    a repeat that an older broker acknowledges although its publication is no longer cached."""

    ticket: object
    position: Position | None


class PublishFailed(Struct):
    """Effect for the application: the publication was refused, or its outcome is unknown (`UNKNOWN_OUTCOMES`). After
    `timeout`, `closed` and `unauthenticated` it may still be published, and after `outcome_unknown` it may have been.

    `code` is the broker's error code, or one of timeout, closed, too_many_waiting, not_connected, too_large, bad_topic.
    """

    ticket: object
    code: str
    text: str


UNKNOWN_OUTCOMES = frozenset({"timeout", "closed", UNAUTHENTICATED, OUTCOME_UNKNOWN})
"""The codes of `PublishFailed` after which the publication may still be published, or may have been. Every other code
is a refusal."""


class LinkUp(Struct):
    """Effect for the application: the broker accepted the client on this link, with the message `welcome`."""

    link: int
    url: str
    cluster: str
    broker: str
    incarnation: int


class LinkDown(Struct):
    """Effect for the application: a link that was up has ended. Each `LinkUp` is followed by one, unless the client is
    closed. `replaced`: another link was up before this one ended. Otherwise the core reconnects."""

    link: int
    code: int
    reason: str
    cause: Cause = "broken"
    replaced: bool = False


class Ready(Struct):
    """Effect for the application: every subscription was answered on the current link: it has its receipt, or an
    overloaded broker refused it and it will be requested again. `seconds` is the time since the previous link was lost:
    0 after a move, which loses none, and None on the first link."""

    link: int
    seconds: float | None


class Problem(Struct):
    """Effect for the application: a condition that a person should read. `code` is an error code of the broker, or one
    of `connect_failed`, `bad_server`, `no_servers`, `no_token`, `token_expiring`. `fatal`: retries will probably fail
    too. The client retries nevertheless, except after `unauthenticated`, with which it closes."""

    code: str
    text: str
    fatal: bool = False


Effect = (
    Dial
    | RequestToken
    | Send
    | Disconnect
    | Deliver
    | Receipt
    | SubscribeRefused
    | Acknowledged
    | PublishFailed
    | LinkUp
    | LinkDown
    | Ready
    | Problem
)
