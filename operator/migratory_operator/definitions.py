"""`python -m migratory_operator.definitions`: brings the two custom resource definitions up to this release.

Helm installs definitions once and never again; the chart runs this before an upgrade.
"""

from __future__ import annotations

import asyncio
import sys

from migratory_resources.crd.definitions import cluster_crd, report_crd

from migratory_operator.api import Api, ApiError


async def bring_up_to_date(api: Api) -> None:
    """:raises ApiError:"""
    for crd in (cluster_crd(), report_crd()):
        await api.apply_definition(crd)
        print(f"{crd['metadata']['name']} is up to date")


async def _main() -> int:
    api = Api(())
    try:
        await bring_up_to_date(api)
    except ApiError as error:
        print(f"migratory-operator: a definition was not applied: {error}", file=sys.stderr)
        return 1
    finally:
        await api.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
