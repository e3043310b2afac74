"""The events and effects of the logic: the whole interface of `Logic.step(event, now) -> effects`, for runtime and
simulation.

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
    """The base class of messages between the logic and an edge. Where the edge is in an I/O process, they are sent to
    it and back as MessagePack."""


# ---- ZooKeeper, as plain operations ----------------------------------------------------------------------------


class ZkCreate(Struct, frozen=True, gc=False):
    """ZooKeeper operation: create a node, which must not exist. An `ephemeral` node belongs to the broker's session and
    is deleted with it."""

    path: str
    data: bytes
    ephemeral: bool = False


class ZkWrite(Struct, frozen=True, gc=False):
    """ZooKeeper operation: set a node's data if the node has this version, else refuse the transaction. `version` -1:
    the node may have any version, but must exist."""

    path: str
    data: bytes
    version: int


class ZkDelete(Struct, frozen=True, gc=False):
    """ZooKeeper operation: delete a node if it has this version, else refuse the transaction. `version` -1: the node
    may have any version, but must exist."""

    path: str
    version: int = -1


class ZkCheck(Struct, frozen=True, gc=False):
    """ZooKeeper operation: refuse the whole transaction unless the node has this version. `version` -1: unless the node
    exists."""

    path: str
    version: int


ZkOperation = ZkCreate | ZkWrite | ZkDelete | ZkCheck


class ZkNode(Struct, frozen=True, gc=False):
    """A node as it was read from ZooKeeper. `version` rises with each write of its data. `owner` is the session id of
    an ephemeral, 0 for a persistent node."""

    data: bytes
    version: int
    owner: int = 0


class ZkReply(Struct, frozen=True, gc=False):
    """Event: the reply to the ZooKeeper request with the number `request`.

    `node` answers a get and `children` a listing; both are None if there is no such node. `versions` answer a
    transaction. `error` gives the reason of an outcome other than ok. `outcome`:

    - ok: the request was carried out. A read of a missing node is ok as well.
    - refused: ZooKeeper did not carry it out. A transaction changed nothing: a check, create, write or delete failed.
    - unknown: the connection broke, or no answer came in time. The request may have been carried out or not.
    """

    request: int
    outcome: Literal["ok", "refused", "unknown"]
    node: ZkNode | None = None
    children: tuple[str, ...] | None = None
    versions: tuple[int, ...] = ()  # ok transaction: the version of each created or written node, -1 for others
    error: str = ""


class ZkSession(Struct, frozen=True, gc=False):
    """Event: the ZooKeeper connection changed its state. `session`, given only with "connected", is the id of the
    session that owns the ephemerals which this broker creates from now on. While "suspended", that session may go on in
    ZooKeeper; "lost": it has ended."""

    state: Literal["connected", "suspended", "lost"]
    session: int = 0


class ZkChanged(Struct, frozen=True, gc=False):
    """Event: a node changed on which an earlier read with `watch` left a watch. A watch fires once; read the node
    again."""

    path: str


class ZkGet(Struct, frozen=True, gc=False):
    """Effect: read a node's data, answered by a `ZkReply`. `watch`: send `ZkChanged` at the node's next change, its
    creation and deletion included."""

    request: int
    path: str
    watch: bool = False


class ZkChildren(Struct, frozen=True, gc=False):
    """Effect: list the children of a node, answered by a `ZkReply`. `watch`: send `ZkChanged` when a child is added or
    removed."""

    request: int
    path: str
    watch: bool = False


class ZkCommit(Struct, frozen=True, gc=False):
    """Effect: carry out one transaction, all operations in their order or none, answered by a `ZkReply`."""

    request: int
    operations: tuple[ZkOperation, ...]


# ---- other events ----------------------------------------------------------------------------------------------


class Start(Struct, frozen=True, gc=False):
    """Event: the process begins; always the first event. `wall_ms` is the wall clock at this step's `now`, in
    milliseconds since 1970; `seed` determines every random choice."""

    wall_ms: int
    seed: int


class Tick(Struct, frozen=True, gc=False):
    """Event, for both cores: time has passed. It comes about every 100 ms, and all time limits are checked on it.
    `wall` is the wall clock, in seconds since 1970, for an edge that checks tokens; else 0."""

    wall: float = 0.0


class Flush(Struct, frozen=True, gc=False):
    """Event: the end of a turn in which other events came. The logic now sends what it has collected in the turn, such
    as entries and votes for other brokers, and answers for publishers."""


class PeerUp(Struct, frozen=True, gc=False):
    """Event: a link to the broker `peer` in the incarnation `incarnation` is open.

    Until `PeerDown`, messages arrive in order and none is lost; after it, none arrives. A link to a broker of another
    cluster or protocol version is never reported.
    """

    peer: str
    incarnation: int


class PeerDown(Struct, frozen=True, gc=False):
    """Event: the peer link to the broker `peer` broke."""

    peer: str


class PeerRefused(Struct, frozen=True, gc=False):
    """Event: the link to this incarnation of the broker `peer` broke, and a new connection to its address was refused.

    Nothing listens there: its process is gone, or something between the brokers refuses in its place.
    """

    peer: str
    incarnation: int


class PeerReceived(Struct, frozen=True, gc=False):
    """Event: messages that came over the peer link to `peer` in one read, in order."""

    peer: str
    messages: tuple[PeerMessage, ...]


class PublishRequest(EdgeMessage, frozen=True, gc=False):
    """Event: publications of one client of `edge` from one read, in order.

    `reference` is the number of the client's connection, and comes back in the `PublishAnswers`. A QoS 0 publication
    has no publisher, id or mark, and gets no answer.
    """

    edge: int
    reference: int
    publications: list[ForwardedPublication]


class Attach(EdgeMessage, frozen=True, gc=False):
    """Event: a request of an edge for a subscription to `topic`, from the publication after `after` on (None: from now
    on). The answer is one `Attached`, at the latest after the resume limit. `reference` is chosen by the edge and comes
    back in it.

    `snapshot` without `after` asks for the latest publication too. `max_bytes` limits the payloads in the answer, but a
    first publication of any size is sent.
    """

    edge: int
    reference: int
    topic: str
    after: Position | None
    snapshot: bool = False
    max_bytes: int = 65536


class NextPage(EdgeMessage, frozen=True, gc=False):
    """Event: a request of an edge for the replay page that follows position `after`, of up to `max_bytes` bytes of
    payload, but with one publication at least if there is one. Answered at once by a `Page` with the same
    `reference`."""

    edge: int
    reference: int
    topic: str
    after: Position
    max_bytes: int = 65536


class ClientCounts(EdgeMessage, frozen=True, gc=False):
    """Event: the number of clients of `edge`, by how often each moved lately: never, once, twice, three times or more,
    and last those that this broker has asked to move. `by_moves` is empty when the edge has ended."""

    edge: int
    by_moves: tuple[int, ...] = ()


class BrokersConfigured(Struct, frozen=True, gc=False):
    """Event: the names of the cluster's configured brokers from now on, without those that will be removed, but with
    this one in any case."""

    brokers: tuple[str, ...]


class WeightConfigured(Struct, frozen=True, gc=False):
    """Event: this broker's weight in the server list from now on."""

    weight: int


