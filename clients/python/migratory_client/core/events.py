"""Events and effects of the client core: the whole interface of `ClientCore.step(event, now) -> effects`.

Times are seconds of one monotonic clock, which the driver chooses. A *link* is one connection attempt and the
connection that results from it. The core numbers links in the order of `Dial`, and uses no number twice. A *ticket* is
any object by which the application knows one publication. It comes back in exactly one `Acknowledged` or
`PublishFailed`. All types are msgspec structs, which are cheap to create: a load generator creates one or two of them
for every delivery.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.messages import BrokerMessage, ClientMessage, Message
from migratory_protocol.positions import Position
from msgspec import Struct

Cause = Literal["broken", "drained", "moved"]
"""The reason for which a client changed its broker. `broken`: the connection ended or timed out. `drained`: the broker
is leaving the cluster. `moved`: the broker has more clients than its share, and asked this one to move."""

# ---- events: given by the driver ---------------------------------------------------------------------------------


class Open(Struct):
    """Connect, and stay connected until `Close`. Positions from before an earlier `Close` are still known."""


class Close(Struct):
    """Leave every broker. Publications without an answer end with `PublishFailed` and the code `closed`."""


class Connected(Struct):
    """The WebSocket handshake of `link` is complete."""

    link: int


class Received(Struct):
    """Messages that arrived on `link`, in order. Empty for a frame without messages, such as a WebSocket ping, which
    shows that the broker is alive."""

    link: int
    messages: list[BrokerMessage]


class Disconnected(Struct):
    """`link` could not be connected, or its connection ended. `code` is the WebSocket close code, or 1006 without a
    close frame."""

    link: int
    code: int = 1006
    reason: str = ""


class Token(Struct):
    """The token that `RequestToken` asked for."""

    link: int
    token: str


class TokenFailed(Struct):
    """No token could be obtained after `RequestToken`; `reason` says why. The core retries it as a failed attempt."""

    link: int
    reason: str


class SubscribeTopic(Struct):
    """Subscribe to `topic`. No effect when it is subscribed already.

    The stream resumes after the position `after`, or without one where this client left the topic. `fresh` ignores the
    remembered position and starts with the next publication. `snapshot` starts a new subscription with the topic's
    latest publication."""

    topic: str
    after: Position | None = None
    snapshot: bool = False
    fresh: bool = False


class UnsubscribeTopic(Struct):
    """Unsubscribe from `topic`. `seen` is the last position that the application was given, if it is not the last
    delivered one: a later subscription resumes after it. For a topic that is not subscribed, only `seen` is stored."""

    topic: str
    seen: Position | None = None


class Submit(Struct):
    """Publish `payload`. `sent` is the wall clock in seconds, from which subscribers compute the latency. QoS 0 is
    answered at once."""

    ticket: object
    topic: str
    payload: bytes
    qos: int = 1
    sent: float | None = None


class GiveUp(Struct):
    """Stop waiting for the answer of a publication. Later answers are ignored; it may still be published."""

    ticket: object


class Tick(Struct):
    """The time `ClientCore.deadline` has come. Harmless at any other time."""


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
    """Connect to `url`, then step `Connected` or `Disconnected`. The core enforces the time limit."""

    link: int
    url: str


class RequestToken(Struct):
    """Obtain a token, then step `Token` or `TokenFailed`. Only with `Settings.request_token`."""

    link: int


class Send(Struct):
    """Write these messages to the link, in order."""

    link: int
    messages: list[ClientMessage]


class Disconnect(Struct):
    """End the link after everything that was sent on it. The core ignores later events of the link. `abort`: the broker
    does not answer, so end the connection without a closing handshake."""

    link: int
    abort: bool = False


# ---- effects: passed to the application ----------------------------------------------------------------------------


class Deliver(Struct):
    """The next publication of its topic. The positions of a topic strictly increase. The core has advanced its own
    position before it returns this effect."""

    link: int
    message: Message


class Receipt(Struct):
    """The state of a subscription, as the broker reported it. Never skipped, so that every gap is reported.

    `position` is the topic's newest position at the broker. The stream continues after the position `after`. With
    `reset`, `before` is the subscription's position until then, if it had one. `before` and `after` belong to different
    histories, so the number of publications between them is unknown.

    complete   nothing is missing up to `position`
    truncated  the sequence numbers `first` to `last` are no longer available
    reset      the topic has another history: an unknown number of publications of the old one is lost
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


class SubscribeRefused(Struct):
    """The broker refused the subscription, which has ended."""

    topic: str
    code: str
    text: str


class Acknowledged(Struct):
    """The publication is stored. `position` is None for QoS 0, and for a repeat that an older broker acknowledges
    although its publication is no longer cached."""

    ticket: object
    position: Position | None


class PublishFailed(Struct):
    """The publication was refused, or its outcome is unknown: after `timeout` and `closed` it may still be published,
    and after `outcome_unknown` it may have been.
    `code` is the broker's error code, or one of timeout, closed, too_many_waiting, not_connected, too_large,
    bad_topic."""

    ticket: object
    code: str
    text: str


class LinkUp(Struct):
    """The broker accepted the client with `welcome`."""

    link: int
    url: str
    cluster: str
    broker: str
    incarnation: int


class LinkDown(Struct):
    """A link that was up has ended. Each `LinkUp` is followed by one, unless the client is closed. `replaced`: another
    link was up before this one ended. Otherwise the core reconnects."""

    link: int
    code: int
    reason: str
    cause: Cause = "broken"
    replaced: bool = False


class Ready(Struct):
    """Every subscription has its receipt on the current link. `seconds` is the time since the previous link was lost:
    0 after a move, which loses none, and None on the first link."""

    link: int
    seconds: float | None


class Problem(Struct):
    """A condition that a person should read. `code` is an error code of the broker, or one of `connect_failed`,
    `bad_server`, `no_servers`, `no_token`. `fatal`: retries will probably fail too; the client retries nevertheless."""

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
