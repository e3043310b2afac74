"""What the operator writes into `status`: the words and their shapes. The schema prunes whatever is not here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.fields import Model, Text, Whole, Words

CONDITIONS = ("Ready", "Progressing", "Degraded", "CoordinationAvailable", "SLAMet")
"""Types that the operator owns. Whoever else writes conditions of other types keeps them."""

Truth = Literal["True", "False", "Unknown"]
_TRUTHS: tuple[Truth, ...] = ("True", "False", "Unknown")
Count = Annotated[int, Whole(0, 2**31 - 1)]

Reason = Annotated[str, Text(r"[A-Za-z][A-Za-z0-9_,:]*", 1024, "one word")]


class Condition(Model):
    type: Annotated[str, Text(r"[A-Za-z][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?", 316, "a condition's type")] = Field(
        description="Ready, Progressing, Degraded, CoordinationAvailable, SLAMet, or another's"
    )
    status: Annotated[Truth, Words(_TRUTHS)] = Field(description="True, False or Unknown")
    reason: Reason = Field(description="In one word")
    message: str = Field(description="For a person: what is so, and what to do")
    last_transition_time: str = Field(description="When status last changed")
    observed_generation: Count | None = Field(default=None, description="The generation of the spec it speaks of")


class Server(Model):
    broker: str = Field(description="The broker's name")
    url: str = Field(description="Where clients connect")
    weight: Count = Field(description="Share of new clients")
    ready: bool = Field(description="Whether it takes clients now")


class BrokerStatus(Model):
    name: str = Field(description="The broker's name")
    ready: bool = Field(description="Whether it takes clients now")
    clients: Count | None = Field(default=None, description="Clients that are connected to it")
    coordinators: Count | None = Field(default=None, description="Topic groups that it coordinates")


class ZooKeeperStatus(Model):
    replicas: Count = Field(description="Members that are wanted; 0 with an external ensemble")
    ready: Count = Field(description="Members that belong to a quorum")


class LastReport(Model):
    name: str = Field(description="The SLAReport's name")
    verdict: str = Field(description="met, missed or insufficient; failed when it came to none")
    time: str = Field(description="The end of the time that it judged")


class ClusterStatus(Model):
    observed_generation: Count | None = Field(default=None, description="The generation of the spec that this is about")
    conditions: list[Condition] = Field(default=[], description="What holds, each with its reason")
    replicas: Count | None = Field(default=None, description="Pods of brokers")
    ready_brokers: Count | None = Field(default=None, description="Brokers that take clients")
    ready: str | None = Field(default=None, description="Ready brokers of those wanted, for people")
    selector: str | None = Field(default=None, description="Of the brokers' pods, for autoscalers")
    servers: list[Server] = Field(default=[], description="Where clients may connect")
    brokers: list[BrokerStatus] = Field(default=[], description="What each broker says about itself")
    rollout_since: str | None = Field(default=None, description="When the replacement of pods began that is under way")
    zookeeper: ZooKeeperStatus | None = Field(default=None, description="The ensemble")
    last_report: LastReport | None = Field(
        default=None, description="The newest report that has ended, of those that judge the cluster's own objectives"
    )
    last_slot: str | None = Field(default=None, description="The newest time of sla.schedule that was dealt with")