class DrainRequest(Struct, frozen=True, gc=False):
    """Event: this broker is to leave within `period` seconds. It hands its groups over, leaves the server list and asks
    its clients to move. `Logic.drained` says when the process may end."""

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
    | PeerRefused
    | PeerReceived
    | PublishRequest
    | Attach
    | NextPage
    | ClientCounts
    | BrokersConfigured
    | WeightConfigured
    | DrainRequest
)

# ---- other effects ---------------------------------------------------------------------------------------------


class ConnectPeers(Struct, frozen=True, gc=False):
    """Effect: connect to exactly these brokers, and close links to others. `peers`: name -> (incarnation, "host:port"),
    from what the brokers wrote to ZooKeeper.

    No link to another incarnation is reported with `PeerUp`.
    """

    peers: dict[str, tuple[int, str]]


class SendPeer(Struct, frozen=True, gc=False):
    """Effect: send a message over the link to `peer`."""

    peer: str
    message: PeerMessage


class RefusePeer(Struct, frozen=True, gc=False):
    """Effect: end the link to `peer`, which sent a message that breaks the rules. The logic handles no later message of
    that link.

    `reason` is the label of `migratory_peer_messages_refused_total`, `text` says which message broke which rule.
    """

    peer: str
    reason: str
    text: str


class Fanout(EdgeMessage, frozen=True, gc=False):
    """Effect, to every edge: deliver publications of one topic that were just committed at this broker, oldest
    first."""

    topic: str
    publications: tuple[Publication, ...]


Receipt = Literal["complete", "truncated", "reset"]


