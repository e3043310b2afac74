"""ZooKeeper's nodes in memory: transactions, children, and the watches that a change fires.

The models of ZooKeeper in tests and simulation share the functions. `Store` answers at once and loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from migratory_broker.core.logic.events import (
    ZkCheck,
    ZkChildren,
    ZkCommit,
    ZkCreate,
    ZkDelete,
    ZkGet,
    ZkNode,
    ZkOperation,
    ZkReply,
    ZkWrite,
)


@dataclass(slots=True)
class Stored:
    """A node. `owner` is the session of an ephemeral node, 0 otherwise."""

    data: bytes
    version: int
    owner: int


class Refused(Exception):
    """A transaction that does not apply; the text names the operation."""


def parent_of(path: str) -> str:
    """Return the path of a node's parent; that of "/" is "/"."""
    return path.rsplit("/", 1)[0] or "/"


def children(paths: Iterable[str], path: str) -> tuple[str, ...]:
    """Return the sorted names of the children of `path`."""
    prefix = path.rstrip("/") + "/"
    names = (other[len(prefix) :] for other in paths if other != "/" and other.startswith(prefix))
    return tuple(sorted(name for name in names if "/" not in name))


def staged(
    nodes: Mapping[str, Stored], session: int, operations: Iterable[ZkOperation]
) -> tuple[dict[str, Stored | None], tuple[int, ...]]:
    """Return the nodes that a transaction would change (None: deleted), and the version that each operation returns: -1
    for a deletion or check. Raise Refused if an operation does not apply. Change nothing."""
    changes: dict[str, Stored | None] = {}
    versions: list[int] = []

    def look(path: str) -> Stored | None:
        return changes[path] if path in changes else nodes.get(path)

    for operation in operations:
        path = operation.path
        found = look(path)
        if isinstance(operation, ZkCreate):
            parent = look(parent_of(path))
            if found is not None:
                raise Refused(f"{path} exists")
            if parent is None or parent.owner:
                raise Refused(f"{path} has no parent that can hold it")
            changes[path] = Stored(operation.data, 0, session if operation.ephemeral else 0)
            versions.append(0)
            continue
        if found is None:
            raise Refused(f"{path} does not exist")
        wanted = operation.version
        if wanted not in (-1, found.version):
            raise Refused(f"{path} is at version {found.version}, not {wanted}")
        if isinstance(operation, ZkWrite):
            changes[path] = Stored(operation.data, found.version + 1, found.owner)
            versions.append(found.version + 1)
        elif isinstance(operation, ZkDelete):
            if any(name.startswith(path + "/") for name in nodes):
                raise Refused(f"{path} has children")
            changes[path] = None
            versions.append(-1)
        else:
            versions.append(-1)
    return changes, tuple(versions)


class Store:
    """A ZooKeeper that answers at once. `nodes` are by path. `watches` has the brokers that watch a path, or with "/*"
    behind it, the children of a path. `fired` collects (broker, path) of watches that a change fired."""

    def __init__(self) -> None:
        self.nodes: dict[str, Stored] = {"/": Stored(b"", 0, 0)}
        self.watches: dict[str, set[str]] = {}  # path (of a node, or its children with "/*") -> brokers
        self.fired: list[tuple[str, str]] = []  # (broker, path)

    def answer(self, broker: str, session: int, request: ZkGet | ZkChildren | ZkCommit) -> ZkReply:
        """Execute a request and return the answer. A read that asks for a watch sets it, also on a missing node. A
        commit changes the nodes and fires their watches; one that does not apply is refused and changes nothing."""
        if isinstance(request, ZkCommit):
            try:
                versions = self._commit(request.operations, session)
            except Refused as refusal:
                return ZkReply(request.request, "refused", error=str(refusal))
            return ZkReply(request.request, "ok", versions=versions)
        if request.watch:
            watched = request.path if isinstance(request, ZkGet) else request.path + "/*"
            self.watches.setdefault(watched, set()).add(broker)
        node = self.nodes.get(request.path)
        if node is None:
            return ZkReply(request.request, "ok")
        if isinstance(request, ZkGet):
            return ZkReply(request.request, "ok", node=ZkNode(node.data, node.version, node.owner))
        return ZkReply(request.request, "ok", children=children(self.nodes, request.path))

    def expire(self, session: int) -> None:
        """End a session: delete its ephemerals, and fire the watches on them and on their parents' children."""
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            del self.nodes[path]
            self.fire(path, True)

    def fire(self, path: str, with_parent: bool) -> None:
        """Fire and remove the watches of a node and, with `with_parent`, those on the list of its parent's children.
        `fired` collects them."""
        for key in (path, path.rsplit("/", 1)[0] + "/*" if with_parent else ""):
            for broker in sorted(self.watches.pop(key, ())):
                self.fired.append((broker, key.removesuffix("/*")))

    def _commit(self, operations: tuple[ZkOperation, ...], session: int) -> tuple[int, ...]:
        """Apply a transaction, fire the watches of its changes, and return the operations' versions. Raise Refused, and
        change nothing, if it does not apply."""
        changes, versions = staged(self.nodes, session, operations)
        for path, stored in changes.items():
            if stored is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = stored
        for operation in operations:
            if not isinstance(operation, ZkCheck):
                self.fire(operation.path, not isinstance(operation, ZkWrite))
        return versions
