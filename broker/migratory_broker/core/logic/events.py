"""The events and effects of the logic: the whole interface of `Logic.step(event, now) -> effects`.

Times are seconds. `now` is the process's own monotonic clock; `sent` and `Publication.time` are wall-clock. Nothing
here touches a socket, a clock or ZooKeeper: the runtime and the simulation carry the effects out.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.messages import Ack, Nack, Server
from migratory_protocol.peer import ForwardedPublication, PeerMessage, Publication
from migratory_protocol.positions import Position
from msgspec import Struct, field


class EdgeMessage(Struct, frozen=True, gc=False, array_like=True, tag=True):
    """A message between the logic and an edge, sent as MessagePack if the edge is in an I/O process of its own."""


# ---- ZooKeeper, as plain operations ----------------------------------------------------------------------------


class ZkCreate(Struct, frozen=True, gc=False):
    """Create a node; an ephemeral one belongs to the session."""

    path: str
    data: bytes
    ephemeral: bool = False


class ZkWrite(Struct, frozen=True, gc=False):
    """Set a node's data. `version` -1 writes over any version."""

    path: str
    data: bytes
    version: int


class ZkDelete(Struct, frozen=True, gc=False):
    """Delete a node. `version` -1 deletes any version."""

    path: str
    version: int = -1


class ZkCheck(Struct, frozen=True, gc=False):
    """Refuse the transaction unless the node has this version."""

    path: str
    version: int


ZkOperation = ZkCreate | ZkWrite | ZkDelete | ZkCheck


class ZkNode(Struct, frozen=True, gc=False):
    """The result of a read. `owner` is the session of an ephemeral, 0 for a persistent node."""

    data: bytes
    version: int
    owner: int = 0


class ZkReply(Struct, frozen=True, gc=False):
    """Event: the reply to the request of the same number.

    `node` answers a get and `children` a listing; both are None if there is no such node. `versions` answer a
    transaction. `outcome`:

    - ok: the request was carried out. A read of a missing node is ok as well.
    - refused: a check, create, write or delete failed, so that the transaction changed nothing.
    - unknown: the connection broke meanwhile. The request may have been carried out or not.
    """

    request: int
    outcome: Literal["ok", "refused", "unknown"]
    node: ZkNode | None = None
    children: tuple[str, ...] | None = None
    versions: tuple[int, ...] = ()  # ok transaction: the version of each created or written node, -1 for others
    error: str = ""


class ZkSession(Struct, frozen=True, gc=False):
    """Event: the state of the ZooKeeper session. `session` is the id that owns this broker's ephemerals, 0 if none."""

    state: Literal["connected", "suspended", "lost"]
    session: int = 0


class ZkChanged(Struct, frozen=True, gc=False):
    """Event: a watch that a read has left fired. It fires once; read the node again."""

    path: str


class ZkGet(Struct, frozen=True, gc=False):
    """Effect: read a node, answered by a `ZkReply`."""

    request: int
    path: str
    watch: bool = False


class ZkChildren(Struct, frozen=True, gc=False):
    """Effect: list the children of a node, answered by a `ZkReply`."""

    request: int
    path: str
    watch: bool = False


class ZkCommit(Struct, frozen=True, gc=False):
    """Effect: carry out one transaction, all or nothing, answered by a `ZkReply`."""

    request: int
    operations: tuple[ZkOperation, ...]


# ---- other events ----------------------------------------------------------------------------------------------


class Start(Struct, frozen=True, gc=False):
    """The first event of a process. `wall_ms` is the wall clock at `now`; `seed` determines every random choice."""

    wall_ms: int
    seed: int


class Tick(Struct, frozen=True, gc=False):
    """Time has passed: sent about every 100 ms. All time limits are checked on it."""


class Flush(Struct, frozen=True, gc=False):
    """The end of a turn of the event loop in which other events came: send the batches."""


class PeerUp(Struct, frozen=True, gc=False):
    """A peer link, to the broker `peer`, stands.

    Until `PeerDown`, messages arrive in order and none is lost; after it, none arrives. A link with another cluster or
    protocol version is never reported.
    """

    peer: str
    incarnation: int


class PeerDown(Struct, frozen=True, gc=False):
    """The peer link to `peer` broke."""

    peer: str


class PeerReceived(Struct, frozen=True, gc=False):
    """Messages that came over the peer link to `peer` in one read, in order."""

    peer: str
    messages: tuple[PeerMessage, ...]


class PublishRequest(EdgeMessage, frozen=True, gc=False):
    """Publications of one client of `edge` in one read, in order.

    `reference` is the edge's own and comes back in the `PublishAnswers`. QoS 0 has no publisher, id or mark, and gets
    no answer.
    """

    edge: int
    reference: int
    publications: list[ForwardedPublication]


class Attach(EdgeMessage, frozen=True, gc=False):
    """A subscription to `topic` from behind `after`, or from now on if that is None.

    `snapshot` adds the latest publication. Answered by one `Attached`, after at most the resume limit.
    """

    edge: int
    reference: int
    topic: str
    after: Position | None
    snapshot: bool = False
    max_bytes: int = 65536


class NextPage(EdgeMessage, frozen=True, gc=False):
    """A request for the page of a replay that follows position `after`. Answered at once by a `Page`."""

    edge: int
    reference: int
    topic: str
    after: Position
    max_bytes: int = 65536


class ClientCounts(EdgeMessage, frozen=True, gc=False):
    """The number of clients of `edge`, by how often each moved lately: never, once, and so on. Empty when the edge has
    ended."""

    edge: int
    by_moves: tuple[int, ...] = ()


