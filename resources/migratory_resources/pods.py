"""Pod templates: what a user adds to the pods of brokers, ZooKeeper members and reports (`spec.brokers.pod`,
`spec.zookeeper.pod`, `spec.sla.spark.pod`).

The fields are those of a Kubernetes pod that change neither what the operator relies on nor the pods' privileges: no
security context of the pod, no host's namespaces or folders, no choice of the service account. `validation.pods` has
the rules between them, and against the operator's own names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from migratory_resources.fields import (
    IMAGE,
    ByteSize,
    DnsLabel,
    OneOf,
    PatternText,
    Quantity,
    ResourceModel,
    WholeNumber,
)

_PREFIX = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
LABEL_KEY = rf"{_PREFIX}[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
LABEL_KEY_FORM = 'a name with an optional domain, such as "team" or "example.com/team"'
LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
LABEL_VALUE_FORM = 'up to 63 of A-Z, a-z, 0-9, "-", "_" and ".", beginning and ending with a letter or digit'

Text = Annotated[
    str, PatternText(r"[^\x00]*", 4096, "text (in quotes, if it looks like a number), up to 4096 characters")
]
LabelKey = Annotated[str, PatternText(LABEL_KEY, 317, LABEL_KEY_FORM)]
LabelValue = Annotated[str, PatternText(LABEL_VALUE, 63, LABEL_VALUE_FORM)]
ObjectName = Annotated[str, PatternText(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", 253, "an object's name")]
EnvName = Annotated[str, PatternText(r"[A-Za-z_][-A-Za-z0-9_.]*", 253, "the name of an environment variable")]
MountPath = Annotated[str, PatternText(r"/[^:\x00-\x1f]*", 1024, 'an absolute path without ":"')]
Port = Annotated[int, WholeNumber(1, 65535)]
Seconds = Annotated[int, WholeNumber(1, 86_400)]
Checks = Annotated[int, WholeNumber(1, 86_400)]
_Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_OPERATORS: tuple[_Operator, ...] = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class LocalReference(ResourceModel):
    """The name of an object in the same namespace."""

    name: ObjectName = Field(description="Name of the object")


class SelectorRequirement(ResourceModel):
    """An expression about one label or field of a node or pod: its name, an operator and values."""

    key: LabelKey = Field(description="Name of the label or field")
    operator: Annotated[_Operator, OneOf(_OPERATORS)] = Field(description="In, NotIn, Exists, DoesNotExist, Gt or Lt")
    values: list[Text] = Field(default_factory=list, description="Values; none for Exists and DoesNotExist")


class LabelSelector(ResourceModel):
    """A selector of objects by their labels."""

    match_labels: dict[str, LabelValue] = Field(default_factory=dict, description="Labels with their values")
    match_expressions: list[SelectorRequirement] = Field(default_factory=list, description="Expressions about labels")


class NodeSelectorTerm(ResourceModel):
    """Expressions about labels and fields of a node, all of which must be true."""

    match_expressions: list[SelectorRequirement] = Field(default_factory=list, description="About the node's labels")
    match_fields: list[SelectorRequirement] = Field(default_factory=list, description="About the node's fields")


class NodeSelector(ResourceModel):
    """Terms about a node, one of which must be true."""

    node_selector_terms: list[NodeSelectorTerm] = Field(description="The terms")


class PreferredNodes(ResourceModel):
    """A term about nodes, and the weight of its preference."""

    weight: Annotated[int, WholeNumber(1, 100)] = Field(description="Weight, 1 to 100")
    preference: NodeSelectorTerm = Field(description="The preferred nodes")


class NodeAffinity(ResourceModel):
    """The nodes on which a pod must or should run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="Nodes on which the pod must run"
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodes] = Field(
        default_factory=list, description="Nodes on which the pod should run"
    )


