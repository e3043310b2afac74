"""Which edges hear of a topic, and when an edge says that it wants nothing more of one."""

from __future__ import annotations

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.interest import Interest
from migratory_protocol.messages import Unsubscribe
from migratory_testing.edges import Bench


class TestInterest:
    def test_nobody_asked(self) -> None:
        interest = Interest()
        assert interest.edges("t") == ()
        interest.leave(1, "t")
        interest.gone(1)
        assert interest.topics == 0

    def test_asking_again_changes_nothing(self) -> None:
        interest = Interest()
        for _ in range(3):
            interest.ask(1, "t")
        assert interest.edges("t") == (1,)
        interest.leave(1, "t")
        assert interest.edges("t") == ()

    def test_each_edge_leaves_by_itself(self) -> None:
        interest = Interest()
        for edge in (1, 2, 3):
            interest.ask(edge, "t")
        interest.leave(2, "t")
        interest.leave(4, "t")
        assert interest.edges("t") == (1, 3)
        assert interest.topics == 1

    def test_an_edge_that_is_gone_wants_nothing(self) -> None:
        interest = Interest()
        for topic in ("a", "b"):
            interest.ask(1, topic)
        interest.ask(2, "b")
        interest.gone(1)
        assert (interest.edges("a"), interest.edges("b")) == ((), (2,))
        assert interest.topics == 1


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
