"""`migratory sla fetch`: a report that was made in Kubernetes, as files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import click
from migratory_spark.jobs import outputs
from migratory_spark.jobs.exits import VERDICTS, BadInput, Unreadable

_POLL = 2.0


def run_fetch(name: str, namespace: str, wait: float, files: Mapping[str, Path | None]) -> int:
    """The exit code. Raises BadInput or Unreadable."""
    options = {f"--{file.rpartition('.')[2]}": path for file, path in files.items()}
    outputs.check_apart(options)
    for option, path in options.items():
        outputs.check(option, path)
    return asyncio.run(_fetch(name, namespace, wait, files))


async def _fetch(name: str, namespace: str, wait: float, files: Mapping[str, Path | None]) -> int:
    try:
        from migratory_operator.api import Api, ApiError, NoCluster
        from migratory_operator.reports.fetch import NotThere, fetch
    except ImportError as error:
        raise BadInput(f"Kubernetes needs `pip install 'migratory[operator]'`: {error}") from None
    deadline = time.monotonic() + wait
    try:
        api = Api(())
    except NoCluster as error:
        raise BadInput(str(error)) from None
    try:
        while (found := await fetch(api, namespace, name)) is None:
            if time.monotonic() >= deadline:
                raise BadInput(f"SLAReport {name} is not finished; --wait SECONDS waits for it")
            await asyncio.sleep(_POLL)
    except NotThere as error:
        raise BadInput(str(error)) from None
    except ApiError as error:
        raise Unreadable(f"the cluster can't be asked: {error}") from None
    finally:
        await api.close()
    if found.verdict is None:
        raise Unreadable(f"the report failed: {found.message}")
    click.echo(f"{found.verdict}: {found.message}")
    for file, path in files.items():
        if path is None:
            continue
        if file not in found.files:
            raise BadInput(f"{file} was too large to be kept; the report has {', '.join(found.files) or 'no files'}")
        outputs.write(f"--{file.rpartition('.')[2]}", path, found.files[file].decode())
        click.echo(f"{file.rpartition('.')[2]}: {path}")
    return VERDICTS[found.verdict]
