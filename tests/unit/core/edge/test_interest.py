"""Which edges hear of a topic, and when an edge says that it wants nothing more of one."""

from __future__ import annotations

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.subscriptions import TopicInterest
from migratory_protocol.messages import Unsubscribe
from migratory_testing.edges import Bench


class TestInterest:
    def test_nobody_asked(self) -> None:
        interest = TopicInterest()
        assert interest.edges_of("t") == ()
        interest.remove(1, "t")
        interest.remove_edge(1)
        assert len(interest) == 0

    def test_asking_again_changes_nothing(self) -> None:
        interest = TopicInterest()
        for _ in range(3):
            interest.add(1, "t")
        assert interest.edges_of("t") == (1,)
        interest.remove(1, "t")
        assert interest.edges_of("t") == ()

    def test_each_edge_leaves_by_itself(self) -> None:
        interest = TopicInterest()
        for edge in (1, 2, 3):
            interest.add(edge, "t")
        interest.remove(2, "t")
        interest.remove(4, "t")
        assert interest.edges_of("t") == (1, 3)
        assert len(interest) == 1

    def test_an_edge_that_is_gone_wants_nothing(self) -> None:
        interest = TopicInterest()
        for topic in ("a", "b"):
            interest.add(1, topic)
        interest.add(2, "b")
        interest.remove_edge(1)
        assert (interest.edges_of("a"), interest.edges_of("b")) == ((), (2,))
        assert len(interest) == 1


class TestDetach:
    def test_the_last_subscriber_of_a_topic_leaves(self) -> None:
        bench = Bench()
        one, other = bench.client(), bench.client()
        for reader in (one, other):
            reader.subscribe("t")
        one.say(Unsubscribe(2, ["t"]))
        assert bench.detached == []
        other.lose()
        assert bench.detached == [Detach(0, "t")]

    def test_a_new_subscription_asks_again_behind_it(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.subscribe("t")
        reader.say(Unsubscribe(2, ["t"]))
        assert bench.detached == [Detach(0, "t")]
        assert reader.subscribe("t", request=3).topic == "t"
        assert bench.detached == [Detach(0, "t")]
