"""`kubectl migratory`: the state of clusters on Kubernetes, restarts, reports, and the logs of takeovers.

kubectl starts this program as `kubectl-migratory`. It reads the resources that the operator writes, and asks brokers as
`migratory status` does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.text import Text

from migratory_cli.commands.status import request_all
from migratory_cli.commands.status_view import Answer, format_remarks, format_table, number, size
from migratory_cli.commands.takeovers import format_entry, takeover_entries
from migratory_cli.kubectl import Kubectl, KubectlFailed, Object
from migratory_cli.options import FiniteFloat, read_token
from migratory_cli.output import open_console, print_table
from migratory_cli.terminal import echo, printable, to_json

F = TypeVar("F", bound=Callable[..., Any])

_ADMIN_PORT = 8082
_POLL_SECONDS = 1.0
_BROKER = "app.kubernetes.io/component=broker"
_MEMBER = "app.kubernetes.io/component=zookeeper"
_VERDICTS = {"met": 0, "missed": 1, "insufficient": 3}
"""Exit codes by verdict, those of `migratory sla report`."""
_REPORT_FAILED = 4


class NotDone(click.ClickException):
    """Raised when what was asked for is not possible now, or did not come true in time; the command exits with 1."""

    exit_code = 1


def kubectl_options(command: F) -> F:
    """Add the options of kubectl that choose a namespace and a cluster. The command gets them as one argument
    `kubectl`, a `Kubectl` that has them in every call."""

    def joined(
        *, namespace: str | None, context: str | None, kubeconfig: str | None, **others: Any
    ) -> Any:  # the names of the options
        chosen = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
        options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
        return command(kubectl=Kubectl(options), **others)

    joined.__name__, joined.__doc__ = command.__name__, command.__doc__
    for option in (
        click.option("--kubeconfig", metavar="FILE", help="As of kubectl."),
        click.option("--context", metavar="NAME", help="As of kubectl."),
        click.option("--namespace", "-n", metavar="NAME", help="As of kubectl."),
    ):
        joined = option(joined)
    return joined  # type: ignore[return-value]


def admin_options(command: F) -> F:
    """Add --timeout and --token-file to a command that asks brokers for their status pages."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="File with the token for the status pages, if spec.security.administration names one.",
        ),
        click.option(
            "--timeout", type=FiniteFloat(0.1), default=5.0, show_default=True, metavar="SECONDS",
            help="Limit for the answer of each broker.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
cluster_argument = click.argument("name", metavar="[CLUSTER]", required=False)
wait_option = click.option(
    "--wait", "limit", type=FiniteFloat(0), default=900.0, show_default=True, metavar="SECONDS",
    help="Limit for the end; 0: do not wait.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Clusters of Migratory on Kubernetes: status, restarts, reports and takeovers.

    Without CLUSTER, the only one of the namespace is meant. Exit codes of all commands: 0 done and well, 1 not, 2 wrong
    usage, or Kubernetes refused or did not answer. `report` has two more.
    """


@main.command()
@cluster_argument
@admin_options
@json_option
@kubectl_options
def status(kubectl: Kubectl, name: str | None, timeout: float, token_file: Path | None, as_json: bool) -> None:
    """Show the conditions of a cluster, and the status of its brokers as `migratory status` does.

    Exit codes: 0 the cluster and every broker are ready, 1 not, 2 no such cluster, or Kubernetes does not answer.
    """

    async def read() -> tuple[Object, dict[str, Answer]]:
        cluster = await find_cluster(kubectl, name)
        (answers,) = await _sample(kubectl, cluster, timeout, _token(token_file))
        return cluster, answers

    cluster, answers = asyncio.run(read())
    ready = _condition(cluster, "Ready")
    if as_json:
        echo(to_json({"cluster": {key: cluster.get(key) for key in ("metadata", "status")}, "brokers": answers}, 2))
    else:
        console = open_console()
        for line in _conditions(cluster):
            console.print(line, soft_wrap=True)
        for line in format_table(answers, console.width):
            console.print(line, soft_wrap=True)
        for remark in format_remarks(answers):
            echo(printable(remark))
    are_ready = bool(answers) and all(answer.get("ready") is True for answer in answers.values())
    sys.exit(0 if are_ready and ready.get("status") == "True" else 1)


@main.command()
@cluster_argument
@click.option(
    "--interval", type=FiniteFloat(0.5, 600), default=5.0, show_default=True, metavar="SECONDS",
    help="Time over which rates are measured.",
)  # fmt: skip
@admin_options
@json_option
@kubectl_options
def top(
    kubectl: Kubectl, name: str | None, interval: float, timeout: float, token_file: Path | None, as_json: bool
) -> None:
    """Show the clients of each broker, and the publications, deliveries and bytes per second of a few seconds.

    Exit codes: 0 every broker answered twice, 1 one did not, 2 no such cluster, or Kubernetes does not answer.
    """

    async def read() -> list[dict[str, Answer]]:
        cluster = await find_cluster(kubectl, name)
        return await _sample(kubectl, cluster, timeout, _token(token_file), interval)

    before, after = asyncio.run(read())
    rows = {broker: rates(before[broker], after[broker]) for broker in after}
    if as_json:
        echo(to_json(rows, 2))
    else:
        print_table(open_console(), "", _TOP_COLUMNS, _top_rows(rows), ("memory", "queued", "subscriptions"))
        for broker, row in rows.items():
            if "error" in row:
                echo(printable(f"{broker}: {row['error']}"))
    sys.exit(1 if not rows or any("error" in row for row in rows.values()) else 0)


@main.command()
@click.argument("broker", metavar="BROKER")
@wait_option
@kubectl_options
def drain(kubectl: Kubectl, broker: str, limit: float) -> None:
    """Drain one BROKER and let Kubernetes replace its pod, on another node if its own one is cordoned.

    The broker hands over its topic groups and asks its clients to move, and nothing is lost. The cluster's disruption
    budget refuses it while another broker is missing.

    Exit codes: 0 the new broker is ready, 1 refused or not ready in time, 2 no such broker, or Kubernetes does not
    answer.
    """

    async def run() -> None:
        pod = await kubectl.get("pod", broker)
        metadata = pod["metadata"]
        if metadata.get("labels", {}).get("app.kubernetes.io/component") != "broker":
            raise click.UsageError(f"pod {broker} is not a broker")
        await _evict(kubectl, metadata)
        echo(f"{broker} drains its clients")
        if limit:
            await _until(lambda: _is_replaced(kubectl, broker, metadata["uid"]), f"{broker} was not ready again", limit)
            echo(f"{broker} is ready again")

    asyncio.run(run())


@main.command()
@cluster_argument
@click.option("--zookeeper", is_flag=True, help="Restart the members of ZooKeeper, and not the brokers.")
@wait_option
@kubectl_options
def restart(kubectl: Kubectl, name: str | None, zookeeper: bool, limit: float) -> None:
    """Restart all brokers of a cluster, or with --zookeeper the members of ZooKeeper instead, one at a time; the
    operator waits until the others can do without each.

    Exit codes: 0 all were replaced and the cluster is well, 1 the rollout stopped or was too slow, or the operator is
    paused for the cluster, 2 no such cluster, or Kubernetes does not answer.
    """

    async def run() -> None:
        cluster = await find_cluster(kubectl, name)
        name_of = cluster["metadata"]["name"]
        if cluster["metadata"].get("annotations", {}).get("migratory.dev/paused") == "true":
            raise NotDone(f"the operator is paused for {name_of}: remove the annotation migratory.dev/paused first")
        component = "zookeeper" if zookeeper else "broker"
        labels = f"app.kubernetes.io/instance={name_of},{_MEMBER if zookeeper else _BROKER}"
        old = {pod["metadata"]["uid"] for pod in await kubectl.list("pods", labels)}
        await kubectl.run("rollout", "restart", f"statefulset/{name_of}-{component}")
        echo(f"{len(old)} pods of {name_of}-{component} are replaced, one at a time")

        async def is_done() -> bool:
            pods = await kubectl.list("pods", labels)
            current = await kubectl.get("migratorycluster", name_of)
            if _condition(current, "Progressing").get("reason") == "RolloutStopped":
                raise NotDone(_condition(current, "Progressing")["message"])
            is_replaced = not old & {pod["metadata"]["uid"] for pod in pods}
            return is_replaced and _condition(current, "Progressing").get("reason") == "Settled"

        if limit:
            await _until(is_done, f"the pods of {name_of}-{component} were not replaced", limit)
            echo("all pods are up to date and the cluster is healthy")

    asyncio.run(run())


@main.command()
@cluster_argument
@click.option("--window", metavar="DURATION", help="Time to judge, such as 30m; the cluster's sla.window by default.")
@wait_option
@json_option
@kubectl_options
def report(kubectl: Kubectl, name: str | None, window: str | None, limit: float, as_json: bool) -> None:
    """Make an SLAReport about a cluster, up to now, and say how it ended.

    Exit codes: 0 every objective is met, 1 one is missed or the report is not finished in time, 2 wrong usage, or
    Kubernetes refused it, 3 insufficient data, 4 the report failed.
    """

    async def run() -> tuple[str, Object]:
        cluster = (await find_cluster(kubectl, name))["metadata"]["name"]
        spec = {"cluster": cluster, **({"window": window} if window else {})}
        body = {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "SLAReport",
            "metadata": {"generateName": f"{cluster}-"},
            "spec": spec,
        }
        made = json.loads(await kubectl.run("create", "--filename=-", "--output=json", given=json.dumps(body)))
        report_name = str(made["metadata"]["name"])
        if not limit:
            return report_name, {}
        echo(f"waiting for SLAReport {report_name}", err=True)
        found: Object = {}

        async def has_ended() -> bool:
            found.update((await kubectl.get("slareport", report_name)).get("status", {}))
            return found.get("phase") in ("Succeeded", "Failed")

        await _until(has_ended, f"SLAReport {report_name} has not ended", limit)
        return report_name, found

    report_name, found = asyncio.run(run())
    if as_json:
        echo(to_json({"name": report_name, "status": found}, 2))
    elif not found:
        echo(report_name)
    else:
        message = _condition({"status": found}, "Complete").get("message", "")
        echo(printable(f"{report_name}: {found.get('verdict', 'failed')}: {message}"))
    sys.exit(0 if not found else _VERDICTS.get(str(found.get("verdict")), _REPORT_FAILED))


@main.command()
@cluster_argument
@click.option("--since", default="1h", show_default=True, metavar="DURATION", help="How far back, as of kubectl logs.")
@click.option("--group", type=click.IntRange(0), metavar="N", help="This topic group only, and what brokers did.")
@json_option
@kubectl_options
def takeovers(kubectl: Kubectl, name: str | None, since: str, group: int | None, as_json: bool) -> None:
    """Show the log lines of all brokers that belong to takeovers, in the order of their times.

    Brokers' clocks differ, so lines of two brokers may be in another order than they happened. With --json each line
    is one JSON object.

    Exit codes: 0 done, also without a takeover, 2 no such cluster, or Kubernetes does not answer.
    """

    async def read() -> list[str]:
        cluster = (await find_cluster(kubectl, name))["metadata"]["name"]
        pods = await kubectl.list("pods", f"app.kubernetes.io/instance={cluster},{_BROKER}")
        logs = await asyncio.gather(*(_logs(kubectl, pod, since) for pod in pods))
        return [line for lines in logs for line in lines]

    entries = takeover_entries(asyncio.run(read()), group)
    for entry in entries:
        echo(to_json(entry) if as_json else printable(format_entry(entry)))
    if not (entries or as_json):
        echo(f"no takeover in the logs of the last {since}", err=True)


async def find_cluster(kubectl: Kubectl, name: str | None) -> Object:
    """Return the MigratoryCluster of this name, or the only one of the namespace for None.

    :raises click.UsageError: no name is given, and there is not exactly one cluster.
    :raises KubectlFailed: there is no cluster of this name, or Kubernetes did not answer.
    """
    if name is not None:
        return await kubectl.get("migratorycluster", name)
    found = await kubectl.list("migratoryclusters")
    if len(found) != 1:
        names = ", ".join(sorted(one["metadata"]["name"] for one in found)) or "none"
        raise click.UsageError(f"name a cluster; the namespace has {names}")
    return found[0]


def rates(before: Answer, after: Answer) -> dict[str, Any]:
    """Return what `top` shows of a broker, from two of its status pages: publications, deliveries and bytes per second,
    and the clients, subscriptions, queue and memory of the later page. Return {"error": reason} if the broker did not
    answer both times, was started in between, or serves no clients yet."""
    for answer in (before, after):
        if "error" in answer:
            return {"error": answer["error"]}
    seconds = after["uptime_seconds"] - before["uptime_seconds"]
    if after["pid"] != before["pid"] or seconds <= 0:
        return {"error": "it was started again meanwhile"}
    first, last = before.get("edge"), after.get("edge")
    if not (first and last):
        return {"error": "it serves no clients yet"}
    return {
        "clients": last["clients"],
        "subscriptions": last["subscriptions"],
        "publications": (last["published"] - first["published"]) / seconds,
        "deliveries": (last["delivered"] - first["delivered"]) / seconds,
        "bytes": (last["sent_bytes"] - first["sent_bytes"]) / seconds,
        "queue_bytes": last["queue_bytes"],
        "memory_bytes": after["memory_bytes"],
    }


_TOP_COLUMNS = ("broker", "clients", "subscriptions", "published/s", "delivered/s", "sent/s", "queued", "memory")


def _top_rows(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of the table of `top`, for the brokers that answered, with the sums last if there are several."""
    answered = {broker: row for broker, row in rows.items() if "error" not in row}
    total = {key: sum(row[key] for row in answered.values()) for key in next(iter(answered.values()), {})}
    shown = {**answered, **({"all": total} if len(answered) > 1 else {})}
    return [
        (
            broker,
            number(row["clients"]),
            number(row["subscriptions"]),
            f"{row['publications']:,.1f}",
            f"{row['deliveries']:,.1f}",
            size(round(row["bytes"])),
            size(row["queue_bytes"]),
            size(row["memory_bytes"]),
        )
        for broker, row in shown.items()
    ]


async def _sample(
    kubectl: Kubectl, cluster: Object, seconds: float, token: str, *pauses: float
) -> list[dict[str, Answer]]:
    """Return the brokers' status pages, or {"error": reason}, by broker: those of now, and those after each of the
    pauses, in seconds.

    :param seconds: the time limit for each answer.
    :param token: for the status pages; "" for none.
    :raises KubectlFailed: the pods cannot be listed.
    """
    metadata, spec = cluster["metadata"], cluster.get("spec", {})
    has_tls = spec.get("security", {}).get("tls", {}).get("administration") is not None
    labels = f"app.kubernetes.io/instance={metadata['name']},{_BROKER}"
    brokers = sorted(pod["metadata"]["name"] for pod in await kubectl.list("pods", labels))

    async def read(broker: str) -> list[Answer]:
        answers: list[Answer] = []
        try:
            async with kubectl.forward(broker, _ADMIN_PORT) as port:
                url = f"{'https' if has_tls else 'http'}://127.0.0.1:{port}"
                for pause in (0.0, *pauses):
                    await asyncio.sleep(pause)
                    # The tunnel leads to this pod: a certificate would prove nothing more, and has not this address.
                    answers += (await request_all({url: broker}, seconds, token, check_certificates=False)).values()
        except KubectlFailed as error:
            answers += [{"broker": broker, "error": error.message}] * (1 + len(pauses) - len(answers))
        return answers

    pages = await asyncio.gather(*map(read, brokers))
    return [
        {broker: page[moment] for broker, page in zip(brokers, pages, strict=True)} for moment in range(1 + len(pauses))
    ]


async def _logs(kubectl: Kubectl, pod: Object, since: str) -> list[str]:
    """Return the lines of a broker's log, also those of its container before the last restart. Raise KubectlFailed if
    they cannot be read.

    :param since: how far back, as for `kubectl logs`.
    """
    name = pod["metadata"]["name"]
    arguments = ("logs", name, "--container=broker", f"--since={since}")
    statuses: Sequence[Object] = pod.get("status", {}).get("containerStatuses", ())
    restarted = any(one["name"] == "broker" and one.get("restartCount") for one in statuses)
    before = await kubectl.run(*arguments, "--previous") if restarted else ""
    return [*before.splitlines(), *(await kubectl.run(*arguments)).splitlines()]


async def _evict(kubectl: Kubectl, metadata: Object) -> None:
    """Evict exactly this pod, by its uid.

    :param metadata: the pod's metadata.
    :raises NotDone: a disruption budget does not allow it now.
    :raises KubectlFailed: the request failed for another reason.
    """
    namespace, name = metadata["namespace"], metadata["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    try:
        await kubectl.run("create", f"--raw={path}", "--filename=-", given=json.dumps(body))
    except KubectlFailed as error:
        if "disruption budget" in error.message:
            raise NotDone(f"{name} can't be drained now: {error.message}") from None
        raise


async def _is_replaced(kubectl: Kubectl, name: str, uid: str) -> bool:
    """Return whether a pod of this name exists and is ready that is not the one with this uid."""
    text = (await kubectl.run("get", "pod", name, "--ignore-not-found", "--output=json")).strip()
    found: Object = json.loads(text or "{}")
    return found != {} and found["metadata"]["uid"] != uid and _condition(found, "Ready").get("status") == "True"


async def _until(check: Callable[[], Awaitable[bool]], what: str, limit: float) -> None:
    """Wait until the check is true, and look each second.

    :param what: says, in an error, what has not happened.
    :raises NotDone: the check is not true after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not await check():
        if time.monotonic() > deadline:
            raise NotDone(f"{what} within {limit:g} s")
        await asyncio.sleep(_POLL_SECONDS)


def _conditions(cluster: Object) -> list[Text]:
    """Return lines about a cluster: its namespace and name, and one for each condition."""
    metadata = cluster["metadata"]
    lines = [Text(printable(f"{metadata['namespace']}/{metadata['name']}"), style="italic")]
    for one in cluster.get("status", {}).get("conditions", ()):
        is_well = (one["status"] == "True") != (one["type"] in ("Degraded", "Progressing"))
        text = f"{one['type']:<22} {one['status']:<8} {one['reason']:<18} {one['message']}"
        lines.append(Text(printable(text), style="" if is_well else "yellow"))
    return lines


def _condition(resource: Object, type_: str) -> Object:
    """Return the condition of this type in the status of a resource, {} if there is none."""
    conditions: Sequence[Object] = resource.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == type_), {})


def _token(path: Path | None) -> str:
    """Return the token in a file, "" for None."""
    return read_token(path) if path is not None else ""


if __name__ == "__main__":
    main()
