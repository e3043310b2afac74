"""The effects of a commit at this broker: fan-out to the edges, acknowledgement of publishers, release of resumes.

The topic groups know only the protocol `ReplicationListener`; this module implements it. Calls go one way, from a group
to here and on to edges and clients: nothing here calls a group.
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
    """The receiver of all that topic groups report: commits, replies to publications, and changes of the epoch."""

    def __init__(self, ctx: Context, gossip: GossipMap, answers: PendingAnswers, resume: Resume) -> None:
        self.ctx = ctx
        self.gossip = gossip
        self.answers = answers
        self.resume = resume

    def committed(self, group: int, log: TopicLog, publications: list[Publication]) -> None:
        """COMMITTED-ONLY: send publications to every edge, acknowledge them, and release the resumes they complete.
        Every publication passes here once at every broker."""
        ctx, topic = self.ctx, log.name
        ctx.effects.append(Fanout(topic, tuple(publications)))
        ctx.committed += len(publications)
        if self.answers.pending:
            self.answers.acknowledge(topic, publications)
        if group in self.resume.waiting:
            self.resume.committed(group, log)

    def reply(self, contact: str | None, reply: ForwardReply) -> None:
        """Send the coordinator's reply to the contact broker `contact`, None for this broker."""
        self.answers.reply(contact, reply)

    def synced(self, group: int) -> None:
        """Release the resumes that wait for another epoch of the group."""
        self.resume.synced(group)

    def activated(self, group: int, epoch: int, coordinator: str) -> None:
        """Record the group's coordinator in the gossip map."""
        self.gossip.learn(group, epoch, coordinator, self.ctx.now)
