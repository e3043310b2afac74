"""What the logic is told and what it answers: the whole surface of `Logic.step(event, now) -> effects`.

Times are seconds: `now` is the process's own monotonic clock, `sent` and `Publication.time` are wall-clock. Nothing
here touches a socket, a clock or ZooKeeper; the runtime and the simulation carry the effects out alike.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.messages import Ack, Nack, Server
from migratory_protocol.peer import ForwardedPublication, PeerMessage, Publication
from migratory_protocol.positions import Position
from msgspec import Struct, field


class EdgeMessage(Struct, frozen=True, gc=False, array_like=True, tag=True):
    """What goes between the logic and an edge: as MessagePack where the edge is in an I/O process of its own."""


# ---- ZooKeeper, as plain operations ----------------------------------------------------------------------------


class ZkCreate(Struct, frozen=True, gc=False):
    path: str
    data: bytes
    ephemeral: bool = False


class ZkWrite(Struct, frozen=True, gc=False):
    """Set the data; `version` -1 writes whatever is there."""

    path: str
    data: bytes
    version: int


class ZkDelete(Struct, frozen=True, gc=False):
    path: str
    version: int = -1


class ZkCheck(Struct, frozen=True, gc=False):
    path: str
    version: int


ZkOperation = ZkCreate | ZkWrite | ZkDelete | ZkCheck


class ZkNode(Struct, frozen=True, gc=False):
    """What a read found. `owner` is the session of an ephemeral, 0 for a persistent node."""

    data: bytes
    version: int
    owner: int = 0


class ZkReply(Struct, frozen=True, gc=False):
    """Event. The answer to the request of the same number. `node` answers a get (None: there is no such node),
    `children` a listing (None: no such node), `committed` a transaction. `outcome`:

    ok       the request was carried out (a read of a missing node is ok, too)
    refused  a transaction whose check, create, set or delete failed as a whole: nothing was changed
    unknown  the connection went while it was under way: it may have been carried out or not
    """

    request: int
    outcome: Literal["ok", "refused", "unknown"]
    node: ZkNode | None = None
    children: tuple[str, ...] | None = None
    versions: tuple[int, ...] = ()  # ok transaction: the version of each created or written node, -1 for others
    error: str = ""


class ZkSession(Struct, frozen=True, gc=False):
    """Event. State of the ZooKeeper session; `session` is the id that owns our ephemerals (0: none)."""

    state: Literal["connected", "suspended", "lost"]
    session: int = 0


class ZkChanged(Struct, frozen=True, gc=False):
    """Event. A watch that was left by a read fired (once); read again to learn what is there now."""

    path: str


class ZkGet(Struct, frozen=True, gc=False):
    """Effect."""

    request: int
    path: str
    watch: bool = False


class ZkChildren(Struct, frozen=True, gc=False):
    """Effect."""

    request: int
    path: str
    watch: bool = False


class ZkCommit(Struct, frozen=True, gc=False):
    """Effect: one transaction, all or nothing."""

    request: int
    operations: tuple[ZkOperation, ...]


# ---- other events ----------------------------------------------------------------------------------------------


class Start(Struct, frozen=True, gc=False):
    """The first event of a process's life. `wall_ms` is the wall clock at `now`; `seed` feeds every random choice."""

    wall_ms: int
    seed: int


class Tick(Struct, frozen=True, gc=False):
    """Comes about every 100 ms; every time limit is kept by it."""


class Flush(Struct, frozen=True, gc=False):
    """Comes once at the end of each loop turn in which other events came: batches leave now."""


class PeerUp(Struct, frozen=True, gc=False):
    """A link to `peer` stands. Until `PeerDown`, messages arrive in order, none lost; of a link that broke, nothing
    arrives any more. Never given for a link with another cluster or protocol version."""

    peer: str
    incarnation: int


class PeerDown(Struct, frozen=True, gc=False):
    peer: str


class PeerReceived(Struct, frozen=True, gc=False):
    """What came over the link to `peer` in one read, in its order."""

    peer: str
    messages: tuple[PeerMessage, ...]


class PublishRequest(EdgeMessage, frozen=True, gc=False):
    """A client of `edge` publishes, in this order: what came in one read, and mostly all of it. `reference` is the
    edge's own and comes back in the `PublishAnswers`. QoS 0 has no publisher, id or mark and gets no answer."""

    edge: int
    reference: int
    publications: list[ForwardedPublication]


class Attach(EdgeMessage, frozen=True, gc=False):
    """A subscriber wants `topic`, from behind `after` (None: from now on; with `snapshot` the latest publication
    too). Answered by one `Attached`, at most the resume wait later."""

    edge: int
    reference: int
    topic: str
    after: Position | None
    snapshot: bool = False
    max_bytes: int = 65536


