"""Three real brokers with a small table of topics: made-up topics fill it, and free their places when they are idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from migratory_testing.processes import Brokers
from migratory_testing.rawclient import RawClient, payload, position
from migratory_testing.waiting import poll_apart

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

LIMIT = 12
SETTINGS: dict[str, Any] = {
    "topics": {"groups": 2, "maxTopics": LIMIT, "idleTimeout": 2.0, "cache": {"minAge": 0.0, "maxAge": 1.0}},
    "delivery": {"duplicateWindow": 2.0},
}


async def test_made_up_topics_free_their_places_when_they_are_idle(zookeepers: Any, tmp_path: Path) -> None:
    with Brokers(tmp_path / "brokers", zookeepers.servers, cluster="idle", **SETTINGS) as brokers:
        brokers.start_all()
        subscriber = await RawClient.join(brokers["b0"])
        publisher = await RawClient.join(brokers["b1"])
        begun = await subscriber.subscribe("wanted")
        before = [await publisher.publish("wanted", b"m%d" % number, number) for number in (1, 2)]
        for number in range(LIMIT - 1):
            await publisher.publish(f"made-up/{number}", b"x", 1)
        publisher.send_publish("one/more", b"x", 1)
        refusal = await publisher.receive("nack")
        assert refusal["code"] == "too_many_topics"
        assert f"the cluster holds {LIMIT} topics, its limit (maxTopics)" in refusal["text"]

        def removed() -> bool:
            return sum(broker.metric("migratory_topics_removed_total") for broker in brokers.all()) >= LIMIT

        await poll_apart(removed, "all topics are removed", 40.0)
        await publisher.publish("one/more", b"x", 1)
        # the subscriber of a topic that was removed gets the next publication, behind a receipt
        after = await publisher.publish("wanted", b"m3", 3)
        assert [payload(await subscriber.receive("message")) for _ in before] == [b"m1", b"m2"]
        receipt = (await subscriber.receive("subscribed"))["topics"][0]
        assert receipt["receipt"] == "truncated"
        assert int(receipt["first"]) == position(before[-1])[1] + 1
        message = await subscriber.receive("message")
        assert (payload(message), message["position"]) == (b"m3", after)
        assert position(after) > position(before[-1]) > position(begun["position"])
        assert position(after)[1] == int(receipt["last"]) + 1
        # a client that was away meanwhile gets the same receipt
        late = await RawClient.join(brokers["b2"])
        resumed = await late.subscribe("wanted", after=before[0])
        assert (resumed["receipt"], resumed["first"], resumed["last"]) == ("truncated", "2", receipt["last"])
        assert payload(await late.receive("message")) == b"m3"
