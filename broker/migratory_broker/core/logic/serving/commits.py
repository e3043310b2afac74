"""The effects of a commit at this broker, for the topic groups: fan-out to the edges, acknowledgement of publishers,
another try of waiting subscriptions.

The topic groups know only the interface `ReplicationListener`; this module implements it. Calls go one way, from a
group to here and on to edges and clients: nothing here calls a group.
"""

from __future__ import annotations

from migratory_protocol.peer import ForwardReply, Publication

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Fanout
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_broker.core.logic.serving.answers import PendingAnswers
from migratory_broker.core.logic.serving.resume import Resume


class CommitListener:
    """The listener of all topic groups: delivers and acknowledges committed publications, passes replies on, retries
    waiting subscriptions, and records the coordinators."""

    def __init__(self, ctx: Context, gossip: GossipMap, answers: PendingAnswers, resume: Resume) -> None:
        self.ctx = ctx
        self.gossip = gossip
        self.answers = answers
        self.resume = resume

    def committed(self, group: int, log: TopicLog, publications: list[Publication]) -> None:
        """COMMITTED-ONLY: emit a `Fanout` of the publications, queue their acknowledgements for this broker's clients,
        and mark the subscriptions that waited for them, which are tried at the end of the step. Every publication comes
        here at most once at every broker. It does not come if a Sync brings it, already committed, to a replica that
        was not synced before."""
        ctx, topic = self.ctx, log.name
        ctx.effects.append(Fanout(topic, tuple(publications)))
        ctx.committed += len(publications)
        if self.answers.pending:
            self.answers.acknowledge(topic, publications)
        if group in self.resume.waiting:
            self.resume.committed(group, log)

    def reply(self, contact: str | None, reply: ForwardReply) -> None:
        """Queue this coordinator's reply about a publication for its contact broker `contact` (None: as the answer to
        this broker's clients)."""
        self.answers.reply(contact, reply)

    def synced(self, group: int) -> None:
        """Mark the subscriptions that wait in this group for another try at the end of the step: the group was synced
        by a Sync, or its epoch was activated."""
        self.resume.synced(group)

    def activated(self, group: int, epoch: int, coordinator: str) -> None:
        """Record in the gossip map that `coordinator` coordinates the group in `epoch`, and was heard now."""
        self.gossip.learn(group, epoch, coordinator, self.ctx.now)
