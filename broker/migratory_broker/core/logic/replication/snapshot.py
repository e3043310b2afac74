"""Log snapshots, for takeover and Sync: the difference between the logs of two brokers, split into messages, joined and
merged.

Log and publisher table of a topic are always of one moment. Large snapshots are split into several messages; the
receiver joins their parts before it uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from migratory_protocol.peer import LogDigest, Publication, TopicPart
from msgspec.structs import replace

from migratory_broker.core.logic.context import must
from migratory_broker.core.logic.replication.topic_log import ENTRY_OVERHEAD, PublisherTable, TopicLog

ROW_BYTES = 64
"""Bytes that a row of a publisher table takes in a snapshot, estimated."""


def whole(log: TopicLog) -> TopicPart:
    """Return a part with all cached entries and the publisher table of a log."""
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
    """Return the part that turns a log described by `digest` into `log`, given that both have the same entries up to
    sequence number `keep`. If entries after `keep` were evicted here, return the whole log."""
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
    """Return the parts that a candidate lacks, whose logs are described by `digests`. Its logs and `topics` are
    prefixes of the same logs, or `digests` is empty: then return everything."""
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
    """Return the parts that turn a member's logs, described by `digests`, into `topics`. Topics that are equal are left
    out; those that only the member has are marked as deleted.

    `common(topic)` is the sequence number up to which the member's log agrees with this one (None: as far as both go).
    Entries after it are replaced, however many.
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
    part that is too large is continued in the next list."""
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
    """Return the parts as they were before `split`: continued parts are joined with their beginnings, which changes
    these."""
    joined: list[TopicPart] = []
    for part in parts:
        if part.continued:
            must(bool(joined) and joined[-1].topic == part.topic, "SNAPSHOT-WHOLE: a part continues its topic")
            joined[-1].entries.extend(part.entries)
        else:
            joined.append(part)
    return joined


def merge(log: TopicLog | None, parts: list[TopicPart]) -> TopicLog:
    """LONGEST-WINS: return the log of one topic that a candidate adopts, merged from its own log (None: it has none
    that counts) and the parts in the answers.

    All of them are prefixes of one log, with different beginnings cached. The longest wins with its table, and older
    entries are filled in as far as they join it without a hole.
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
