"""Rules of pod templates: names that the operator needs itself, references inside of a template, and one source or way
where Kubernetes allows one. Each broken rule names the field. `crd.rules` has in CEL those about the operator's
names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from pydantic import BaseModel

from migratory_resources.pods import (
    LABEL_KEY,
    LABEL_KEY_FORM,
    RESERVED_ANNOTATION_PREFIXES,
    RESERVED_LABEL_PREFIXES,
    RESERVED_LABELS,
    BrokerPod,
    Container,
    EnvVariable,
    InitContainer,
    PodTemplate,
    Probe,
    ReportPod,
    ServerPod,
    Toleration,
    Volume,
    VolumeMount,
)
from migratory_resources.quantities import parse_amount
from migratory_resources.validation.problems import FieldProblem

_FREE = "a name that the operator does not use itself, which are"


def check_pod(path: str, template: PodTemplate | None) -> list[FieldProblem]:
    """Return a problem for each broken rule of a pod template; none for None.

    :param path: the path of the template in its resource, such as `spec.brokers.pod`.
    """
    if template is None:
        return []
    reserved = type(template).RESERVED
    containers = template.containers if isinstance(template, ServerPod) else []
    added: list[tuple[str, Sequence[Container]]] = [
        ("containers", containers),
        ("initContainers", template.init_containers),
    ]
    account = template.service_account_annotations if isinstance(template, BrokerPod | ReportPod) else {}
    volumes = [volume.name for volume in template.volumes]
    spreads = [spread.topology_key for spread in template.topology_spread_constraints]
    problems = [
        *_keys(f"{path}.labels", template.labels, RESERVED_LABELS, RESERVED_LABEL_PREFIXES),
        *_keys(f"{path}.annotations", template.annotations, (), RESERVED_ANNOTATION_PREFIXES),
        *_keys(f"{path}.serviceAccountAnnotations", account, (), ("migratory.dev/",)),
        *_keys(f"{path}.nodeSelector", template.node_selector, (), ()),
        *_duplicates(f"{path}.imagePullSecrets", [secret.name for secret in template.image_pull_secrets]),
        *_tolerations(f"{path}.tolerations", template.tolerations),
        *_duplicates(f"{path}.topologySpreadConstraints", spreads, "topologyKey"),
        *_names(f"{path}.env", [one.name for one in template.env], reserved.env, reserved.env_prefixes),
        *_env(f"{path}.env", template.env),
        *_names(f"{path}.volumes", volumes, reserved.volumes, reserved.volume_prefixes),
        *_sources(f"{path}.volumes", template.volumes),
        *_mounts(f"{path}.volumeMounts", template.volume_mounts, volumes, reserved.paths),
    ]
    taken = {*reserved.containers}
    ports = dict.fromkeys(reserved.ports, "the operator's container")
    for field, entries in added:
        problems += _names(f"{path}.{field}", [one.name for one in entries], tuple(sorted(taken)))
        taken |= {one.name for one in entries}
        for index, container in enumerate(entries):
            problems += _container(f"{path}.{field}[{index}]", container, volumes)
            if isinstance(container, InitContainer) and container.restart_policy is None:
                continue  # its ports are free before the other containers start
            problems += _ports(f"{path}.{field}[{index}].ports", container, ports)
    return problems


def _keys(
    path: str, given: Mapping[str, str], reserved: Sequence[str], prefixes: tuple[str, ...]
) -> Iterator[FieldProblem]:
    """Yield a problem for each key of labels, annotations or a node selector that is malformed or reserved.

    :param prefixes: what the reserved keys begin with.
    """
    for key in given:
        if not re.fullmatch(LABEL_KEY, key):
            yield FieldProblem(path, key, LABEL_KEY_FORM)
        elif key in reserved or key.startswith(prefixes):
            yield FieldProblem(path, key, "keys that neither the operator nor Kubernetes sets or reads itself")


def _duplicates(path: str, names: Sequence[str], key: str = "name") -> Iterator[FieldProblem]:
    """Yield a problem for each name that an earlier entry of a list has.

    :param key: the name of the field with the name.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            yield FieldProblem(f"{path}[{index}].{key}", name, f"a {key} that no other entry has")


def _names(
    path: str, names: Sequence[str], reserved: Sequence[str], prefixes: tuple[str, ...] = ()
) -> Iterator[FieldProblem]:
    """Yield a problem for each name that occurs twice or that the operator uses.

    :param prefixes: what the names that the operator uses begin with.
    """
    yield from _duplicates(path, names)
    for index, name in enumerate(names):
        if name in reserved or name.startswith(prefixes):
            taken = [*reserved, *(f"{prefix}..." for prefix in prefixes)]
            yield FieldProblem(f"{path}[{index}].name", name, f"{_FREE} {', '.join(taken)}")


def _tolerations(path: str, tolerations: Sequence[Toleration]) -> Iterator[FieldProblem]:
    """Yield a problem for each field of a toleration that contradicts its operator or effect."""
    for index, one in enumerate(tolerations):
        if one.key is None and one.operator != "Exists":
            yield FieldProblem(f"{path}[{index}].operator", one.operator, "Exists, when there is no key")
        if one.operator == "Exists" and one.value is not None:
            yield FieldProblem(f"{path}[{index}].value", one.value, "no value with operator Exists")
        if one.toleration_seconds is not None and one.effect != "NoExecute":
            yield FieldProblem(f"{path}[{index}].tolerationSeconds", one.toleration_seconds, "only with NoExecute")


