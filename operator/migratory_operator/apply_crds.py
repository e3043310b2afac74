"""`python -m migratory_operator.apply_crds`: create or update the custom resource definitions of this release.

Helm installs definitions once and never updates them; the chart runs this command before an upgrade. The command exits
with 1 if a definition was not applied.
"""

from __future__ import annotations

import asyncio
import sys

from migratory_resources.crd.definitions import cluster_crd, report_crd

from migratory_operator.api.kubernetes import ApiError, KubernetesApi, load_configuration


async def apply_crds(api: KubernetesApi) -> None:
    """Create or update the definitions of MigratoryCluster and SLAReport, in this order, and print the name of each.

    :raises ApiError: a definition was rejected, or there was no answer. The ones after it were not applied.
    """
    for crd in (cluster_crd(), report_crd()):
        await api.apply_definition(crd)
        print(f"{crd['metadata']['name']} is up to date")


async def _main() -> int:
    """Apply the definitions, and return the exit status of the command: 0, or 1 after a failed request, which is
    printed."""
    api = KubernetesApi((), await load_configuration())
    try:
        await apply_crds(api)
    except ApiError as error:
        print(f"migratory-operator: a custom resource definition was not applied: {error}", file=sys.stderr)
        return 1
    finally:
        await api.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
