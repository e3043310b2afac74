"""ZooKeeper nodes that another program wrote. Byte 0 selects one node's contents for its decoders or a script of
nodes written under running brokers.

Oracles: the result is a ZooKeeper record, or a BadRecord with a text; a record that is written and read again is equal.
A broker never fails on what it reads. Unreadable contents stop no broker, and when they are gone the group accepts
publications again. Readable but false contents may break an invariant, and nothing else. The status can always be
encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import Stop
from migratory_broker.core.logic.membership import records as r
from migratory_broker.core.logic.status import describe_logic
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored

from migratory_fuzz.labels import seen, seen_error
from migratory_fuzz.reader import Reader

SHAPE = "values"
SKIP = 1
MAX_LEN = 1500
TOKENS = (
    b'"epoch":', b'"owner":["a",1]', b'"members":[["a",1],["b",1]]', b'"source":null', b'"activated":true',
    b'"groups":1', b'"incarnation":', b"9223372036854775807", b"-1", b"1e400", b"\\ud800", b"\xff",
)  # fmt: skip

_DECODERS: tuple[Callable[[bytes], Any], ...] = (r.decode_group, r.decode_member, r.decode_cluster)
PATHS = (
    "/groups/0", "/members/a", "/members/b", "/members/c", "/members/stranger", "/coordinators/0", "/coordinators/x",
    "/coordinators/\N{SUPERSCRIPT TWO}", "/coordinators/99", "/brokers/a", "/brokers/stranger", "/groups/7", "/cluster",
)  # fmt: skip


def run(data: bytes) -> None:
    source = Reader(data)
    if source.byte() & 1:
        _script(source)
        return
    contents = source.rest()
    for decode in _DECODERS:
        record = _read(decode, contents)
        if record is not None:
            assert decode(r.encode(record)) == record
            if isinstance(record, r.GroupRecord):
                _rules(record)


def _read(decode: Callable[[bytes], Any], contents: bytes) -> Any:
    try:
        record = decode(contents)
    except r.BadRecord as error:
        _check_text(str(error))
        return None
    seen(f"{decode.__name__} {type(record).__name__} {len(contents) // 16}")
    return record


def _check_text(text: str) -> None:
    assert len(text) > 10
    seen_error(text)


def _rules(record: r.GroupRecord) -> None:
    following = record.next(("z", 1), [("z", 1)], 1)
    assert following.epoch == record.epoch + 1
    assert following.source == (record.as_source())
    assert r.decode_group(r.encode(following)) == following


def _script(source: Reader) -> None:
    """Start brokers, let the input write into ZooKeeper's nodes while they run, and restart some. Check that a
    broker stops only for another cluster's data or a newer incarnation of it, and that the brokers accept a
    publication once the nodes are restored. Check less if the input was a valid record."""
    cluster = Cluster(history_wait_sessions=2.1).up(1.5)
    before = {path: node.data for path, node in cluster.store.nodes.items()}
    lies = False
    try:
        for _ in range(4):
            if not source.left:
                break
            step = source.byte()
            if step & 0x80:
                cluster.restart("b")
            contents = source.take(source.number(255))
            lies = lies or any(_read(decode, contents) is not None for decode in _DECODERS)
            _plant(cluster, PATHS[step % len(PATHS)], contents, owner=step & 0x40 != 0)
            cluster.run(source.number(5) / 2)
    except InvariantError:
        if not lies:
            raise
        return
    for name in cluster.names:
        for effect in cluster[name].effects:
            seen(f"{type(effect).__name__} {getattr(effect, 'event', '')}")
        msgspec.json.encode(describe_logic(cluster.logic(name)), enc_hook=str)
    stops = [effect.reason for name in cluster.names for effect in cluster[name].of(Stop)]
    assert all(stops)
    if not lies:
        # any write to /brokers/NAME counts as a newer incarnation of NAME
        assert all(re.match(r"/cluster in|incarnation \d of broker a lives", reason) for reason in stops), stops
        _mended(cluster, before)


def _mended(cluster: Cluster, before: dict[str, bytes]) -> None:
    """Restore the nodes and restart stopped brokers. Check that a publication is accepted then."""
    for path in [path for path in cluster.store.nodes if path not in before and not path.startswith("/members/")]:
        del cluster.store.nodes[path]
        cluster.store.fire(path, True)
    for path, contents in before.items():
        if path in cluster.store.nodes and _is_unreadable(path, cluster.store.nodes[path].data):
            _plant(cluster, path, contents, owner=False)
    cluster.run(0.6)  # a heartbeat: brokers that must stop have stopped
    for name in cluster.names:
        if not cluster[name].running:
            cluster.restart(name)  # its session ends, too
    for wait in (0.3, 1.0, 3.0, 10.0, 30.0):
        cluster.run(wait)  # a takeover; the longest wait is for a new history
        reference = cluster.publish("c", "t", "x", id=1)
        cluster.run(0.2)
        if cluster.answers[reference].code == "":
            return
    raise AssertionError(f"no publication is accepted: {cluster.answers[reference]}")


def _is_unreadable(path: str, contents: bytes) -> bool:
    decode = {"groups": r.decode_group, "cluster": r.decode_cluster}.get(path.split("/")[1])
    return decode is not None and _read(decode, contents) is None


def _plant(cluster: Cluster, path: str, contents: bytes, *, owner: bool) -> None:
    """Write a node as an operator does with ZooKeeper's own client. With `owner` a new node is an ephemeral of a
    foreign session."""
    store = cluster.store
    node = store.nodes.get(path)
    if node is not None:
        node.data, node.version = contents, node.version + 1
    else:
        store.nodes[path] = Stored(contents, 0, 999_999 if owner else 0)
    store.fire(path, node is None)
    cluster._watches()
    cluster.settle()


def seeds() -> Iterator[bytes]:
    source = r.SourceEpoch(7, [("a", 1), ("b", 1)], 2, ("a", 1))
    group = r.encode(r.GroupRecord(5, 1, 8, ("a", 1), [("a", 1), ("b", 1)], 2, True, source))
    member = r.encode(r.MemberRecord(1, "ws://a", "a:1", 100, True, False))
    cluster = r.encode(r.ClusterRecord(1))
    for contents in (group, member, cluster, b"", b'{"groups":1,"hash":"md5"}', b"\xff\xfe"):
        yield b"\x00" + contents
        for index in range(len(PATHS)):
            yield bytes((1, index, min(255, len(contents)))) + contents[:255] + b"\x04"
    yield bytes((1, 0x80, 2)) + b"{}" + bytes((4, 5, 3)) + b"[1]" + b"\x05"
