"""`migratory drain`: one broker of the cluster on this machine goes out of service, or comes back."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import click
import psutil
from migratory_local.cluster import READY_SECONDS
from migratory_local.http import Http
from migratory_local.state import DRAINED, BrokerState, ClusterState

from migratory_cli import running

_POLL_SECONDS = 0.1
_ASK_SECONDS = 3.0
_BEYOND = 15.0
"""Seconds more than the drain's period: for the last topics to be handed over, and for a busy machine."""


class NotDone(click.ClickException):
    exit_code = 1


@click.command()
@click.argument("name", metavar="BROKER")
@click.option("--back", is_flag=True, help="Start it again, and wait until it is ready.")
@click.option("--cluster", metavar="NAME", help="Which of the clusters that run on this machine, if there are several.")
def drain(name: str, back: bool, cluster: str | None) -> None:
    """Take BROKER, of the cluster that `migratory up` runs on this machine, out of service, and wait until it is.

    It hands its topic groups over, tells its clients to move, each at a random moment within the cluster's
    `brokers.drain.period`, and ends. Nothing is lost. `migratory up` leaves it alone until `--back`.

    \b
    Examples:
      migratory drain quotes-broker-1
      migratory drain quotes-broker-1 --back

    \b
    Exit codes: 0 done, 1 not done in time, 2 wrong usage, no such broker, or too few others are ready.
    """
    state: ClusterState | None = running.choose(cluster)
    if state is None:
        raise click.UsageError("no cluster runs on this machine: `migratory up` starts one")
    found = next((broker for broker in state.brokers if broker.name == name), None)
    if found is None:
        names = ", ".join(broker.name for broker in state.brokers)
        raise click.UsageError(f"`migratory up` runs no broker {name!r} here; it runs {names}")
    try:
        config = json.loads(Path(state.workdir, "broker.json").read_text())
    except (OSError, ValueError) as error:
        raise NotDone(f"the configuration of its brokers can't be read: {error}") from None
    asyncio.run(_bring_back(state, found) if back else _drain(state, found, config))


async def _drain(state: ClusterState, broker: BrokerState, config: dict[str, Any]) -> None:
    pid = await _asked(state, broker, config["delivery"]["minCopies"])
    mark = _mark(state, broker)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    try:
        process = psutil.Process(pid)
        if f"--name={broker.name}" not in process.cmdline():
            raise psutil.NoSuchProcess(pid)
        process.send_signal(signal.SIGTERM)
    except psutil.Error as error:
        mark.unlink(missing_ok=True)
        raise NotDone(f"{broker.name} can't be told to drain: {error}") from None
    period = config["drain"]["period"]
    click.echo(f"{broker.name} hands its topics over and lets its clients go, within {period:g} s")
    deadline = time.monotonic() + period + _BEYOND
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            log = Path(state.workdir, "logs", f"{broker.name}.log")
            raise NotDone(f"{broker.name} (process {pid}) still runs, and stays away once it ends; see {log}")
        await asyncio.sleep(_POLL_SECONDS)
    click.echo(f"{broker.name} has ended. `migratory drain {broker.name} --back` starts it again")


async def _asked(state: ClusterState, broker: BrokerState, needed: int) -> int:
    """Its process id, when the others can do without it."""
    http = Http(_ASK_SECONDS)
    try:
        answers = await asyncio.gather(*(_status(http, each) for each in state.brokers))
    finally:
        await http.close()
    own = answers[state.brokers.index(broker)]
    if own is None:
        where = " It was drained before." if state.stays_away(broker.name) else ""
        raise NotDone(f"{broker.name} does not answer at {broker.admin}.{where}")
    if own.get("reason") == "draining":
        raise NotDone(f"{broker.name} is draining already")
    ready = sum(answer is not own and answer is not None and answer.get("ready") is True for answer in answers)
    if ready < needed:
        raise click.UsageError(
            f"{ready} other {'broker is' if ready == 1 else 'brokers are'} ready, and publications need {needed} "
            "(delivery.minCopies): wait, or bring another one back first"
        )
    return int(own["pid"])


async def _status(http: Http, broker: BrokerState) -> dict[str, Any] | None:
    answer = await _get(http, broker, "/v1/status")
    return json.loads(answer[1]) if answer is not None and answer[0] == 200 else None


async def _get(http: Http, broker: BrokerState, path: str) -> tuple[int, str] | None:
    return await http.get_from(broker.admin.removeprefix("http://"), path)


async def _bring_back(state: ClusterState, broker: BrokerState) -> None:
    if not state.stays_away(broker.name):
        raise click.UsageError(f"{broker.name} was not drained")
    _mark(state, broker).unlink(missing_ok=True)
    http = Http(_ASK_SECONDS)
    deadline = time.monotonic() + READY_SECONDS
    try:
        while (answer := await http.get_from(broker.admin.removeprefix("http://"), "/readyz")) is None or answer[
            0
        ] != 200:
            if time.monotonic() > deadline:
                said = "it does not answer" if answer is None else answer[1].strip()
                raise NotDone(f"{broker.name} is not ready after {READY_SECONDS:g} s: {said}")
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await http.close()
    click.echo(f"{broker.name} is ready. Clients stay where they are: new ones come to it")


def _mark(state: ClusterState, broker: BrokerState) -> Path:
    """While this file is there, the runner does not start the broker again."""
    return Path(state.workdir, DRAINED, broker.name)