class Gap(EdgeMessage, frozen=True, gc=False):
    """Effect, to every edge: report missing publications to the live subscribers of `topic`.

    `truncated`: this broker has none of the sequence numbers `first`..`last`, because they were evicted elsewhere
    before they came here, or because a removed topic begins again above the floor. `position` is that of `last`.
    `reset`: the topic is of another history now; `position` is the current one there, and `first` and `last` are 0.
    """

    topic: str
    receipt: Literal["truncated", "reset"]
    position: Position
    first: int = 0
    last: int = 0


class Attached(EdgeMessage, frozen=True, gc=False):
    """Effect, to one edge: the answer to its `Attach` with the same `reference`.

    `position` is the current (committed) position, `publications` the first page of the replay, or the snapshot. With
    `done`, every later publication of the topic comes as a `Fanout` after this effect; otherwise the edge sends
    `NextPage` for those after the last publication here. `first`..`last` are the missing sequence numbers of
    `truncated`. With a `code` the topic was refused, `text` gives the reason, and no other field counts.
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
    """Effect, to one edge: the answer to its `NextPage` with the same `reference`. `publications`, `done`, `position`,
    `first` and `last` are as in `Attached`.

    When publications after the requested position were evicted meanwhile, `receipt` is `truncated`, and `first`..`last`
    are missing before `publications`. When the history ended, it is `reset`.
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
    """Effect, to one edge: the answers of one turn to the publications of the client with this `reference`.

    The codes of a `Nack` are "gap" (send again from the lowest unanswered id), "retry" (not possible now; send again
    after `retry_after` seconds), and those of final errors. An `Ack` has no position if a coordinator of an older
    version acknowledged a duplicate that is no longer cached.
    """

    edge: int
    reference: int
    answers: list[Ack | Nack]


class Admission(EdgeMessage, frozen=True, gc=False):
    """Effect, to every edge: whether to accept clients, and the `reason` if not.

    "learning" and "draining" only refuse new clients. With the other reasons but "" the connected clients are closed as
    well (`ends` is then True): "fenced" (clients must go elsewhere, and blacklist this broker), "drained" (the drain is
    over: the process ends, or this broker fenced itself while it drained) and "stopping" (the process ends without a
    drain). "" gives no reason and only refuses new clients.
    """

    open: bool
    reason: Literal["", "learning", "fenced", "stopping", "draining", "drained"] = ""

    @property
    def ends(self) -> bool:
        return not self.open and self.reason in ("fenced", "drained", "stopping")


class ServerList(EdgeMessage, frozen=True, gc=False):
    """Effect, to every edge: the brokers that accept clients, for the messages `welcome` and `servers` and the page
    `/v1/servers`."""

    servers: tuple[Server, ...]


class DrainClients(EdgeMessage, frozen=True, gc=False):
    """Effect, to every edge: ask all clients to move to `servers` within `period` seconds, and after that close those
    that are still connected."""

    period: float
    servers: tuple[Server, ...]


class MoveClients(EdgeMessage, frozen=True, gc=False):
    """Effect, to one edge: ask `count` clients, those that moved least, to move to `server` within `period` seconds.

    None of them is closed by this broker: a client that cannot reach the server stays.
    """

    edge: int
    count: int
    period: float
    server: Server


class Observe(EdgeMessage, frozen=True, gc=False):
    """Effect: add `value` to the counter `metric`, or as a sample to the histogram `metric`, of
    docs/reference/metrics.md. `label` is the value of the metric's own label, "" if it has none. The runtime adds the
    labels that all metrics have."""

    metric: str
    value: float = 1.0
    label: str = ""


class Note(EdgeMessage, frozen=True, gc=False):
    """Effect: write a structured log line, for the operator on call.

    `event` is its name and `fields` its other fields. `connection` is the number of the connection that the line is
    about, 0 if it is about none; the process that has the socket adds the client's address.
    """

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: dict[str, object] = field(default_factory=dict)
    connection: int = 0


class Stop(Struct, frozen=True, gc=False):
    """Effect: end the process at once, with the exit status `code`, because of `reason`: a newer incarnation of this
    broker's name lives, or the configuration does not fit what ZooKeeper has."""

    reason: str
    code: int = 0


EdgeEffect = Fanout | Gap | Attached | Page | PublishAnswers | Admission | ServerList | DrainClients | MoveClients
Effect = ZkGet | ZkChildren | ZkCommit | ConnectPeers | SendPeer | RefusePeer | EdgeEffect | Observe | Note | Stop
