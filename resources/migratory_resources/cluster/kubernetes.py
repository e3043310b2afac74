"""The models of the MigratoryCluster on Kubernetes: those of `spec.py`, and the fields that have an effect only on
Kubernetes. The operator reads clusters with them.

The local runner reads the same files with `spec.py`, and warns of the fields that are added here
(`validation.loading.KUBERNETES_ONLY`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from cronsim import CronSim, CronSimError
from pydantic import Field, model_validator

from migratory_resources.cluster.identity import KubernetesZooKeeperUserSpec
from migratory_resources.cluster.spec import (
    BrokersSpec,
    ClusterSpec,
    MigratoryCluster,
    SecuritySpec,
    SlaSpec,
    ZooKeeperSpec,
)
from migratory_resources.cluster.tls import KubernetesTlsSpec
from migratory_resources.fields import (
    IMAGE,
    ByteSize,
    OneOf,
    PatternText,
    Quantity,
    ResourceModel,
    WholeNumber,
    not_allowed,
)
from migratory_resources.objectives import check_zone
from migratory_resources.pods import BrokerPod, ZooKeeperPod
from migratory_resources.report_settings import PrometheusSpec, SparkSpec, Zone

Exposure = Literal["None", "NodePort", "LoadBalancer", "Template"]
EXPOSURES: tuple[Exposure, ...] = ("None", "NodePort", "LoadBalancer", "Template")
Retention = Literal["Delete", "Retain"]
RETENTIONS: tuple[Retention, ...] = ("Delete", "Retain")

HOST = r"[a-zA-Z0-9]([-a-zA-Z0-9.:]{0,251}[a-zA-Z0-9])?"
URL_TEMPLATE = r"wss?://[^/\s]*\{pod\}[^/\s]*(/[^\s]*)?|wss?://[^/\s]+/[^\s]*\{pod\}[^\s]*"
ADDRESSES = r"[-a-zA-Z0-9.]+:[0-9]{1,5}(,[-a-zA-Z0-9.]+:[0-9]{1,5})*"
ZOOKEEPER_PATH = r"(/[-a-zA-Z0-9_][-a-zA-Z0-9_.]*)+"
CLASS_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
CRON = r"[-0-9A-Za-z*/,#]+( [-0-9A-Za-z*/,#]+){4}"
_CRON_FORM = 'a cron expression of five fields (minute, hour, day, month, weekday), such as "*/30 * * * *"'


class ResourceAmounts(ResourceModel):
    """Amounts of CPU and memory, as Kubernetes quantities; None for an amount that is not given."""

    cpu: Annotated[str, Quantity()] | None = Field(default=None, description="Cores, such as 500m")
    memory: Annotated[str, Quantity()] | None = Field(default=None, description="Bytes, such as 512Mi")


class PodResources(ResourceModel):
    """CPU and memory of each pod: `spec.brokers.resources` and `spec.zookeeper.resources`."""

    requests: ResourceAmounts = Field(
        default=ResourceAmounts(), description="Resources that the scheduler reserves for each pod"
    )
    limits: ResourceAmounts = Field(
        default=ResourceAmounts(),
        description="Resources that a pod must not exceed; the operator sets a memory limit when none is given",
    )


BROKER_RESOURCES = PodResources(requests=ResourceAmounts(cpu="100m", memory="256Mi"))
ZOOKEEPER_RESOURCES = PodResources(requests=ResourceAmounts(cpu="50m", memory="160Mi"))


class ExposeSpec(ResourceModel):
    """The way in which clients outside of Kubernetes reach the brokers: `spec.brokers.expose`. Each broker has its own
    URL, because clients connect to a particular broker and not to a load balancer's pool."""

    type: Annotated[Exposure, OneOf(EXPOSURES)] = Field(
        default="None",
        description="None: clients are pods. NodePort, LoadBalancer: one Service per broker. Template: urlTemplate "
        "gives the URLs of an exposure that you set up yourself",
    )
    host: Annotated[str, PatternText(HOST, 253, "a host name or an address")] | None = Field(
        default=None, description="With NodePort: the name or address at which clients reach the nodes"
    )
    url_template: (
        Annotated[str, PatternText(URL_TEMPLATE, 253, 'a ws:// or wss:// URL that contains "{pod}"')] | None
    ) = Field(default=None, description="With Template: a broker's URL, in which {pod} is the broker's name")


