"""Log snapshots, for takeover and Sync: the difference between the logs of two brokers, as parts of one topic each.
Parts are made, divided into messages, joined, checked and merged.

Log and publisher table of a topic are always of one moment. A large snapshot is divided into several messages; the
receiver joins their parts before it uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from migratory_protocol.peer import LogDigest, Publication, TopicPart
from migratory_protocol.positions import Position
from migratory_protocol.topics import topic_group
from msgspec.structs import replace

from migratory_broker.core.logic.context import expect, must
from migratory_broker.core.logic.replication.topic_log import ENTRY_OVERHEAD, PublisherTable, TopicLog

LARGEST_SEQUENCE = 2**61
"""The largest sequence number that a snapshot may bring. Above it is room for all that may ever be numbered."""

ROW_BYTES = 64
"""Bytes that a row of a publisher table takes in a snapshot, estimated."""


def whole(log: TopicLog) -> TopicPart:
    """Return a part with all cached entries and the publisher table of a log. Its receiver keeps no entries of its
    own."""
    return TopicPart(
        log.name,
        log.base,
        log.base,
        log.base_epoch,
        log.last,
        log.committed,
        whole=True,
        entries=list(log.entries),
        table=log.table.as_rows(),
    )


def missing(log: TopicLog, digest: LogDigest, keep: int) -> TopicPart:
    """Return the part that turns the log described by `digest` into `log`: the entries after sequence number `keep`, up
    to which both logs agree, those older than the other log's first, and the publisher table. If entries after `keep`
    were evicted here, return the whole log."""
    if keep < log.base:
        return whole(log)
    older = log.between(log.base, min(digest.base, log.last)) if log.base < digest.base else []
    return TopicPart(
        log.name,
        keep,
        log.base,
        log.base_epoch,
        log.last,
        log.committed,
        entries=log.between(keep, log.last),
        older=older,
        table=log.table.as_rows(),
    )


def for_candidate(topics: Iterable[TopicLog], digests: Iterable[LogDigest]) -> list[TopicPart]:
    """Return the parts of `topics` that a candidate lacks whose logs are described by `digests`: of each topic with
    later or older entries than the candidate has, or that the candidate does not have. A log and its digest are of
    prefixes of one log. Without digests return everything."""
    known = {digest.topic: digest for digest in digests}
    parts = []
    for log in topics:
        digest = known.get(log.name)
        if digest is not None and log.last <= digest.last and log.base >= digest.base:
            continue
        parts.append(missing(log, digest, min(digest.last, log.last)) if digest else whole(log))
    return parts


def for_member(
    topics: dict[str, TopicLog], digests: Iterable[LogDigest], common: Callable[[str], int | None]
) -> list[TopicPart]:
    """Return the parts that turn a member's logs, described by `digests`, into `topics`. Topics that agree up to the
    same last entry, with equally many publishers, and begin no earlier here, are left out; those that only the member
    has are marked as deleted.

    `common(topic)` is the sequence number up to which the member's log agrees with this one (None: as far as both go).
    The member's entries after it are replaced, however many.
    """
    parts = []
    seen = set()
    for digest in digests:
        seen.add(digest.topic)
        log = topics.get(digest.topic)
        if log is None:
            parts.append(TopicPart(digest.topic, 0, 0, 0, 0, 0, deleted=True))
            continue
        limit = common(digest.topic)
        keep = min(digest.last, log.last if limit is None else limit)
        same = digest.last == log.last == keep and digest.rows == len(log.table.rows)
        if not same or not log.base >= digest.base:
            parts.append(missing(log, digest, keep))
    parts.extend(whole(log) for name, log in topics.items() if name not in seen)
    return parts


def split(parts: Iterable[TopicPart], size: int) -> list[list[TopicPart]]:
    """Return the parts in lists of about `size` bytes, one for each message: at least one list, which may be empty. A
    part whose entries do not fit is continued in the next list, by a part with `continued`."""
    lists: list[list[TopicPart]] = [[]]
    filled = 0
    for part in parts:
        cost = (
            len(part.table) * ROW_BYTES
            + sum(len(entry.payload) + ENTRY_OVERHEAD for entry in part.older)
            + ENTRY_OVERHEAD
        )
        piece = replace(part, entries=[])
        if filled and filled + cost > size:
            lists.append([])
            filled = 0
        lists[-1].append(piece)
        filled += cost
        entries = piece.entries
        for entry in part.entries:
            bytes_ = len(entry.payload) + ENTRY_OVERHEAD
            if filled and filled + bytes_ > size:
                entries = []
                lists.append(
                    [
                        TopicPart(
                            part.topic,
                            part.keep,
                            part.base,
                            part.base_epoch,
                            part.last,
                            part.committed,
                            continued=True,
                            entries=entries,
                        )
                    ]
                )
                filled = 0
            entries.append(entry)
            filled += bytes_
    return lists


def join(parts: Iterable[TopicPart]) -> list[TopicPart]:
    """Return the parts as they were before `split`. The entries of a continued part are appended to the part before it,
    which is changed by this. Raise PeerError if that is of another topic or missing."""
    joined: list[TopicPart] = []
    for part in parts:
        if part.continued:
            continues = bool(joined) and joined[-1].topic == part.topic
            expect(continues, "snapshot", "SNAPSHOT-WHOLE: a part continues its topic")
            joined[-1].entries.extend(part.entries)
        else:
            joined.append(part)
    return joined


def check_parts(parts: list[TopicPart], group: int, groups: int, epoch: int) -> None:
    """DENSE: raise PeerError unless the joined parts are of different topics of this group, and each describes one log
    without holes, with a table that belongs to it. `groups` is the number of groups of the cluster.

    `epoch`: the largest in which any entry of the logs may have been numbered.
    """
    expect(len({part.topic for part in parts}) == len(parts), "snapshot", "a snapshot has a topic once")
    for part in parts:
        expect(topic_group(part.topic, groups) == group, "group", "a snapshot has topics of its own group")
        if part.deleted:
            continue
        ordered = part.base <= part.keep <= part.last <= LARGEST_SEQUENCE and part.committed <= part.last
        expect(ordered and (not part.whole or part.keep == part.base), "snapshot", "DENSE: a log begins before it ends")
        expect(part.last - part.keep == len(part.entries), "snapshot", "DENSE: a log has no hole")
        expect(len(part.older) <= part.last - part.base, "snapshot", "DENSE: older entries end where the log ends")
        _check_entries(part.entries, part.keep, epoch)
        _check_entries(part.older, part.base, epoch)
        rows_known = all(row.sequence <= part.last for row in part.table)
        expect(rows_known and part.base_epoch <= epoch, "snapshot", "a publisher table is part of its log")


def check_floor(floor: Position, epoch: int) -> None:
    """FLOOR: raise PeerError unless the floor's epoch is at most `epoch` and its sequence number at most
    `LARGEST_SEQUENCE`."""
    expect(floor.epoch <= epoch and floor.sequence <= LARGEST_SEQUENCE, "snapshot", "FLOOR: a floor is a position")


def _check_entries(entries: list[Publication], after: int, epoch: int) -> None:
    """Raise PeerError unless the entries have the sequence numbers after `after`, without a hole, and epochs that do
    not fall and are at most `epoch`."""
    before = 0
    for entry in entries:
        after += 1
        expect(entry.sequence == after and before <= entry.epoch <= epoch, "snapshot", "DENSE: positions rise")
        before = entry.epoch


def same_entry(one: Publication, other: Publication) -> bool:
    """Return whether two entries with one sequence number are the same publication: of the same epoch, publisher and
    message id."""
    return (one.epoch, one.publisher, one.id) == (other.epoch, other.publisher, other.id)


def epoch_in(part: TopicPart, sequence: int) -> int | None:
    """Return the epoch of the entry with this sequence number, as far as a part says it: of an entry that it brings, or
    of the last one before a whole log. None if it does not say it. `sequence` is at most the part's `last`."""
    if sequence > part.keep:
        return part.entries[sequence - part.keep - 1].epoch
    return part.base_epoch if part.whole and sequence == part.base and sequence else None


