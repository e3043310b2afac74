"""`python -m migratory_operator.wait_ready NAMESPACE NAME SECONDS`: wait until a cluster is ready for its present spec.

The chart runs this command after an installation and an upgrade. If the cluster is not ready within SECONDS, or as soon
as the operator finds its spec invalid, the command prints the reason and the cluster's conditions to stderr, and exits
with 1.
"""

from __future__ import annotations

import asyncio
import sys
import time

from migratory_operator.api.kubernetes import CLUSTER, TIMEOUT, ApiError, KubernetesApi, load_configuration
from migratory_operator.names import Object

POLL_SECONDS = 1.0
"""Seconds between two looks at the cluster."""


async def wait_ready(api: KubernetesApi, namespace: str, name: str, seconds: float) -> str:
    """Wait until an operator has read the cluster's present spec and the condition Ready is True, and return "".

    Otherwise return a text for people: the reason for which the cluster is not ready, and its conditions if an operator
    has read the present spec. Return it at once if the operator found the spec invalid, else after `seconds`. A missing
    cluster and a failed request do not end the wait.
    """
    deadline = time.monotonic() + seconds
    while True:
        problem, is_final = await _problem(api, namespace, name)
        if not problem or is_final or time.monotonic() >= deadline:
            return problem
        await asyncio.sleep(POLL_SECONDS)


async def _problem(api: KubernetesApi, namespace: str, name: str) -> tuple[str, bool]:
    """Look at the cluster once. Return the reason for which it is not ready for its present spec, "" if it is ready,
    and whether the operator has found this spec invalid. A failed request is returned as the reason, and not raised."""
    try:
        cluster = await api.get(CLUSTER, namespace, name)
    except ApiError as error:
        return f"the API server did not return MigratoryCluster {name}: {error}", False
    if cluster is None:
        return f"MigratoryCluster {name} does not exist in namespace {namespace}", False
    status: Object = cluster.get("status") or {}
    if status.get("observedGeneration") != cluster["metadata"].get("generation"):
        return f"no operator has read the spec of MigratoryCluster {name} yet; does one serve {namespace}?", False
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return "", False
    lines = [f"{each['type']}={each['status']} {each['reason']}: {each['message']}" for each in conditions.values()]
    return f"MigratoryCluster {name} is not ready:\n" + "\n".join(lines), ready.get("reason") == "InvalidSpec"


async def _main(namespace: str, name: str, seconds: float) -> int:
    """Wait, print the result, and return the exit status of the command: 0 if the cluster is ready, else 1."""
    api = KubernetesApi((namespace,), await load_configuration())
    try:
        async with asyncio.timeout(seconds + 2 * TIMEOUT):
            problem = await wait_ready(api, namespace, name, seconds)
    finally:
        await api.close()
    if problem:
        print(f"migratory-operator: {problem}", file=sys.stderr)
        return 1
    print(f"MigratoryCluster {name} is ready")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