class PodAffinityTerm(ResourceModel):
    """Other pods, chosen by labels and namespaces, and the kind of place, such as a node or a zone, in which a pod runs
    beside them or apart from them."""

    label_selector: LabelSelector | None = Field(default=None, description="The other pods")
    namespaces: list[ObjectName] = Field(default_factory=list, description="Their namespaces; the pod's when empty")
    namespace_selector: LabelSelector | None = Field(default=None, description="Their namespaces, by label")
    topology_key: LabelKey = Field(description="Label of the nodes that are one place")
    match_label_keys: list[LabelKey] = Field(default_factory=list, description="Labels that are equal in both pods")
    mismatch_label_keys: list[LabelKey] = Field(default_factory=list, description="Labels that differ")


class PreferredPods(ResourceModel):
    """A term about other pods, and the weight of its preference."""

    weight: Annotated[int, WholeNumber(1, 100)] = Field(description="Weight, 1 to 100")
    pod_affinity_term: PodAffinityTerm = Field(description="The other pods")


class PodAffinity(ResourceModel):
    """Other pods beside which, or apart from which, a pod must run (required) or should run (preferred)."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = Field(
        default_factory=list, description="What must be so"
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredPods] = Field(
        default_factory=list, description="What should be so"
    )


class Affinity(ResourceModel):
    """The affinity of a pod to nodes and to other pods."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Nodes")
    pod_affinity: PodAffinity | None = Field(default=None, description="Pods beside which it runs")
    pod_anti_affinity: PodAffinity | None = Field(default=None, description="Pods apart from which it runs")


