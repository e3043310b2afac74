"""Where clients find each broker: Services for those outside, and the URLs that come of them; pure."""

from __future__ import annotations

from collections.abc import Mapping

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, Owner, thing
from migratory_operator.objects.pods import service_port


def services(cluster: KubernetesCluster, owner: Owner) -> list[Object]:
    """One for each broker, where the cluster asks for them."""
    type_ = cluster.spec.brokers.expose.type
    if type_ not in ("NodePort", "LoadBalancer"):
        return []
    return [
        thing(
            "v1",
            "Service",
            broker,
            names.BROKER,
            owner,
            spec={
                "type": type_,
                # Who is connected to a broker that is not ready stays so; new ones are kept away by the server list.
                "publishNotReadyAddresses": True,
                "selector": {
                    **names.selector(owner.name, names.BROKER),
                    "statefulset.kubernetes.io/pod-name": broker,
                },
                "ports": [service_port("clients", names.CLIENTS_PORT)],
            },
        )
        for broker in cluster.broker_names
    ]


def urls(cluster: KubernetesCluster, owner: Owner, made: Mapping[str, Object]) -> dict[str, str]:
    """By broker. One whose address is not known yet is missing.

    :param made: the Services that exist, by name.
    """
    found = {}
    for broker in cluster.broker_names:
        url = _url(cluster, owner, broker, made.get(broker))
        if url is not None:
            found[broker] = url
    return found


def _url(cluster: KubernetesCluster, owner: Owner, broker: str, service: Object | None) -> str | None:
    expose = cluster.spec.brokers.expose
    match expose.type:
        case "None":
            host = names.pod_host(broker, names.brokers_name(owner.name), owner.namespace)
            return f"ws://{host}:{names.CLIENTS_PORT}/ws"
        case "Template":
            return str(expose.url_template).replace("{pod}", broker)
        case "NodePort":
            ports = service["spec"].get("ports", ()) if service is not None else ()
            number = next((one.get("nodePort") for one in ports if one.get("nodePort")), None)
            return None if number is None else f"ws://{_bracketed(str(expose.host))}:{number}/ws"
        case "LoadBalancer":
            status = service.get("status", {}).get("loadBalancer", {}) if service is not None else {}
            addresses = [entry.get("hostname") or entry.get("ip") for entry in status.get("ingress") or ()]
            address = next((one for one in addresses if one), None)
            return None if address is None else f"ws://{_bracketed(address)}:{names.CLIENTS_PORT}/ws"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
