"""The models of the status of a MigratoryCluster, which the operator writes. The API server drops every field that is
not here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.fields import OneOf, PatternText, ResourceModel, WholeNumber

CONDITIONS = ("Ready", "Progressing", "Degraded", "CoordinationAvailable", "SLAMet")
"""Types of the conditions that the operator owns. Conditions of other types keep their own writers."""

Truth = Literal["True", "False", "Unknown"]
_TRUTHS: tuple[Truth, ...] = ("True", "False", "Unknown")
Count = Annotated[int, WholeNumber(0, 2**31 - 1)]

ConditionReason = Annotated[str, PatternText(r"[A-Za-z][A-Za-z0-9_,:]*", 1024, "one word")]


class Condition(ResourceModel):
    """An entry of `status.conditions` of a cluster or a report, in the form that Kubernetes uses for all resources."""

    type: Annotated[str, PatternText(r"[A-Za-z][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?", 316, "a condition's type")] = Field(
        description="Ready, Progressing, Degraded, CoordinationAvailable, SLAMet, or a type of another writer"
    )
    status: Annotated[Truth, OneOf(_TRUTHS)] = Field(description="True, False or Unknown")
    reason: ConditionReason = Field(description="Reason for the status, in one word")
    message: str = Field(description="Explanation for people, with what to do")
    last_transition_time: str = Field(description="When status last changed")
    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that the condition is about"
    )


class ServerStatus(ResourceModel):
    """An entry of `status.servers`, the server list: a broker with its URL."""

    broker: str = Field(description="Name of the broker")
    url: str = Field(description="URL to which clients connect")
    weight: Count = Field(description="Share of new clients")
    ready: bool = Field(description="Whether the broker accepts clients")


class BrokerStatus(ResourceModel):
    """An entry of `status.brokers`. `clients` and `coordinators` are None if the broker does not answer."""

    name: str = Field(description="Name of the broker")
    ready: bool = Field(description="Whether the broker accepts clients")
    clients: Count | None = Field(default=None, description="Connected clients")
    coordinators: Count | None = Field(default=None, description="Topic groups that the broker coordinates")


class ZooKeeperStatus(ResourceModel):
    """The state of ZooKeeper, `status.zookeeper`: the numbers of desired and ready members, the cluster's node in an
    external ensemble, the identity of the data, and when a loss of data was last observed."""

    replicas: Count = Field(description="Desired members; 0 with an external ensemble")
    ready: Count = Field(description="Members that belong to a quorum")
    path: str | None = Field(
        default=None, description="With an external ensemble: the node below which the cluster's nodes are"
    )
    identity: str | None = Field(default=None, description="Name of ZooKeeper's data; another one after a loss")
    data_lost_at: str | None = Field(
        default=None, description="When lost data, or data that was rolled back, was observed last"
    )


class LastReport(ResourceModel):
    """The newest finished report of the cluster's schedule, on which SLAMet is based: `status.lastReport`."""

    name: str = Field(description="Name of the SLAReport")
    verdict: str = Field(description="met, missed or insufficient; failed when the report has no verdict")
    time: str = Field(description="End of the time that was judged")


class ClusterStatus(ResourceModel):
    """The whole status of a cluster: `status`."""

    observed_generation: Count | None = Field(
        default=None, description="Generation of the spec that the status is about"
    )
    conditions: list[Condition] = Field(default=[], description="Conditions of the cluster")
    replicas: Count | None = Field(default=None, description="Broker pods")
    ready_brokers: Count | None = Field(default=None, description="Brokers that accept clients")
    ready: str | None = Field(default=None, description="Ready brokers of the desired number, such as 2/3")
    selector: str | None = Field(default=None, description="Label selector of the broker pods, for autoscalers")
    servers: list[ServerStatus] = Field(default=[], description="URLs to which clients may connect")
    brokers: list[BrokerStatus] = Field(default=[], description="Status of each broker, as it reports itself")
    rollout_since: str | None = Field(default=None, description="When the rollout in progress began")
    zookeeper: ZooKeeperStatus | None = Field(default=None, description="The ZooKeeper ensemble")
    last_report: LastReport | None = Field(
        default=None, description="The newest finished report of the cluster's schedule, on which SLAMet is based"
    )
    last_slot: str | None = Field(
        default=None, description="The newest time of sla.schedule for which a report was made or skipped"
    )
