"""A state machine of the cache with several topics, checked against the documented bounds.

The model is a plain list for each topic. After each step it states which entries may be evicted and which must be. It
does not know in which order the cache looks at its topics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.replication.cache import Cache
from migratory_broker.core.logic.replication.replica import Replica
from migratory_broker.core.logic.replication.topic_log import ENTRY_OVERHEAD, TopicLog
from migratory_protocol.peer import LogDigest, Publication
from migratory_protocol.positions import Position
from migratory_testing.brokers import CommitRecorder

CONFIG = LogicConfig(
    "c",
    "a",
    ("a",),
    min_copies=1,
    messages_per_topic=4,
    min_age=5.0,
    max_age=20.0,
    max_bytes=12 * (ENTRY_OVERHEAD + 30),
)
TOPICS = ("x", "y", "z")
FIRST = 3

topics = st.sampled_from(TOPICS)


@dataclass
class Model:
    base: int = 0
    base_epoch: int = 0
    committed: int = 0
    entries: list[Publication] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    @property
    def bytes(self) -> int:
        return sum(map(cost, self.entries))


def cost(entry: Publication) -> int:
    return len(entry.payload) + ENTRY_OVERHEAD


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ctx = Context(CONFIG)
        self.ctx.start(1_000_000, 1)
        self.cache = Cache(CONFIG)
        self.commits = CommitRecorder()
        self.replica = Replica(self.ctx, self.cache, 0, self.commits)
        self.replica.first = FIRST
        self.models: dict[str, Model] = {}
        self.epoch = FIRST
        self.short = 0

    # ---- what happens ----------------------------------------------------------------------------------------

    @rule(topic=topics, size=st.integers(0, 60), publisher=st.sampled_from(["", "p", "q"]), id=st.integers(1, 5))
    def append(self, topic: str, size: int, publisher: str, id: int) -> None:
        model = self.models.setdefault(topic, Model())
        entry = Publication(
            self.epoch, model.last + 1, b"x" * size, publisher, id if publisher else 0, self.ctx.wall, None
        )
        self.replica.append(self.replica.log(topic), entry)
        model.entries.append(entry)

    @rule(topic=topics, more=st.integers(0, 6))
    def commit(self, topic: str, more: int) -> None:
        model = self.models.get(topic)
        if model is None:
            return
        to = min(model.committed + more, model.last)
        expected = model.entries[model.committed - model.base : to - model.base]
        moved = to > model.committed
        model.committed = to
        self.commits.publications = []
        self.replica.commit(self.replica.topics[topic], to)
        assert self.commits.publications == expected
        self._evicted({topic} if moved else set(), squeezed=moved)

    @rule(seconds=st.sampled_from([0.5, 4.5, 5.5, 21.0]))
    def wait(self, seconds: float) -> None:
        self.ctx.now += seconds

    @rule(count=st.integers(0, 5))
    def sweep(self, count: int) -> None:
        self.cache.sweep(self.ctx.wall, count)
        swept = set(self.models) if count >= len(self.models) else set()
        self._evicted(swept, squeezed=False, perhaps=set(self.models))

    @rule()
    def ask_for_room(self) -> None:
        full = self.cache.full(TopicLog("other"), self.ctx.wall)
        self._evicted(set(), squeezed=True)
        assert full == (sum(model.bytes for model in self.models.values()) > CONFIG.max_bytes)

    @rule()
    def another_epoch(self) -> None:
        self.epoch += 1

    @rule(topic=topics, keep=st.integers(0, 6), new=st.integers(0, 3))
    def take_another_tail(self, topic: str, keep: int, new: int) -> None:
        """Replace uncommitted entries by those of another epoch, as a takeover does."""
        model = self.models.get(topic)
        if model is None:
            return
        self.epoch += 1
        remaining = model.entries[: max(model.committed - model.base, keep)]
        number = model.base + len(remaining)
        tail = [Publication(self.epoch, number + n + 1, b"n", time=self.ctx.wall) for n in range(new)]
        self.replica._replace(self.replica.topics[topic], model.base, model.base_epoch, [*remaining, *tail])
        model.entries = [*remaining, *tail]

    @precondition(lambda self: any(model.committed == 0 for model in self.models.values()))
    @rule()
    def a_topic_goes(self) -> None:
        name = min(name for name, model in self.models.items() if model.committed == 0)
        self.replica.drop([self.replica.topics[name]])
        del self.models[name]

    # ---- what must hold --------------------------------------------------------------------------------------

    def _evicted(self, trimmed: set[str], squeezed: bool, perhaps: set[str] | None = None) -> None:
        """Check that the entries that the cache evicted may be evicted, and remove them from the model.

        `trimmed`: topics in which everything beyond the limits of number and age must be evicted; `perhaps`: topics in
        which it may be (default: `trimmed`). `squeezed`: whether the cache's bytes must be below their bound.
        """
        wall = self.ctx.wall
        forced: list[Publication] = []
        for name, model in self.models.items():
            log = self.replica.topics[name]
            gone = log.base - model.base
            assert gone >= 0
            assert log.base <= model.committed, "an uncommitted entry was evicted"
            total = len(model.entries)

            def due(index: int, entries: list[Publication] = model.entries, total: int = total) -> bool:
                age = wall - entries[index].time
                return age > CONFIG.max_age or (total - index > CONFIG.messages_per_topic and age >= CONFIG.min_age)

            may = trimmed if perhaps is None else perhaps
            forced += [model.entries[index] for index in range(gone) if name not in may or not due(index)]
            if gone:
                model.base_epoch = model.entries[gone - 1].epoch
            if name in trimmed and model.base + gone < model.committed:
                assert not due(gone), "an entry that nothing keeps is still there"
            model.entries = model.entries[gone:]
            model.base += gone
        total_bytes = sum(model.bytes for model in self.models.values())
        if forced:
            assert total_bytes + max(map(cost, forced)) > CONFIG.max_bytes, "evicted without need"
            self.short += sum(wall - entry.time < CONFIG.min_age for entry in forced)
        if squeezed and total_bytes > CONFIG.max_bytes:
            assert all(model.base == model.committed for model in self.models.values()), "there was more to evict"

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.cache.bytes == sum(model.bytes for model in self.models.values())
        assert self.cache.topics == len(self.models)
        assert self.cache.short == self.short
        assert set(self.replica.topics) == set(self.models)

    @invariant()
    def every_reading_is_of_the_model(self) -> None:
        for name, model in self.models.items():
            log = self.replica.topics[name]
            assert list(log.entries) == model.entries
            assert (log.base, log.last, log.committed) == (model.base, model.last, model.committed)
            by_number = {entry.sequence: entry for entry in model.entries}
            for sequence in range(model.base - 1, model.last + 2):
                assert log.entry(sequence) is by_number.get(sequence)
                epoch = by_number[sequence].epoch if sequence in by_number else None
                if sequence == model.base and sequence:
                    epoch = model.base_epoch
                assert log.epoch_at(sequence) == epoch
            for after in range(model.base, model.last + 1):
                assert log.between(after, model.last) == model.entries[after - model.base :]
            epoch = log.epoch_at(model.committed)
            current = Position(epoch or 0, model.committed) if model.committed else Position(FIRST, 0)
            assert log.current(FIRST) == current
            last_epoch = log.epoch_at(model.last) or 0
            assert log.digest() == LogDigest(name, model.base, model.last, last_epoch, len(log.table.rows))
            for publisher, number in (("p", 1), ("q", 3)):
                same = [entry for entry in model.entries if (entry.publisher, entry.id) == (publisher, number)]
                assert log.find(publisher, number) is (same[-1] if same else None)


TestCacheMachine = CacheMachine.TestCase
