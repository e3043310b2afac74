"""How a Prometheus finds the brokers: a ServiceMonitor, where Kubernetes knows the kind; pure."""

from __future__ import annotations

from migratory_operator import names
from migratory_operator.names import Object, Owner, thing
from migratory_operator.settings import Settings

KIND = "ServiceMonitor"


def objects(owner: Owner, settings: Settings) -> list[Object]:
    """For the headless Service, which has the brokers' administration port, ready or not."""
    endpoint = {"port": "admin"} | ({"interval": settings.monitor_interval} if settings.monitor_interval else {})
    spec = {"selector": {"matchLabels": names.selector(owner.name, names.BROKER)}, "endpoints": [endpoint]}
    made = thing("monitoring.coreos.com/v1", KIND, names.brokers_name(owner.name), names.BROKER, owner, spec=spec)
    # a Prometheus may choose by labels; ours come first, for by them it is found again
    made["metadata"]["labels"] = {**dict(settings.monitor_labels), **made["metadata"]["labels"]}
    return [made]
