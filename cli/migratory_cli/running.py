"""The clusters that `migratory up` or `migratory demo` runs on this machine, for the commands that talk to one."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import click


class NotInstalled(Exception):
    """What runs clusters here is not installed; the text names the missing package."""


def choose(cluster: str | None) -> Any | None:
    """The `migratory_local.state.ClusterState` of the cluster to talk to; None when none runs.

    Raises NotInstalled, and a usage error when several run and none is named, or the named one does not run."""
    found = [item for item in _state().running_clusters() if cluster in (None, item.name)]
    if not found and cluster is not None:
        raise click.UsageError(f"no cluster named {cluster} runs on this machine: start it with `migratory up`")
    if len(found) > 1:
        distinct = sorted({item.name for item in found})
        if len(distinct) < len(found):  # in work folders of their own
            folders = ", ".join(sorted(f"{item.name} in {item.workdir}" for item in found))
            raise click.UsageError(
                f"several clusters of one name run on this machine ({folders}): give the addresses of one instead"
            )
        names = ", ".join(distinct)
        raise click.UsageError(f"several clusters run on this machine ({names}): choose with --cluster NAME")
    return found[0] if found else None


def _state() -> ModuleType:
    """Imported when it is needed: it comes with the extra `local`."""
    try:
        return import_module("migratory_local.state")
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name) from None
