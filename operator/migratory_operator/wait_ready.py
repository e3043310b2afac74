"""`python -m migratory_operator.wait_ready NAMESPACE NAME SECONDS`: wait until a cluster is ready for its present spec.

The chart runs this command after an installation and an upgrade. It exits with 1 if the cluster is not ready within
that time, or if its spec is invalid, and prints the conditions.
"""

from __future__ import annotations

import asyncio
import sys
import time

from migratory_operator.api.kubernetes import CLUSTER, TIMEOUT, ApiError, KubernetesApi
from migratory_operator.names import Object

POLL_SECONDS = 1.0
"""Seconds between two looks at the cluster."""


async def wait_ready(api: KubernetesApi, namespace: str, name: str, seconds: float) -> str:
    """Wait until the cluster is ready for its present spec, and return "". Return the reason for which it is not ready,
    with its conditions, at once if the spec is invalid, and otherwise after `seconds`. Failed requests are repeated
    until then."""
    deadline = time.monotonic() + seconds
    while True:
        problem, is_final = await _problem(api, namespace, name)
        if not problem or is_final or time.monotonic() >= deadline:
            return problem
        await asyncio.sleep(POLL_SECONDS)


async def _problem(api: KubernetesApi, namespace: str, name: str) -> tuple[str, bool]:
    """Return the reason for which the cluster is not ready, "" if it is; and whether it cannot become ready with its
    present spec."""
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
    api = KubernetesApi((namespace,))
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