class Toleration(ResourceModel):
    """A taint, or several, of nodes on which a pod may run all the same."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; every taint when not given, with Exists")
    operator: Annotated[Literal["Equal", "Exists"], OneOf(("Equal", "Exists"))] | None = Field(
        default=None, description="Equal (the default) or Exists"
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint, with Equal")
    effect: (
        Annotated[
            Literal["NoSchedule", "PreferNoSchedule", "NoExecute"],
            OneOf(("NoSchedule", "PreferNoSchedule", "NoExecute")),
        ]
        | None
    ) = Field(default=None, description="Effect of the taint; every effect when not given")
    toleration_seconds: Annotated[int, WholeNumber(0, 2**31 - 1)] | None = Field(
        default=None, description="With NoExecute: seconds after which the pod leaves; never when not given"
    )


class TopologySpread(ResourceModel):
    """A rule by which pods spread over nodes, zones or other places."""

    topology_key: LabelKey = Field(description="Label of the nodes that are one place")
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"], OneOf(("DoNotSchedule", "ScheduleAnyway"))
    ] = Field(description="DoNotSchedule or ScheduleAnyway")
    max_skew: Annotated[int, WholeNumber(1, 100)] = Field(default=1, description="Difference in the number of pods")
    min_domains: Annotated[int, WholeNumber(1, 100)] | None = Field(
        default=None, description="With DoNotSchedule: places that there must be"
    )
    label_selector: LabelSelector | None = Field(
        default=None, description="The pods that are counted; those of the same component when not given"
    )


class EnvKey(ResourceModel):
    """An entry of a ConfigMap or Secret as the value of an environment variable. With `optional` it may be missing."""

    name: ObjectName = Field(description="Name of the object")
    key: Annotated[str, PatternText(r"[-._a-zA-Z0-9]+", 253, "a key")] = Field(description="Key in the object")
    optional: bool = Field(default=False, description="Whether it may be missing")


class EnvField(ResourceModel):
    """A field of the pod as the value of an environment variable."""

    field_path: Text = Field(description="Path of the field, such as status.hostIP")


class EnvSource(ResourceModel):
    """The place from which an environment variable has its value. Validation requires exactly one of the three."""

    config_map_key_ref: EnvKey | None = Field(default=None, description="An entry of a ConfigMap")
    secret_key_ref: EnvKey | None = Field(default=None, description="An entry of a Secret")
    field_ref: EnvField | None = Field(default=None, description="A field of the pod")


class EnvVariable(ResourceModel):
    """An environment variable of a container, with a value or the source of one. Validation refuses both."""

    name: EnvName = Field(description="Name of the variable")
    value: Text | None = Field(default=None, description="Value of the variable")
    value_from: EnvSource | None = Field(default=None, description="Source of the value, instead of a value")


class EnvFrom(ResourceModel):
    """A ConfigMap or Secret, each entry of which is an environment variable. Validation requires exactly one of the
    two."""

    prefix: Text | None = Field(default=None, description="What the variables' names begin with")
    config_map_ref: LocalReference | None = Field(default=None, description="A ConfigMap")
    secret_ref: LocalReference | None = Field(default=None, description="A Secret")


class KeyToPath(ResourceModel):
    """An entry of a ConfigMap or Secret, and its file in a volume."""

    key: Annotated[str, PatternText(r"[-._a-zA-Z0-9]+", 253, "a key")] = Field(description="Key in the object")
    path: Text = Field(description="Path of the file in the volume")


class ConfigMapVolume(ResourceModel):
    """A volume with the entries of a ConfigMap."""

    name: ObjectName = Field(description="Name of the ConfigMap")
    items: list[KeyToPath] = Field(default_factory=list, description="Entries; all when empty")
    default_mode: Annotated[int, WholeNumber(0, 511)] | None = Field(default=None, description="Mode of the files")
    optional: bool = Field(default=False, description="Whether it may be missing")


class SecretVolume(ResourceModel):
    """A volume with the entries of a Secret."""

    secret_name: ObjectName = Field(description="Name of the Secret")
    items: list[KeyToPath] = Field(default_factory=list, description="Entries; all when empty")
    default_mode: Annotated[int, WholeNumber(0, 511)] | None = Field(default=None, description="Mode of the files")
    optional: bool = Field(default=False, description="Whether it may be missing")


class EmptyVolume(ResourceModel):
    """A volume that is empty at first, and lives as long as the pod."""

    medium: Annotated[Literal["Memory"], OneOf(("Memory",))] | None = Field(
        default=None, description="Memory, or the node's disk when not given"
    )
    size_limit: Annotated[int, ByteSize("1Ki", "1Ti")] | None = Field(default=None, description="Size")


class ClaimVolume(ResourceModel):
    """A volume of a PersistentVolumeClaim."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim, which all pods share")
    read_only: bool = Field(default=False, description="Mount it read-only")


class CsiVolume(ResourceModel):
    """A volume that a CSI driver provides for the pod, such as secrets of a vault."""

    driver: ObjectName = Field(description="Name of the driver")
    read_only: bool = Field(default=False, description="Mount it read-only")
    volume_attributes: dict[str, Text] = Field(default_factory=dict, description="Attributes for the driver")
    node_publish_secret_ref: LocalReference | None = Field(default=None, description="Secret for the driver")


class TokenProjection(ResourceModel):
    """A token of the pod's service account for another audience."""

    audience: Text | None = Field(default=None, description="The token's audience")
    expiration_seconds: Annotated[int, WholeNumber(600, 2**31 - 1)] | None = Field(
        default=None, description="Seconds for which the token is valid"
    )
    path: Text = Field(description="Path of the file in the volume")


class ConfigMapProjection(ResourceModel):
    """The entries of a ConfigMap, in a volume with other sources."""

    name: ObjectName = Field(description="Name of the ConfigMap")
    items: list[KeyToPath] = Field(default_factory=list, description="Entries; all when empty")
    optional: bool = Field(default=False, description="Whether it may be missing")


class SecretProjection(ResourceModel):
    """The entries of a Secret, in a volume with other sources."""

    name: ObjectName = Field(description="Name of the Secret")
    items: list[KeyToPath] = Field(default_factory=list, description="Entries; all when empty")
    optional: bool = Field(default=False, description="Whether it may be missing")


