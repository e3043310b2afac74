"""Logs on their way between brokers: what one holds against what another lacks.

Log and publisher table of a topic are of one moment, always. Large snapshots are cut into parts; the receiver puts them
together again (`join`) before it looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from migratory_protocol.peer import Digest, Publication, TopicPart

from migratory_broker.core.logic.cache import OVERHEAD, TopicLog
from migratory_broker.core.logic.context import must
from migratory_broker.core.logic.dedup import PublisherTable

ROW_BYTES = 64


def whole(log: TopicLog) -> TopicPart:
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


def lacking(log: TopicLog, holds: Digest, keep: int) -> TopicPart:
    """What a holder of `holds` needs to hold this log, when its entries up to `keep` are the same as here. Where this
    log begins behind `keep`, all of it replaces the holder's."""
    if keep < log.base:
        return whole(log)
    older = log.between(log.base, min(holds.base, log.last)) if log.base < holds.base else []
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


def for_candidate(topics: Iterable[TopicLog], holds: Iterable[Digest]) -> list[TopicPart]:
    """What a candidate that holds `holds` lacks of these logs. Both are prefixes of one log (or `holds` is empty)."""
    known = {digest.topic: digest for digest in holds}
    parts = []
    for log in topics:
        digest = known.get(log.name)
        if digest is not None and log.last <= digest.last and log.base >= digest.base:
            continue
        parts.append(lacking(log, digest, min(digest.last, log.last)) if digest else whole(log))
    return parts


def for_member(
    topics: dict[str, TopicLog], holds: Iterable[Digest], common: Callable[[str], int | None]
) -> list[TopicPart]:
    """What makes a log of `holds` equal to these. `common(topic)` limits how far the holder's log can be trusted to
    agree (None: as far as it goes): a tail that was not adopted is cut, however long."""
    parts = []
    seen = set()
    for digest in holds:
        seen.add(digest.topic)
        log = topics.get(digest.topic)
        if log is None:
            parts.append(TopicPart(digest.topic, 0, 0, 0, 0, 0, gone=True))
            continue
        limit = common(digest.topic)
        keep = min(digest.last, log.last if limit is None else limit)
        same = digest.last == log.last == keep and digest.rows == len(log.table.rows)
        if not same or not log.base >= digest.base:
            parts.append(lacking(log, digest, keep))
    parts.extend(whole(log) for name, log in topics.items() if name not in seen)
    return parts


def cut(parts: Iterable[TopicPart], size: int) -> list[list[TopicPart]]:
    """The parts in lists of about `size` bytes, at least one (maybe empty) list."""
    lists: list[list[TopicPart]] = [[]]
    filled = 0
    for part in parts:
        cost = len(part.table) * ROW_BYTES + sum(len(entry.payload) + OVERHEAD for entry in part.older) + OVERHEAD
        piece = TopicPart(
            part.topic,
            part.keep,
            part.base,
            part.base_epoch,
            part.last,
            part.committed,
            part.whole,
            part.gone,
            table=part.table,
            older=part.older,
        )
        if filled and filled + cost > size:
            lists.append([])
            filled = 0
        lists[-1].append(piece)
        filled += cost
        entries: list[Publication] = []
        piece.entries = entries
        for entry in part.entries:
            bytes_ = len(entry.payload) + OVERHEAD
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
                            more=True,
                            entries=entries,
                        )
                    ]
                )
                filled = 0
            entries.append(entry)
            filled += bytes_
    return lists


def join(parts: Iterable[TopicPart]) -> list[TopicPart]:
    """What `cut` took apart."""
    joined: list[TopicPart] = []
    for part in parts:
        if part.more:
            must(bool(joined) and joined[-1].topic == part.topic, "SNAPSHOT-WHOLE: a part goes on with its topic")
            joined[-1].entries.extend(part.entries)
        else:
            joined.append(part)
    return joined


def merge(log: TopicLog | None, parts: list[TopicPart]) -> TopicLog:
    """LONGEST-WINS: one topic of the log that a candidate adopts, from its own log and the answers' parts of it.

    All of them are prefixes of one log, with different beginnings cached: the longest wins with its table, and older
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
