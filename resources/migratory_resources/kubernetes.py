"""The cluster resource as Kubernetes takes it: the model, and the fields that mean something only there.

The local runner reads the same files with `model.py` and warns of what is added here (`validation.KUBERNETES_ONLY`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from migratory_resources.fields import IMAGE, Model, Quantity, Size, Text, Words
from migratory_resources.model import Brokers, MigratoryCluster, Spec, ZooKeeper
from migratory_resources.newer import known_part
from migratory_resources.problems import ClusterFileError, Problem
from migratory_resources.quantities import parse_amount
from migratory_resources.repairs import judge
from migratory_resources.reporting import KubernetesSla
from migratory_resources.rules import check_rules
from migratory_resources.validation import problems_of

Exposure = Literal["None", "NodePort", "LoadBalancer", "Template"]
EXPOSURES: tuple[Exposure, ...] = ("None", "NodePort", "LoadBalancer", "Template")

HOST = r"[a-zA-Z0-9]([-a-zA-Z0-9.:]{0,251}[a-zA-Z0-9])?"
URL_TEMPLATE = r"wss?://[^/\s]*\{pod\}[^/\s]*(/[^\s]*)?|wss?://[^/\s]+/[^\s]*\{pod\}[^\s]*"
ADDRESSES = r"[-a-zA-Z0-9.]+:[0-9]{1,5}(,[-a-zA-Z0-9.]+:[0-9]{1,5})*"
CLASS_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


class Amounts(Model):
    cpu: Annotated[str, Quantity()] | None = Field(default=None, description="Cores, such as 500m")
    memory: Annotated[str, Quantity()] | None = Field(default=None, description="Bytes, such as 512Mi")


class Resources(Model):
    requests: Amounts = Field(default=Amounts(), description="What the scheduler keeps free for each pod")
    limits: Amounts = Field(default=Amounts(), description="What a pod must not exceed; none unless given")


BROKER_RESOURCES = Resources(requests=Amounts(cpu="100m", memory="256Mi"))
ZOOKEEPER_RESOURCES = Resources(requests=Amounts(cpu="50m", memory="160Mi"))


class Expose(Model):
    """How clients outside the cluster reach each broker: they connect to brokers, not to a balancer before them."""

    type: Annotated[Exposure, Words(EXPOSURES)] = Field(
        default="None",
        description="None: clients are pods. NodePort, LoadBalancer: a Service for each broker. Template: urlTemplate "
        "names what you set up yourself",
    )
    host: Annotated[str, Text(HOST, 253, "a host name or an address")] | None = Field(
        default=None, description="With NodePort: the name or address at which clients reach the nodes"
    )
    url_template: Annotated[str, Text(URL_TEMPLATE, 253, 'a ws:// or wss:// URL that contains "{pod}"')] | None = Field(
        default=None, description="With Template: a broker's URL, in which {pod} is the broker's name"
    )


class KubernetesBrokers(Brokers):
    resources: Resources = Field(default=BROKER_RESOURCES, description="Of each broker's pod")
    expose: Expose = Field(default=Expose(), description="How clients outside the cluster reach the brokers")
    image: Annotated[str, Text(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Instead of the image that the operator brings"
    )


class Storage(Model):
    size: Annotated[int, Size("64Mi", "1Ti")] = Field(default=2**30, description="Of each member's volume; fixed")
    class_name: Annotated[str, Text(CLASS_NAME, 253, "a StorageClass's name")] | None = Field(
        default=None, description="StorageClass of the volumes; the cluster's default unless given; fixed"
    )
    ephemeral: bool = Field(
        default=False, description="Keep data in the pods alone: gone when all members are replaced at once; fixed"
    )


class KubernetesZooKeeper(ZooKeeper):
    external: Annotated[str, Text(ADDRESSES, 1024, "host:port,host:port")] | None = Field(
        default=None, description="An ensemble that is there already, as host:port,host:port; none is made then; fixed"
    )
    storage: Storage = Field(default=Storage(), description="Where members keep their data")
    resources: Resources = Field(default=ZOOKEEPER_RESOURCES, description="Of each member's pod")
    image: Annotated[str, Text(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Instead of the image that the operator brings"
    )


class KubernetesSpec(Spec):
    brokers: KubernetesBrokers = Field(default=KubernetesBrokers(), description="The processes that take clients")
    zookeeper: KubernetesZooKeeper = Field(
        default=KubernetesZooKeeper(), description="Where brokers agree on who coordinates what"
    )
    sla: KubernetesSla = Field(default=KubernetesSla(), description="What reports measure the cluster by, and when")


class KubernetesCluster(MigratoryCluster):
    spec: KubernetesSpec = KubernetesSpec()


def read_cluster(resource: dict[str, Any]) -> KubernetesCluster:
    """The cluster in a custom resource as the API gives it; its other metadata and its status are left out, and fields
    that are not known (`unknown_fields`).

    The API server has judged it by the schema before. But the schema may be older than the operator, or newer.

    :raises ClusterFileError: with all problems found.
    """
    name = resource["metadata"]["name"]
    known, _ = _known(resource)
    judged, errors = judge(KubernetesCluster, known)
    problems = [problem for error in errors for problem in problems_of(error)]
    if judged is not None:
        problems += check_rules(judged)
        spec = judged.cluster.spec
        if judged.right("spec", "brokers", "expose"):
            problems += _exposure(spec.brokers.expose)
        for part, resources in (("brokers", spec.brokers.resources), ("zookeeper", spec.zookeeper.resources)):
            if judged.right("spec", part, "resources"):
                problems += _amounts(f"spec.{part}.resources", resources)
    if judged is None or problems:
        raise ClusterFileError(name, problems) from next(iter(errors), None)
    return judged.cluster


def unknown_fields(resource: dict[str, Any]) -> list[str]:
    """Paths of what this release leaves out (`newer.py`)."""
    _, unknown = _known(resource)
    return unknown


def _known(resource: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The resource without its status and what is not known of its spec, and the paths of that."""
    document = {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {"name": resource["metadata"]["name"]},
        "spec": resource.get("spec", {}),
    }
    return known_part(KubernetesCluster, document)


def _amounts(path: str, resources: Resources) -> list[Problem]:
    requests, limits = resources.requests, resources.limits
    return [
        Problem(f"{path}.limits.{what}", most, f"{least} or more, which requests.{what} asks for")
        for what, least, most in (
            ("cpu", requests.cpu, limits.cpu),
            ("memory", requests.memory, limits.memory),
        )
        if least is not None and most is not None and parse_amount(least) > parse_amount(most)
    ]


def _exposure(expose: Expose) -> list[Problem]:
    problems = []
    for field, value, type_ in (("host", expose.host, "NodePort"), ("urlTemplate", expose.url_template, "Template")):
        if (value is not None) != (expose.type == type_):
            allowed = f"a value with type {type_}, and none with any other"
            problems.append(Problem(f"spec.brokers.expose.{field}", value, allowed))
    return problems