class ProjectionSource(ResourceModel):
    """One of the sources of a projected volume. Validation requires exactly one of the three."""

    config_map: ConfigMapProjection | None = Field(default=None, description="A ConfigMap")
    secret: SecretProjection | None = Field(default=None, description="A Secret")
    service_account_token: TokenProjection | None = Field(default=None, description="A token of the service account")


class ProjectedVolume(ResourceModel):
    """A volume with files from several sources."""

    sources: list[ProjectionSource] = Field(max_length=10, description="The sources")
    default_mode: Annotated[int, WholeNumber(0, 511)] | None = Field(default=None, description="Mode of the files")


class Volume(ResourceModel):
    """A volume of a pod. Validation requires exactly one source."""

    name: Annotated[str, DnsLabel(63)] = Field(description="Name of the volume")
    config_map: ConfigMapVolume | None = Field(default=None, description="Entries of a ConfigMap")
    secret: SecretVolume | None = Field(default=None, description="Entries of a Secret")
    empty_dir: EmptyVolume | None = Field(default=None, description="An empty folder")
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A PersistentVolumeClaim")
    csi: CsiVolume | None = Field(default=None, description="A volume of a CSI driver")
    projected: ProjectedVolume | None = Field(default=None, description="Files from several sources")


class VolumeMount(ResourceModel):
    """The place at which a container has a volume of the pod template."""

    name: Annotated[str, DnsLabel(63)] = Field(description="Name of a volume of the template")
    mount_path: MountPath = Field(description="Folder or file in the container")
    sub_path: Text | None = Field(default=None, description="Path in the volume")
    read_only: bool = Field(default=False, description="Mount it read-only")


class ContainerPort(ResourceModel):
    """A port of a container."""

    container_port: Port = Field(description="Number of the port")
    name: Annotated[str, DnsLabel(15)] | None = Field(default=None, description="Name of the port")
    protocol: Annotated[Literal["TCP", "UDP", "SCTP"], OneOf(("TCP", "UDP", "SCTP"))] = Field(
        default="TCP", description="TCP, UDP or SCTP"
    )


class ExecAction(ResourceModel):
    """A command inside of the container, with which a probe checks the container."""

    command: list[Text] = Field(max_length=50, description="The command and its arguments")


class HttpAction(ResourceModel):
    """A request by HTTP, with which a probe checks a container."""

    path: Text = Field(default="/", description="Path of the request")
    port: Port = Field(description="Number of the port")
    scheme: Annotated[Literal["HTTP", "HTTPS"], OneOf(("HTTP", "HTTPS"))] = Field(
        default="HTTP", description="HTTP or HTTPS"
    )


class TcpAction(ResourceModel):
    """A connection by TCP, with which a probe checks a container."""

    port: Port = Field(description="Number of the port")


class Probe(ResourceModel):
    """A check of a container: a command, a request or a connection, of which validation requires exactly one. A time or
    number that is not given is Kubernetes's default."""

    exec: ExecAction | None = Field(default=None, description="A command")
    http_get: HttpAction | None = Field(default=None, description="A request by HTTP")
    tcp_socket: TcpAction | None = Field(default=None, description="A connection by TCP")
    initial_delay_seconds: Seconds | None = Field(default=None, description="Seconds before the first check")
    period_seconds: Seconds | None = Field(default=None, description="Seconds between two checks")
    timeout_seconds: Seconds | None = Field(default=None, description="Seconds until a check has failed")
    success_threshold: Checks | None = Field(default=None, description="Checks until it is well")
    failure_threshold: Checks | None = Field(default=None, description="Checks until it has failed")


class ContainerAmounts(ResourceModel):
    """Amounts of a container's CPU and memory, as Kubernetes quantities; None for an amount that is not given."""

    cpu: Annotated[str, Quantity()] | None = Field(default=None, description="Cores, such as 50m")
    memory: Annotated[str, Quantity()] | None = Field(default=None, description="Bytes, such as 64Mi")


