"""`migratory drain`: take a broker of the cluster on this machine out of service, or start it again."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import click
import psutil
from migratory_local.cluster.local_cluster import READY_SECONDS
from migratory_local.cluster.state import DRAINED_FOLDER, BrokerState, ClusterState
from migratory_local.processes.network import HttpClient

from migratory_cli.options import choose_cluster, cluster_option
from migratory_cli.terminal import echo

_POLL_SECONDS = 0.1
_REQUEST_TIMEOUT = 3.0
"""Seconds for an HTTP answer of a broker."""
_EXTRA_SECONDS = 15.0
"""Seconds to wait in addition to the drain period, for the last topics to be handed over on a busy machine."""


class DrainFailed(click.ClickException):
    """Raised when the broker could not be drained or started again; the command exits with 1."""

    exit_code = 1


@click.command()
@click.argument("name", metavar="BROKER")
@click.option("--back", is_flag=True, help="Start a drained broker again and wait until it is ready.")
@cluster_option
def drain(name: str, back: bool, cluster: str | None) -> None:
    """Take BROKER of the cluster that `migratory up` runs on this machine out of service, and wait until it has ended.

    It hands over its topic groups, asks its clients to move, each at a random moment within the cluster's
    `brokers.drain.period`, and ends. Nothing is lost. `migratory up` does not start it again until `--back`.

    \b
    Examples:
      migratory drain quotes-broker-1
      migratory drain quotes-broker-1 --back

    \b
    Exit codes: 0 done, 1 failed or too slow, 2 wrong usage, no such broker, or too few other brokers are ready.
    """
    state: ClusterState | None = choose_cluster(cluster)
    if state is None:
        raise click.UsageError("no cluster runs on this machine: `migratory up` starts one")
    broker = next((broker for broker in state.brokers if broker.name == name), None)
    if broker is None:
        names = ", ".join(broker.name for broker in state.brokers)
        raise click.UsageError(f"cluster {state.name} has no broker {name!r}; it has {names}")
    try:
        config = json.loads(Path(state.workdir, "broker.json").read_text())
    except (OSError, ValueError) as error:
        raise DrainFailed(f"cannot read the configuration of the brokers: {error}") from None
    asyncio.run(_start_again(state, broker) if back else _drain(state, broker, config))


async def _drain(state: ClusterState, broker: BrokerState, config: dict[str, Any]) -> None:
    """Drain the broker with SIGTERM, and wait until its process has ended. Leave the file that keeps the runner from
    starting it again, unless the signal cannot be sent.

    :param config: the configuration of the brokers.
    :raises DrainFailed: the broker does not answer, cannot be signalled, or does not end in time.
    :raises click.UsageError: too few other brokers are ready.
    """
    pid = await _check_drainable(state, broker, config["delivery"]["minCopies"])
    drained_file = _drained_file(state, broker)
    drained_file.parent.mkdir(exist_ok=True)
    drained_file.touch()
    try:
        process = psutil.Process(pid)
        if f"--name={broker.name}" not in process.cmdline():
            raise psutil.NoSuchProcess(pid)
        process.send_signal(signal.SIGTERM)
    except psutil.Error as error:
        drained_file.unlink(missing_ok=True)
        raise DrainFailed(f"cannot send SIGTERM to {broker.name}: {error}") from None
    period = config["drain"]["period"]
    echo(f"{broker.name} hands over its topics and moves its clients, within {period:g} s")
    deadline = time.monotonic() + period + _EXTRA_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            log = Path(state.workdir, "logs", f"{broker.name}.log")
            raise DrainFailed(
                f"{broker.name} (pid {pid}) is still running; it will not be started again when it ends; see {log}"
            )
        await asyncio.sleep(_POLL_SECONDS)
    echo(f"{broker.name} has ended. `migratory drain {broker.name} --back` starts it again")


async def _check_drainable(state: ClusterState, broker: BrokerState, min_copies: int) -> int:
    """Check that the broker answers and that enough other brokers are ready. Return the broker's process id.

    :raises DrainFailed: the broker does not answer or is already draining.
    :raises click.UsageError: fewer than `min_copies` other brokers are ready.
    """
    http = HttpClient(_REQUEST_TIMEOUT, state.token)
    try:
        answers = await asyncio.gather(*(_status(http, each) for each in state.brokers))
    finally:
        await http.close()
    own = answers[state.brokers.index(broker)]
    if own is None:
        drained = " It is already drained." if state.is_drained(broker.name) else ""
        raise DrainFailed(f"{broker.name} does not answer at {broker.admin}.{drained}")
    if own.get("reason") == "draining":
        raise DrainFailed(f"{broker.name} is already draining")
    ready = sum(answer is not own and answer is not None and answer.get("ready") is True for answer in answers)
    if ready < min_copies:
        raise click.UsageError(
            f"{ready} other {'broker is' if ready == 1 else 'brokers are'} ready, but publications need {min_copies} "
            "(delivery.minCopies): wait, or start another one again first (--back)"
        )
    return int(own["pid"])


async def _status(http: HttpClient, broker: BrokerState) -> dict[str, Any] | None:
    """Return a broker's status page, None if it does not answer with one."""
    answer = await http.get_from(broker.admin, "/v1/status")
    return json.loads(answer[1]) if answer is not None and answer[0] == 200 else None


async def _start_again(state: ClusterState, broker: BrokerState) -> None:
    """Let the runner start a drained broker again, and wait until it is ready.

    :raises DrainFailed: it is not ready within READY_SECONDS.
    :raises click.UsageError: it is not drained.
    """
    if not state.is_drained(broker.name):
        raise click.UsageError(f"{broker.name} is not drained")
    _drained_file(state, broker).unlink(missing_ok=True)
    http = HttpClient(_REQUEST_TIMEOUT)
    deadline = time.monotonic() + READY_SECONDS
    try:
        while (answer := await http.get_from(broker.admin, "/readyz")) is None or answer[0] != 200:
            if time.monotonic() > deadline:
                reason = "it does not answer" if answer is None else answer[1].strip()
                raise DrainFailed(f"{broker.name} is not ready after {READY_SECONDS:g} s: {reason}")
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await http.close()
    echo(f"{broker.name} is ready. Within a minute or two, clients of other brokers move to it")


def _drained_file(state: ClusterState, broker: BrokerState) -> Path:
    """Return the path of the broker's drained file. While it exists, the runner does not start the broker again."""
    return Path(state.workdir, DRAINED_FOLDER, broker.name)
