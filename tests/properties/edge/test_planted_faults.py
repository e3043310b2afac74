"""The splice machine detects each of these planted faults in the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.splice import Splice
from migratory_broker.core.edge.state import EdgeTopic, Replay
from migratory_broker.core.logic.events import Attached
from migratory_testing.machines import assert_caught, load_machine

pytestmark = pytest.mark.interpreted

Plant = Callable[[pytest.MonkeyPatch], None]


def replay_and_live_not_merged(patch: pytest.MonkeyPatch) -> None:
    whole = Splice.attach

    def attach(self: Splice, connection: Any, topic: EdgeTopic, *arguments: Any) -> None:
        whole(self, connection, topic, *arguments)
        topic.add_live(connection)

    patch.setattr(Splice, "attach", attach)


def live_before_the_fanouts_under_way_are_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Splice, "_finish", lambda self, replay, cursor: self._join_live(replay))


def live_subscriber_skipped_over_a_gap(patch: pytest.MonkeyPatch) -> None:
    def handle_gap(self: Splice, event: Any) -> None:
        topic = self.topics.get(event.topic)
        if topic is not None:
            topic.last = event.position

    patch.setattr(Splice, "handle_gap", handle_gap)


def gap_not_reported_to_paused_subscribers(patch: pytest.MonkeyPatch) -> None:
    whole = Splice.handle_gap

    def handle_gap(self: Splice, event: Any) -> None:
        topic = self.topics.get(event.topic)
        paused = dict(topic.individual) if topic is not None else {}
        if topic is not None:
            topic.individual.clear()
        whole(self, event)
        if topic is not None:
            topic.individual.update(paused)

    patch.setattr(Splice, "handle_gap", handle_gap)


def stale_answers_accepted(patch: pytest.MonkeyPatch) -> None:
    def cancel(self: Splice, replay: Any) -> None:
        del replay.topic.replays[replay.connection]

    patch.setattr(Splice, "cancel", cancel)


def replay_without_its_receipt(patch: pytest.MonkeyPatch) -> None:
    def begin_replay(self: Splice, replay: Replay, event: Attached) -> None:
        self._continue(replay, event, event.position)

    patch.setattr(Splice, "begin_replay", begin_replay)


def queue_lost(patch: pytest.MonkeyPatch) -> None:
    whole = EdgeDelivery.drop_queue

    def drop_queue(self: EdgeDelivery, connection: Any) -> Any:
        queue = whole(self, connection)
        queue.chunks = queue.chunks[1:]
        return queue

    patch.setattr(EdgeDelivery, "drop_queue", drop_queue)


def paused_stays_in_the_audience(patch: pytest.MonkeyPatch) -> None:
    whole = EdgeDelivery.pause

    def pause(self: EdgeDelivery, connection: Any) -> None:
        topics, connection.topics = connection.topics, ()
        whole(self, connection)
        connection.topics = topics

    patch.setattr(EdgeDelivery, "pause", pause)


def recipients_not_renewed(patch: pytest.MonkeyPatch) -> None:
    whole = EdgeTopic.add_live

    def add_live(self: EdgeTopic, connection: Any) -> None:
        recipients = {format: audience._recipients for format, audience in self.audiences.items()}
        whole(self, connection)
        for format, audience in self.audiences.items():
            audience._recipients = recipients.get(format)

    patch.setattr(EdgeTopic, "add_live", add_live)


@pytest.mark.parametrize(
    "plant",
    [
        replay_and_live_not_merged,
        live_before_the_fanouts_under_way_are_over,
        live_subscriber_skipped_over_a_gap,
        gap_not_reported_to_paused_subscribers,
        stale_answers_accepted,
        replay_without_its_receipt,
        queue_lost,
        paused_stays_in_the_audience,
        recipients_not_renewed,
    ],
)
def test_planted_fault_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert_caught(load_machine(__file__, "test_splice_machine", "SpliceMachine"))