class ContainerResources(ResourceModel):
    """The amounts of CPU and memory that a container requests, and those that it must not exceed."""

    requests: ContainerAmounts = Field(default=ContainerAmounts(), description="What the scheduler reserves")
    limits: ContainerAmounts = Field(default=ContainerAmounts(), description="What it must not exceed")


class ContainerSecurity(ResourceModel):
    """The part of a container's security context that can be chosen. The rest is that of the operator's containers: no
    privileges, no capabilities, not root."""

    run_as_user: Annotated[int, WholeNumber(1, 2**31 - 1)] | None = Field(
        default=None, description="User id; that of the broker when not given"
    )
    run_as_group: Annotated[int, WholeNumber(1, 2**31 - 1)] | None = Field(
        default=None, description="Group id; that of the broker when not given"
    )
    read_only_root_filesystem: bool = Field(default=True, description="Whether its root file system is read-only")


class Container(ResourceModel):
    """A container of a user that runs beside the operator's own one."""

    name: Annotated[str, DnsLabel(63)] = Field(description="Name of the container")
    image: Annotated[str, PatternText(IMAGE, 511, "an image's name")] = Field(description="Image of the container")
    image_pull_policy: (
        Annotated[Literal["Always", "IfNotPresent", "Never"], OneOf(("Always", "IfNotPresent", "Never"))] | None
    ) = Field(default=None, description="The operator's when not given")
    command: list[Text] = Field(default_factory=list, description="Command; the image's when empty")
    args: list[Text] = Field(default_factory=list, description="Arguments; the image's when empty")
    working_dir: MountPath | None = Field(default=None, description="Working directory")
    env: list[EnvVariable] = Field(default_factory=list, max_length=50, description="Environment variables")
    env_from: list[EnvFrom] = Field(default_factory=list, max_length=10, description="Environment from objects")
    ports: list[ContainerPort] = Field(default_factory=list, max_length=10, description="Ports")
    resources: ContainerResources = Field(default=ContainerResources(), description="CPU and memory")
    volume_mounts: list[VolumeMount] = Field(default_factory=list, max_length=20, description="Volumes of the template")
    readiness_probe: Probe | None = Field(default=None, description="The pod is ready when all containers are")
    liveness_probe: Probe | None = Field(default=None, description="The container is restarted when it fails")
    startup_probe: Probe | None = Field(default=None, description="The other probes wait for it")
    security_context: ContainerSecurity = Field(default=ContainerSecurity(), description="User and file system")


class InitContainer(Container):
    """A container of a user that runs before the operator's own one, or beside it with `restartPolicy` Always."""

    restart_policy: Annotated[Literal["Always"], OneOf(("Always",))] | None = Field(
        default=None, description="Always: a sidecar that starts before the other containers and ends after them"
    )


@dataclass(frozen=True)
class ReservedNames:
    """The names that the operator uses itself in a kind of pod, so that a template must not have them."""

    containers: tuple[str, ...]
    volumes: tuple[str, ...]
    paths: tuple[str, ...]
    """Folders of the operator's container. A volume must be mounted neither inside of one nor around one."""
    env: tuple[str, ...] = ()
    env_prefixes: tuple[str, ...] = ()
    volume_prefixes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