def _env(path: str, variables: Sequence[EnvVariable]) -> Iterator[FieldProblem]:
    """Yield a problem for each variable with both a value and a source of it, and for each source that is none or
    several."""
    for index, one in enumerate(variables):
        if one.value_from is None:
            continue
        here = f"{path}[{index}].valueFrom"
        if one.value is not None:
            yield FieldProblem(here, one.value, "either value or valueFrom")
        yield from _exactly_one(here, one.value_from)


def _sources(path: str, volumes: Sequence[Volume]) -> Iterator[FieldProblem]:
    """Yield a problem for each volume, and each part of a projected volume, that does not have exactly one source."""
    for index, volume in enumerate(volumes):
        yield from _exactly_one(f"{path}[{index}]", volume, besides=("name",))
        for number, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            yield from _exactly_one(f"{path}[{index}].projected.sources[{number}]", source)


def _exactly_one(path: str, model: BaseModel, besides: Iterable[str] = ()) -> Iterator[FieldProblem]:
    """Yield a problem unless exactly one field of a model, beside those of these names, has a value."""
    fields = type(model).model_fields
    choices = {info.alias or name: getattr(model, name) for name, info in fields.items() if name not in besides}
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        yield FieldProblem(path, given, f"exactly one of {', '.join(choices)}")


def _mounts(
    path: str, mounts: Sequence[VolumeMount], volumes: Sequence[str], reserved: Sequence[str] = ()
) -> Iterator[FieldProblem]:
    """Yield a problem for each mount at the same place as an earlier one, of a volume that the template lacks, with
    ".." in its path, or inside of or around a folder of the operator.

    :param volumes: the names of the template's volumes.
    :param reserved: the operator's folders.
    """
    yield from _duplicates(path, [mount.mount_path for mount in mounts], "mountPath")
    for index, mount in enumerate(mounts):
        here = f"{path}[{index}]"
        if mount.name not in volumes:
            allowed = f"volumes of the template: {', '.join(volumes) or 'there are none'}"
            yield FieldProblem(f"{here}.name", mount.name, allowed)
        place = PurePosixPath(mount.mount_path)
        if ".." in place.parts:
            yield FieldProblem(f"{here}.mountPath", mount.mount_path, 'an absolute path without ".."')
        for other in map(PurePosixPath, reserved):
            if place.is_relative_to(other) or other.is_relative_to(place):
                allowed = f"a folder neither inside of nor around the operator's own: {', '.join(reserved)}"
                yield FieldProblem(f"{here}.mountPath", mount.mount_path, allowed)
                break


def _container(path: str, container: Container, volumes: Sequence[str]) -> Iterator[FieldProblem]:
    """Yield the broken rules of one container of the template, beside those about its name and its ports.

    :param volumes: the names of the template's volumes.
    """
    yield from _duplicates(f"{path}.env", [one.name for one in container.env])
    yield from _env(f"{path}.env", container.env)
    for index, source in enumerate(container.env_from):
        if (source.config_map_ref is None) == (source.secret_ref is None):
            yield FieldProblem(f"{path}.envFrom[{index}]", source.prefix, "exactly one of configMapRef and secretRef")
    yield from _mounts(f"{path}.volumeMounts", container.volume_mounts, volumes)
    requests, limits = container.resources.requests, container.resources.limits
    amounts = ("cpu", requests.cpu, limits.cpu), ("memory", requests.memory, limits.memory)
    for name, request, limit in amounts:
        if request is not None and limit is not None and parse_amount(request) > parse_amount(limit):
            yield FieldProblem(f"{path}.resources.limits.{name}", limit, f"requests.{name} ({request}) or more")
    probes = {
        "readinessProbe": container.readiness_probe,
        "livenessProbe": container.liveness_probe,
        "startupProbe": container.startup_probe,
    }
    for name, probe in probes.items():
        if probe is None:
            continue
        if isinstance(container, InitContainer) and container.restart_policy is None:
            yield FieldProblem(
                f"{path}.{name}", "a probe", "no probe of an init container without restartPolicy Always"
            )
        yield from _probe(f"{path}.{name}", probe)


def _probe(path: str, probe: Probe) -> Iterator[FieldProblem]:
    """Yield a problem unless the probe has exactly one way of checking."""
    ways = {"exec": probe.exec, "httpGet": probe.http_get, "tcpSocket": probe.tcp_socket}
    given = [name for name, way in ways.items() if way is not None]
    if len(given) != 1:
        yield FieldProblem(path, given, f"exactly one of {', '.join(ways)}")


def _ports(path: str, container: Container, taken: dict[int, str]) -> Iterator[FieldProblem]:
    """Yield a problem for each TCP port of the container that is in `taken`, and add its TCP ports to `taken`.

    :param taken: the ports of other containers of the pod, with the name of the container for the message.
    """
    for index, port in enumerate(container.ports):
        if port.protocol != "TCP":
            continue
        if port.container_port in taken:
            allowed = f"a port that {taken[port.container_port]} does not use: the containers of a pod share them"
            yield FieldProblem(f"{path}[{index}].containerPort", port.container_port, allowed)
        taken[port.container_port] = f"container {container.name}"
