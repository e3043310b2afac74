"""Builders of the objects through which clients reach the brokers: Services for clients outside of Kubernetes, URLs,
and the server list; pure.

Brokers send the server list to connected clients. A ConfigMap has the list for clients that are not connected yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner, build_object
from migratory_operator.objects.pods import service_port

DEFAULT_WEIGHT = 100
"""Weight of a broker that `spec.brokers.weights` does not name."""


def services(cluster: KubernetesCluster, owner: ResourceOwner) -> list[Object]:
    """Return one Service per broker if the cluster is exposed as NodePort or LoadBalancer, else none."""
    type_ = cluster.spec.brokers.expose.type
    if type_ not in ("NodePort", "LoadBalancer"):
        return []
    return [
        build_object(
            "v1",
            "Service",
            broker,
            names.BROKER,
            owner,
            spec={
                "type": type_,
                # Clients of a broker that is not ready stay connected; the server list keeps new clients away.
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


def urls(cluster: KubernetesCluster, owner: ResourceOwner, present: Mapping[str, Object]) -> dict[str, str]:
    """Return the clients' WebSocket URLs by broker, without the brokers whose address is not known yet.

    :param present: the Services that exist, by name.
    """
    known = {}
    for broker in cluster.broker_names:
        url = _url(cluster, owner, broker, present.get(broker))
        if url is not None:
            known[broker] = url
    return known


def server_entries(cluster: KubernetesCluster, urls: Mapping[str, str], ready: Set[str]) -> list[Object]:
    """Return the entries of the status field `servers`: name, URL, weight and readiness of every broker whose URL is
    known."""
    weights = cluster.spec.brokers.weights
    return [
        {
            "broker": broker,
            "url": urls[broker],
            "weight": weights.get(broker, DEFAULT_WEIGHT),
            "ready": broker in ready,
        }
        for broker in cluster.broker_names
        if broker in urls
    ]


def server_list(owner: ResourceOwner, entries: list[Object]) -> Object:
    """Return the ConfigMap with the URLs and weights of the ready brokers, in the form of a broker's `GET /v1/servers`.

    :param entries: the result of `server_entries`.
    """
    servers = [{"url": entry["url"], "weight": entry["weight"]} for entry in entries if entry["ready"]]
    data = {"servers.json": json.dumps({"servers": servers}, indent=2) + "\n"}
    return build_object("v1", "ConfigMap", names.servers_name(owner.name), names.BROKER, owner, data=data)


def _url(cluster: KubernetesCluster, owner: ResourceOwner, broker: str, service: Object | None) -> str | None:
    """Return the URL at which clients reach a broker, or None while its port or address is not known. It depends on the
    type of `spec.brokers.expose`: the pod's DNS name inside Kubernetes, the user's template, or a port or address of
    the broker's Service.

    :param service: the broker's Service, None if it does not exist.
    """
    expose = cluster.spec.brokers.expose
    scheme = "ws" if cluster.spec.security.tls.clients is None else "wss"
    match expose.type:
        case "None":
            host = names.pod_host(broker, names.brokers_name(owner.name), owner.namespace)
            return f"{scheme}://{host}:{names.CLIENTS_PORT}/ws"
        case "Template":
            return str(expose.url_template).replace("{pod}", broker)
        case "NodePort":
            ports = service["spec"].get("ports", ()) if service is not None else ()
            number = next((port.get("nodePort") for port in ports if port.get("nodePort")), None)
            return None if number is None else f"{scheme}://{_bracketed(str(expose.host))}:{number}/ws"
        case "LoadBalancer":
            status = service.get("status", {}).get("loadBalancer", {}) if service is not None else {}
            addresses = [entry.get("hostname") or entry.get("ip") for entry in status.get("ingress") or ()]
            address = next((address for address in addresses if address), None)
            return None if address is None else f"{scheme}://{_bracketed(address)}:{names.CLIENTS_PORT}/ws"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
