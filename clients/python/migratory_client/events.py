"""What the client core is told and what it answers: the whole surface of `ClientCore.step(event, now) -> effects`.

Times are seconds of one monotonic clock, the caller's. A *link* is one connection attempt and what becomes of it: a
number that the core hands out with `Dial` and that is never used twice. A *ticket* is any object of the caller's that
stands for one publication; it comes back in exactly one `Answered` or `Failed`. These are msgspec structs, not
dataclasses, because a load generator makes one or two of them for every delivery.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.messages import BrokerMessage, ClientMessage, Message
from migratory_protocol.positions import Position
from msgspec import Struct

Cause = Literal["broken", "drained", "moved"]
"""Why a client changed its broker: the link ended by itself (or its broker, or it stood still); the broker leaves; the
broker asked this one to move because it had more clients than its share."""

# ---- events ----------------------------------------------------------------------------------------------------


class Open(Struct):
    """Connect, and stay connected until `Close`. Positions of an earlier life of this core are still known."""


class Close(Struct):
    """Leave every broker. What is still waiting to be published is given up, as `Failed` with code `closed`."""


class Connected(Struct):
    """The WebSocket handshake of `link` is done."""

    link: int


class Received(Struct):
    """What arrived on `link`, in order: any frame is a sign of life, also one without messages (a WebSocket ping)."""

    link: int
    messages: list[BrokerMessage]


class Lost(Struct):
    """`link` could not be made, or has ended. `code` is the WebSocket close code, 1006 when there was none."""

    link: int
    code: int = 1006
    reason: str = ""


class Token(Struct):
    """The answer to `AskToken`."""

    link: int
    token: str


class NoToken(Struct):
    """The other answer to `AskToken`: there is none now, `reason` says why. Tried again like any failed attempt."""

    link: int
    reason: str


class WantTopic(Struct):
    """Subscribe. Without `after`, the topic goes on where this client left it (`fresh`: from now on instead).
    With `snapshot` a new subscription begins with the latest publication. No effect on a topic wanted already."""

    topic: str
    after: Position | None = None
    snapshot: bool = False
    fresh: bool = False


class DropTopic(Struct):
    """Unsubscribe. `seen` is the last position that the application was given, when it is not the last delivered: a
    later subscription goes on behind it. For a topic that was left before, only `seen` is noted."""

    topic: str
    seen: Position | None = None


class Submit(Struct):
    """Publish. `sent` is the wall clock, for the subscribers' latency. QoS 0 is answered at once."""

    ticket: object
    topic: str
    payload: bytes
    qos: int = 1
    sent: float | None = None


class GiveUp(Struct):
    """The application waits for this publication no more. Final: no later answer counts. It may still be published."""

    ticket: object


class Tick(Struct):
    """Due at `ClientCore.deadline`; harmless at any other time."""


Event = Open | Close | Connected | Received | Lost | Token | NoToken | WantTopic | DropTopic | Submit | GiveUp | Tick

# ---- effects: what the caller does -----------------------------------------------------------------------------


class Dial(Struct):
    """Connect to `url`, then step `Connected` or `Lost`. The core itself watches the time limit."""

    link: int
    url: str


class AskToken(Struct):
    """Get a token, then step `Token` or `NoToken`. Only with `Settings.asks_token`."""

    link: int


class Send(Struct):
    """Write these messages to the link, in order."""

    link: int
    messages: list[ClientMessage]


class HangUp(Struct):
    """End the link after what was sent; the core has forgotten it. `abort`: the peer is dead, wait for nothing."""

    link: int
    abort: bool = False


# ---- effects: what the application learns ----------------------------------------------------------------------


class Deliver(Struct):
    """The next publication of its topic: the positions of a topic rise strictly. The core's own position has moved
    before this is handed out."""

    link: int
    message: Message


class Receipt(Struct):
    """Where a subscription stands. Never skipped, so that no gap is silent. `position` is the topic's newest as the
    broker knows it; the stream goes on behind `after`. `before`: under `reset`, where this subscription stood until
    then, if it had a position. The two are of different histories: how much lies between them nobody knows.

    complete   nothing is missing up to `position`
    truncated  the sequence numbers `first`..`last` are gone for good
    reset      another history: the old one is lost, with an unknown number of publications
    hole       `first`..`last` did not come although the broker announced no gap: a fault of the broker, reported
    """

    topic: str
    kind: Literal["complete", "truncated", "reset", "hole"]
    position: Position | None
    after: Position | None
    first: int = 0
    last: int = 0
    resumed: bool = False  # of a subscription that had a position before
    before: Position | None = None


class Refused(Struct):
    """This subscription is not accepted, and is dropped."""

    topic: str
    code: str
    text: str


class Answered(Struct):
    """Published and safe. `position` is None for QoS 0, and for a repeat whose publication is no longer cached."""

    ticket: object
    position: Position | None


class Failed(Struct):
    """Not published, or not known to be: after `timeout` and `closed` it may still appear. `code` is the broker's
    error code, or one of: timeout, closed, too_many_waiting, not_connected, too_large, bad_topic."""

    ticket: object
    code: str
    text: str


class LinkUp(Struct):
    """The broker said welcome."""

    link: int
    url: str
    cluster: str
    broker: str
    incarnation: int


class LinkDown(Struct):
    """A link that served the application has ended; each `LinkUp` is followed by one, unless the client is closed.
    `replaced`: another one had taken over before, else another follows by itself."""

    link: int
    code: int
    reason: str
    cause: Cause = "broken"
    replaced: bool = False


class Ready(Struct):
    """Every subscription has its receipt on the present link. `seconds` since the link before was lost (0 after a
    move, when none was lost; None on the first link)."""

    link: int
    seconds: float | None


class Problem(Struct):
    """Something a person should read. `code` is an error code of the broker, `connect_failed`, `bad_server`,
    `no_servers`, `no_token`. `fatal`: trying again will hardly help, the client tries all the same."""

    code: str
    text: str
    fatal: bool = False


Effect = (
    Dial
    | AskToken
    | Send
    | HangUp
    | Deliver
    | Receipt
    | Refused
    | Answered
    | Failed
    | LinkUp
    | LinkDown
    | Ready
    | Problem
)
