"""Merges a user's pod template into a pod that the operator has built; pure.

What the operator has set stays, because validation has refused every name that both would have. Only a constraint on
the spread of pods replaces the operator's constraint with the same topology key.
"""

from __future__ import annotations

from collections.abc import Mapping

from migratory_resources.pods import Container, PodTemplate, ServerPod, TopologySpread, template_fields

from migratory_operator.names import Object
from migratory_operator.objects.pods import container_security_context
from migratory_operator.settings import OperatorSettings

_SCHEDULING = ("nodeSelector", "affinity", "tolerations", "priorityClassName")


def merge_template(
    pod: Object,
    template: PodTemplate | None,
    selector: Mapping[str, str],
    settings: OperatorSettings,
    *,
    only_scheduling: bool = False,
) -> Object:
    """Return a pod, or the template of one, with what the user's template adds; `pod` itself without a user's template.
    The first container of `pod` is the operator's.

    :param selector: the labels of the pods that are spread together, for constraints without a selector of their own.
    :param only_scheduling: True to leave out what concerns containers: environment, volumes and containers.
    """
    if template is None:
        return pod
    given, metadata, spec = template_fields(template), pod["metadata"], dict(pod["spec"])
    for field in ("labels", "annotations"):
        if field in given:
            metadata = {**metadata, field: {**given[field], **metadata.get(field, {})}}
    spec |= {field: given[field] for field in _SCHEDULING if field in given}
    secrets = [*spec.get("imagePullSecrets", ()), *given.get("imagePullSecrets", ())]
    if secrets:
        spec["imagePullSecrets"] = list({secret["name"]: secret for secret in secrets}.values())
    if template.topology_spread_constraints:
        added = [_spread(one, selector) for one in template.topology_spread_constraints]
        replaced = {one["topologyKey"] for one in added}
        kept = [one for one in spec.get("topologySpreadConstraints", ()) if one["topologyKey"] not in replaced]
        spec["topologySpreadConstraints"] = [*kept, *added]
    if not only_scheduling:
        main, *others = spec["containers"]
        for field in ("env", "volumeMounts"):
            if field in given:
                main = {**main, field: [*main.get(field, ()), *given[field]]}
        added_containers = template.containers if isinstance(template, ServerPod) else []
        spec["containers"] = [main, *others, *(_container(one, settings) for one in added_containers)]
        if template.init_containers:
            spec["initContainers"] = [_container(one, settings) for one in template.init_containers]
        if "volumes" in given:
            spec["volumes"] = [*spec.get("volumes", ()), *given["volumes"]]
    return {**pod, "metadata": metadata, "spec": spec}


def annotate(item: Object, annotations: Mapping[str, str]) -> Object:
    """Return an object with these annotations added. An annotation that it has already keeps its value."""
    if not annotations:
        return item
    metadata = item["metadata"]
    return {**item, "metadata": {**metadata, "annotations": {**annotations, **metadata.get("annotations", {})}}}


def _spread(spread: TopologySpread, selector: Mapping[str, str]) -> Object:
    """Return a constraint of the user on the spread of pods in the form of the API, for the pods of `selector` unless
    it has a selector of its own."""
    given = spread.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"maxSkew": spread.max_skew, "labelSelector": {"matchLabels": dict(selector)}, **given}


def _container(container: Container, settings: OperatorSettings) -> Object:
    """Return a container of the user in the form of the API, with the operator's pull policy and security context.
    Where the user's container gives them, or fields of them, the user's values stay."""
    given = container.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if container.ports:
        # Part of a port's key in the API server's record, which has the default as well.
        given["ports"] = [
            {**port, "protocol": one.protocol} for port, one in zip(given["ports"], container.ports, strict=True)
        ]
    security = {**container_security_context(), **given.get("securityContext", {})}
    return {"imagePullPolicy": settings.pull_policy, **given, "securityContext": security}