def merge(log: TopicLog | None, parts: list[TopicPart]) -> TopicLog:
    """LONGEST-WINS: return a new log of one topic, which a candidate adopts, merged from its own log (None: it has none
    that counts) and from the parts in the answers, at least one.

    All of them are prefixes of one log, with different beginnings cached. The longest wins with its table, and older
    entries are filled in as far as they join it without a hole. Raise InvariantError if two of them have different
    entries at one sequence number (ONE-LOG), or if the result begins where none of them began (JOINED).
    """
    entries: dict[int, Publication] = {}
    epochs: dict[int, int] = {}  # base -> its epoch
    last, table = -1, PublisherTable()
    if log is not None:
        entries.update((entry.sequence, entry) for entry in log.entries)
        epochs[log.base] = log.base_epoch
        last, table = log.last, log.table
    for part in parts:
        for entry in (*part.older, *part.entries):
            other = entries.setdefault(entry.sequence, entry)
            must(
                (other.epoch, other.publisher, other.id) == (entry.epoch, entry.publisher, entry.id),
                "ONE-LOG: answers that are synced to the source agree at every sequence number",
            )
        epochs[part.base] = part.base_epoch
        if part.last > last:
            last, table = part.last, PublisherTable(part.table)
    merged = TopicLog(parts[0].topic)
    base = last
    while base in entries:
        base -= 1
    must(base in epochs, "JOINED: the adopted log begins where one of the answers began")
    merged.replace(base, epochs[base], [entries[sequence] for sequence in range(base + 1, last + 1)])
    merged.table = table
    return merged