class BrokersConfigured(Struct, frozen=True, gc=False):
    """The cluster's configured brokers from now on, this one included."""

    brokers: tuple[str, ...]


class DrainRequest(Struct, frozen=True, gc=False):
    """The process is to end within `period` seconds: hand the groups over and leave the server list."""

    period: float


Event = (
    Start
    | Tick
    | Flush
    | ZkReply
    | ZkSession
    | ZkChanged
    | PeerUp
    | PeerDown
    | PeerReceived
    | PublishRequest
    | Attach
    | NextPage
    | ClientCounts
    | BrokersConfigured
    | DrainRequest
)

# ---- other effects ---------------------------------------------------------------------------------------------


class ConnectPeers(Struct, frozen=True, gc=False):
    """Keep peer links to exactly these brokers: name -> (incarnation, "host:port")."""

    peers: dict[str, tuple[int, str]]


class SendPeer(Struct, frozen=True, gc=False):
    """Send a message over the link to `peer`."""

    peer: str
    message: PeerMessage


class Fanout(EdgeMessage, frozen=True, gc=False):
    """To every edge, in order: deliver publications of one topic that were just committed here, oldest first."""

    topic: str
    publications: tuple[Publication, ...]


Receipt = Literal["complete", "truncated", "reset"]


class Gap(EdgeMessage, frozen=True, gc=False):
    """To every edge: notify live subscribers of `topic` of missing publications.

    `truncated`: sequence numbers `first`..`last` were evicted before they reached this broker. `reset`: another history
    starts at `position`.
    """

    topic: str
    receipt: Literal["truncated", "reset"]
    position: Position
    first: int = 0
    last: int = 0


class Attached(EdgeMessage, frozen=True, gc=False):
    """To one edge: the answer to `Attach`.

    `position` is the current (committed) position, `publications` the first page of the replay. With `done`, every
    later publication of the topic comes as a `Fanout` after this effect; otherwise the edge sends `NextPage` behind the
    last publication here. `first`..`last` are the missing sequence numbers of `truncated`. With a `code` the topic was
    refused, `text` gives the reason, and no other field counts.
    """

    edge: int
    reference: int
    topic: str
    receipt: Receipt
    position: Position
    publications: tuple[Publication, ...] = ()
    done: bool = True
    first: int = 0
    last: int = 0
    code: str = ""
    text: str = ""


class Page(EdgeMessage, frozen=True, gc=False):
    """To one edge: the next replay page, as in `Attached`.

    When eviction overtook the replay, `receipt` is `truncated` and `first`..`last` are missing before `publications`.
    When the history ended, it is `reset`.
    """

    edge: int
    reference: int
    topic: str
    publications: tuple[Publication, ...]
    done: bool
    receipt: Receipt = "complete"
    position: Position = field(default_factory=lambda: Position(0, 0))
    first: int = 0
    last: int = 0


class PublishAnswers(EdgeMessage, frozen=True, gc=False):
    """To one edge: the answers of one turn to one client's publications.

    An `Ack` without a position is for a duplicate whose entry is no longer cached. The codes of a `Nack` are "gap"
    (send again from the lowest waiting id), "retry" (no coordinator now; send again after `retry_after` seconds), and
    those of final errors.
    """

    edge: int
    reference: int
    answers: list[Ack | Nack]


class Admission(EdgeMessage, frozen=True, gc=False):
    """To every edge: accept clients or not.

    "learning" and "draining" only refuse new clients. With the other reasons the connected ones are closed as well
    (`ends`): "fenced" (go elsewhere; the client's blacklist applies), "drained" (the drain is over) and "stopping" (the
    broker ends without a drain).
    """

    open: bool
    reason: Literal["", "learning", "fenced", "stopping", "draining", "drained"] = ""

    @property
    def ends(self) -> bool:
        return not self.open and self.reason in ("fenced", "drained", "stopping")


class ServerList(EdgeMessage, frozen=True, gc=False):
    """To every edge: the brokers that accept clients, for `welcome`, `servers` and `/v1/servers`."""

    servers: tuple[Server, ...]


class DrainClients(EdgeMessage, frozen=True, gc=False):
    """To every edge: ask all clients to move to `servers` within `period` seconds."""

    period: float
    servers: tuple[Server, ...]


class MoveClients(EdgeMessage, frozen=True, gc=False):
    """To one edge: ask `count` clients, those that moved least, to move to `server` within `period` seconds.

    This broker keeps running, and a client that cannot reach the server stays.
    """

    edge: int
    count: int
    period: float
    server: Server


class Observe(EdgeMessage, frozen=True, gc=False):
    """A sample for a histogram or counter of docs/reference/metrics.md, without its common labels."""

    metric: str
    value: float = 1.0
    label: str = ""


class Note(EdgeMessage, frozen=True, gc=False):
    """A structured log line, for the operator on call.

    `connection` is that of an edge's client that the line is about, 0 if none. The process that has the socket adds the
    client's address.
    """

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: dict[str, object] = field(default_factory=dict)
    connection: int = 0


class Stop(Struct, frozen=True, gc=False):
    """End the process at once: a newer incarnation of its name lives, or its configuration cannot work."""

    reason: str
    code: int = 0


EdgeEffect = Fanout | Gap | Attached | Page | PublishAnswers | Admission | ServerList | DrainClients | MoveClients
Effect = ZkGet | ZkChildren | ZkCommit | ConnectPeers | SendPeer | EdgeEffect | Observe | Note | Stop