class NextPage(EdgeMessage, frozen=True, gc=False):
    """A replay goes on behind sequence number `after`. Answered at once by a `Page`."""

    edge: int
    reference: int
    topic: str
    after: Position
    max_bytes: int = 65536


class ClientCounts(EdgeMessage, frozen=True, gc=False):
    """How many clients `edge` has now, by how often they changed their broker lately: never, once, ... Empty when the
    edge is gone."""

    edge: int
    by_moves: tuple[int, ...] = ()


class BrokersConfigured(Struct, frozen=True, gc=False):
    """From now on the cluster has these brokers, this one among them: what waits for all of them waits for these."""

    brokers: tuple[str, ...]


class DrainRequest(Struct, frozen=True, gc=False):
    """The process is to end within `period` seconds: hand the groups over, leave the server list."""

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
    """The peers that links are wanted to, by name: (incarnation, "host:port"). Replaces the list before."""

    peers: dict[str, tuple[int, str]]


class SendPeer(Struct, frozen=True, gc=False):
    peer: str
    message: PeerMessage


class Fanout(EdgeMessage, frozen=True, gc=False):
    """To every edge, in order: publications of one topic that were just committed here, oldest first."""

    topic: str
    publications: tuple[Publication, ...]


Receipt = Literal["complete", "truncated", "reset"]


class Gap(EdgeMessage, frozen=True, gc=False):
    """To every edge: live subscribers of `topic` lose something, and are told. `truncated`: sequence numbers
    `first`..`last` were evicted before they reached this broker. `reset`: another history starts at `position`."""

    topic: str
    receipt: Literal["truncated", "reset"]
    position: Position
    first: int = 0
    last: int = 0


class Attached(EdgeMessage, frozen=True, gc=False):
    """To one edge. `position` is the current (committed) position, `publications` the first page of the replay.
    With `done` every later publication of the topic comes as a `Fanout` after this effect; otherwise ask `NextPage`
    behind the last publication given here. `first`..`last` are the missing sequence numbers of `truncated`. With a
    `code` the topic was refused, `text` says why, and nothing else counts."""

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
    """To one edge: more of a replay, as in `Attached`. When eviction overtook the replay, `receipt` is `truncated`
    and `first`..`last` are missing before `publications`; when the history ended, `reset`."""

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
    """To one edge: what one client is told of its publications, all of a turn in one. An `Ack` without a position is
    of a duplicate whose entry is no longer cached; the codes of a `Nack` are "gap" (send again from the lowest waiting
    id), "retry" (no coordinator now; again after `retry_after` seconds), and those of final errors."""

    edge: int
    reference: int
    answers: list[Ack | Nack]


class Admission(EdgeMessage, frozen=True, gc=False):
    """To every edge: take clients or not. "learning" and "draining" only refuse new ones; with the other reasons the
    connected ones must go as well, now (`ends`): "fenced" (go elsewhere, the blacklist applies), "drained" (the drain
    is over) or "stopping" (the broker ends without one)."""

    open: bool
    reason: Literal["", "learning", "fenced", "stopping", "draining", "drained"] = ""

    @property
    def ends(self) -> bool:
        return not self.open and self.reason in ("fenced", "drained", "stopping")


class ServerList(EdgeMessage, frozen=True, gc=False):
    """To every edge: the brokers that take clients, for `welcome`, `servers` and `/v1/servers`."""

    servers: tuple[Server, ...]


class DrainClients(EdgeMessage, frozen=True, gc=False):
    """To every edge: tell clients to leave within `period` seconds, to `servers`."""

    period: float
    servers: tuple[Server, ...]


class MoveClients(EdgeMessage, frozen=True, gc=False):
    """To one edge: ask `count` clients, those that moved least, to go to `server` within `period` seconds. This broker
    stays; a client that can't get there does as well."""

    edge: int
    count: int
    period: float
    server: Server


class Observe(EdgeMessage, frozen=True, gc=False):
    """A sample for a histogram or a counter of metrics.md, without its common labels."""

    metric: str
    value: float = 1.0
    label: str = ""


class Note(EdgeMessage, frozen=True, gc=False):
    """A structured log line: what a person who is paged wants to read. `connection`: of an edge's client that it is
    about, 0 for none; its address is added where its socket is."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: dict[str, object] = field(default_factory=dict)
    connection: int = 0


class Stop(Struct, frozen=True, gc=False):
    """The process must end at once (a newer incarnation of its own name lives, or after a finished drain)."""

    reason: str
    code: int = 0


EdgeEffect = Fanout | Gap | Attached | Page | PublishAnswers | Admission | ServerList | DrainClients | MoveClients
Effect = ZkGet | ZkChildren | ZkCommit | ConnectPeers | SendPeer | EdgeEffect | Observe | Note | Stop