RESERVED_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "apps.kubernetes.io/pod-index",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "controller-uid",
    "job-name",
)
"""Labels of pods that the operator, StatefulSets and Jobs set, and by which they select."""
RESERVED_LABEL_PREFIXES = ("migratory.dev/", "batch.kubernetes.io/", "spark-")
RESERVED_ANNOTATION_PREFIXES = (
    "migratory.dev/",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
"""Annotations that the operator sets, and those that would take a restriction from a pod."""


class PodTemplate(ResourceModel):
    """The additions of a user to a kind of pod. Each kind has a subclass, with the names that the operator uses
    there."""

    RESERVED: ClassVar[ReservedNames]

    labels: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=50, description="Labels; those by which the operator selects are refused"
    )
    annotations: dict[str, Text] = Field(default_factory=dict, max_length=50, description="Annotations")
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list, max_length=10, description="Secrets for registries, beside the operator's"
    )
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=50, description="Labels of the nodes on which pods run"
    )
    affinity: Affinity | None = Field(default=None, description="Affinity to nodes and to other pods")
    tolerations: list[Toleration] = Field(default_factory=list, max_length=50, description="Tolerated taints of nodes")
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods")
    topology_spread_constraints: list[TopologySpread] = Field(
        default_factory=list,
        max_length=10,
        description="How pods spread; an entry replaces the operator's one of the same topologyKey",
    )
    env: list[EnvVariable] = Field(
        default_factory=list, max_length=50, description="Environment variables of the operator's container"
    )
    volumes: list[Volume] = Field(default_factory=list, max_length=20, description="Volumes")
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list, max_length=20, description="Volumes of the template in the operator's container"
    )
    init_containers: list[InitContainer] = Field(
        default_factory=list,
        max_length=10,
        description="Containers that run before the operator's own; with restartPolicy Always beside it",
    )


class ServerPod(PodTemplate):
    """The additions of a user to pods that run until they are stopped: those of brokers and of ZooKeeper's members."""

    containers: list[Container] = Field(
        default_factory=list, max_length=10, description="Containers beside the operator's own"
    )


class BrokerPod(ServerPod):
    """The additions of a user to the brokers' pods: `spec.brokers.pod`."""

    RESERVED: ClassVar[ReservedNames] = ReservedNames(
        env=("POD_NAME", "MIGRATORY_REVISION"),
        containers=("broker",),
        volumes=("config", "tmp"),
        volume_prefixes=("secret-", "tls-"),
        paths=("/etc/migratory", "/etc/migratory-secrets", "/etc/migratory-tls", "/tmp"),
        ports=(8080, 8081, 8082),
    )

    service_account_annotations: dict[str, Text] = Field(
        default_factory=dict,
        max_length=50,
        description="Annotations of the service account of brokers and ZooKeeper's members, such as a cloud role; "
        "changed without a restart",
    )


class ZooKeeperPod(ServerPod):
    """The additions of a user to the pods of ZooKeeper's members: `spec.zookeeper.pod`."""

    RESERVED: ClassVar[ReservedNames] = ReservedNames(
        env=("POD_NAME",),
        containers=("zookeeper",),
        volumes=("config", "data", "tmp", "tls", "certificates"),
        paths=("/etc/zookeeper", "/etc/zookeeper-tls", "/run/zookeeper-tls", "/data", "/tmp"),
        ports=(2181, 2281, 2888, 3888),
    )


class ReportPod(PodTemplate):
    """The additions of a user to the pods of reports, driver and executors: `spec.sla.spark.pod`. These pods end by
    themselves, so that a sidecar is an init container with `restartPolicy` Always."""

    RESERVED: ClassVar[ReservedNames] = ReservedNames(
        env=("SPARK_SUBMIT_OPTS",),
        env_prefixes=("SPARK_",),
        containers=("report", "submit", "sla-submit", "sla-driver", "sla-executor"),
        volumes=("tmp", "run", "auth", "prometheus", "history"),
        volume_prefixes=("spark-", "pod-template-", "hadoop-", "krb5-"),
        paths=("/etc/migratory", "/var/lib/migratory", "/opt/spark", "/tmp"),
    )

    service_account_annotations: dict[str, Text] = Field(
        default_factory=dict,
        max_length=50,
        description="Annotations of the service account of the driver and executors, such as a cloud role",
    )


def template_fields(template: PodTemplate) -> dict[str, Any]:
    """Return the fields of a template that differ from their defaults, in the form of the Kubernetes API."""
    return template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