class KubernetesBrokersSpec(BrokersSpec):
    """`spec.brokers`, with the fields that have an effect only on Kubernetes."""

    resources: PodResources = Field(default=BROKER_RESOURCES, description="Resources of each broker's pod")
    expose: ExposeSpec = Field(default=ExposeSpec(), description="How clients outside of Kubernetes reach the brokers")
    image: Annotated[str, PatternText(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Image to use instead of the operator's default"
    )
    pod: BrokerPod | None = Field(default=None, description="What is added to the brokers' pods")


class StorageSpec(ResourceModel):
    """The volumes of the ZooKeeper members: `spec.zookeeper.storage`."""

    size: Annotated[int, ByteSize("64Mi", "1Ti")] = Field(
        default=2**30,
        description="Size of each member's volume; it may grow, where the StorageClass allows it, and never shrinks",
    )
    class_name: Annotated[str, PatternText(CLASS_NAME, 253, "a StorageClass's name")] | None = Field(
        default=None, description="StorageClass of the volumes; the default StorageClass when not given; immutable"
    )
    ephemeral: bool = Field(
        default=False,
        description="Keep data inside the pods only; it is lost when all members are replaced at once; immutable",
    )
    when_deleted: Annotated[Retention, OneOf(RETENTIONS)] = Field(
        default="Delete",
        description="What happens to the volume claims when the cluster is deleted: Delete or Retain. A new cluster of "
        "the same name uses retained claims",
    )


class KubernetesZooKeeperSpec(ZooKeeperSpec):
    """`spec.zookeeper`, with the fields that have an effect only on Kubernetes. `chroot` is allowed with `external`
    only."""

    external: Annotated[str, PatternText(ADDRESSES, 1024, "host:port,host:port")] | None = Field(
        default=None,
        description="Addresses of an existing ensemble, as host:port,host:port; the operator creates none then; "
        "immutable",
    )
    chroot: Annotated[str, PatternText(ZOOKEEPER_PATH, 255, 'a path such as "/staging"')] | None = Field(
        default=None,
        description="With external: the node below which the cluster's nodes are, for ensembles that serve several "
        "Kubernetes clusters; immutable",
    )
    storage: StorageSpec = Field(default=StorageSpec(), description="Storage of the members' data")
    resources: PodResources = Field(default=ZOOKEEPER_RESOURCES, description="Resources of each member's pod")
    image: Annotated[str, PatternText(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Image to use instead of the operator's default"
    )
    pod: ZooKeeperPod | None = Field(default=None, description="What is added to the members' pods")

    @model_validator(mode="after")
    def _has_an_external_ensemble(self) -> Self:
        """Return the spec. Raise PydanticCustomError if `chroot` is given without `external`."""
        if self.chroot is not None and self.external is None:
            raise not_allowed("chroot only with external")
        return self


class KubernetesSlaSpec(SlaSpec):
    """`spec.sla`, with the fields that have an effect only on Kubernetes. A schedule must come due at some time, and
    needs `prometheus`."""

    prometheus: PrometheusSpec | None = Field(default=None, description="The Prometheus server from which reports read")
    schedule: Annotated[str, PatternText(CRON, 200, _CRON_FORM)] | None = Field(
        default=None, description="Cron expression of five fields; each report judges the window before its time"
    )
    zone: Zone = Field(default="UTC", description="Time zone of schedule, and of the hours and days in reports")
    history_limit: Annotated[int, WholeNumber(1, 100)] = Field(
        default=5, description="Number of scheduled reports to keep, the newest ones"
    )
    spark: SparkSpec = Field(default=SparkSpec(), description="The Spark pods that make reports")

    @model_validator(mode="after")
    def _is_schedulable(self) -> Self:
        """Return the spec. Raise PydanticCustomError if the time zone does not exist, or the schedule lacks
        `prometheus` or never comes due."""
        check_zone(self.zone)
        if self.schedule is None:
            return self
        if self.prometheus is None:
            raise not_allowed("a schedule only with prometheus")
        try:
            next(CronSim(self.schedule, datetime(2026, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            raise not_allowed(f"for schedule: {_CRON_FORM}; {self.schedule!r} never comes due") from error
        return self


class KubernetesSecuritySpec(SecuritySpec):
    """`spec.security`, with certificates and passwords in Secrets."""

    tls: KubernetesTlsSpec = Field(  # type: ignore[assignment]
        default=KubernetesTlsSpec(), description="Certificates of the brokers; no TLS without them"
    )
    zookeeper: KubernetesZooKeeperUserSpec | None = Field(  # type: ignore[assignment]
        default=None, description="User and password of the brokers in ZooKeeper; without them its nodes are open"
    )


class KubernetesClusterSpec(ClusterSpec):
    """`spec`, with the fields that have an effect only on Kubernetes."""

    brokers: KubernetesBrokersSpec = Field(default=KubernetesBrokersSpec(), description="The broker processes")
    zookeeper: KubernetesZooKeeperSpec = Field(
        default=KubernetesZooKeeperSpec(), description="The ZooKeeper ensemble through which brokers elect coordinators"
    )
    security: KubernetesSecuritySpec = Field(
        default=KubernetesSecuritySpec(), description="Which clients and web pages may connect, and certificates"
    )
    sla: KubernetesSlaSpec = Field(
        default=KubernetesSlaSpec(), description="Objectives by which reports judge the cluster, and their schedule"
    )


class KubernetesCluster(MigratoryCluster):
    """A MigratoryCluster resource as the operator reads it: with the fields that have an effect only on Kubernetes."""

    spec: KubernetesClusterSpec = KubernetesClusterSpec()
