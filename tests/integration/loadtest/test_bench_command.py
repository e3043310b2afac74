"""The command `migratory bench`: exit codes, JSON result, record file and its verification."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import pytest
from migratory_loadtest.records import (
    DeliveryRecord,
    PublicationRecord,
    SubscriberRecord,
    TopicRecord,
    read_records,
    write_records,
)
from migratory_protocol.positions import Position
from migratory_testing.accounts import double, drop, swap
from migratory_testing.fakebroker import fake_cluster

SMALL = ["--topics", "4", "--publishers", "2", "--rate", "4", "--warmup", "0.3", "--duration", "1", "--workers", "1"]


async def bench(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "migratory_cli.main", "bench", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


def check_verdict(result: Path, status: int, output: str) -> None:
    """Check that the verdict is `met` with exit status 0, or `insufficient` with 1 only because the load generator
    sent late on a busy machine."""
    outcome = json.loads(result.read_text())
    late = [reason for reason in outcome["reasons"] if reason.startswith("the load generator itself was late")]
    assert outcome["reasons"] == late, output
    assert (outcome["verdict"], status) == (("insufficient", 1) if late else ("met", 0)), output
    assert outcome["verdict"] in output


async def test_run_ends_0_and_verify_ends_1_for_each_fault(tmp_path: Path) -> None:
    account, result, targets = tmp_path / "account.jsonl", tmp_path / "result.json", tmp_path / "targets.json"
    async with fake_cluster(2) as cluster:
        status, output = await bench(
            "run", "--servers", ",".join(cluster.urls), "--subscribers", "40", *SMALL, "--account", str(account),
            "--json", str(result), "--metrics-targets", str(targets), "--scrape-interval", "0.1",
        )  # fmt: skip
    check_verdict(result, status, output)
    assert json.loads(targets.read_text())[0]["targets"][0].startswith("127.0.0.1:")
    status, output = await bench("verify", str(account))
    assert status == 0, output
    for mutate in (drop, double, swap):
        topics = list(read_records(account))
        position = mutate(topics[1], 0, 2)
        broken = tmp_path / "broken.jsonl"
        write_records(broken, topics)
        status, output = await bench("verify", str(broken))
        assert status == 1, output
        assert f"{topics[1].topic} at subscriber {topics[1].subscribers[0].subscriber}: {position} " in output


async def test_verify_ends_1_for_refused_publications_or_no_deliveries(tmp_path: Path) -> None:
    account = tmp_path / "account.jsonl"
    refused = TopicRecord("t", failed=[PublicationRecord("one", 0, 1)], transcripts=[[]])
    for topics, reason in (([refused], "1 publications were refused"), ([], "nothing was delivered")):
        write_records(account, topics)
        status, output = await bench("verify", str(account))
        assert (status, output.splitlines()[-1]) == (1, f"- {reason}")


async def test_verify_accepts_the_record_of_subscribers_only(tmp_path: Path) -> None:
    """`bench verify` accepts the record of `bench sub`, which has no publications, and exits with 1 when the record
    has a delivery twice."""
    account = tmp_path / "account.jsonl"
    positions = [Position(1, number) for number in (1, 2, 3)]
    entries = [DeliveryRecord(position, str(position)) for position in positions]
    for runs, status in (([(0, 3)], 0), ([(0, 3), (1, 2)], 1)):
        subscriber = SubscriberRecord(0, Position(1, 0), 0, runs, ["b"] * len(runs))
        write_records(account, [TopicRecord("t", transcripts=[entries], subscribers=[subscriber])])
        ended, output = await bench("verify", str(account))
        assert ended == status, output


async def test_pub_and_sub_run_in_two_processes(tmp_path: Path) -> None:
    published_result, received_result = tmp_path / "pub.json", tmp_path / "sub.json"
    async with fake_cluster(1) as cluster:
        arguments = ["--servers", cluster.urls[0], *SMALL]
        del arguments[arguments.index("--publishers") : arguments.index("--publishers") + 2]
        listening = ["--duration", "6", "--warmup", "0", "--workers", "1", "--json", str(received_result)]
        receiving = asyncio.create_task(bench("sub", "--subscribers", "20", *arguments[:-6], *listening))
        async with asyncio.timeout(30):
            while len([client for client in cluster.brokers[0].live if client.topics]) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        status, output = await bench("pub", *arguments, "--json", str(published_result))
        check_verdict(published_result, status, output)
        status, output = await receiving
    check_verdict(received_result, status, output)
    published = sum(len(log) for log in cluster.topics.values())
    assert published == 4 * round(1.3 * 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--servers", "http://127.0.0.1:1"], "servers"),
        (["--servers", "ws://127.0.0.1:1", "--payload", "3"], "payload"),
        (["--servers", "ws://127.0.0.1:1", "--threshold", "-1"], "threshold"),
    ],
)
async def test_value_out_of_range_is_a_usage_error(arguments: list[str], named: str) -> None:
    status, output = await bench("run", *arguments)
    assert status == 2
    assert named in output


async def test_unreachable_server_is_shown_while_retrying() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # in use, but not listening
        url = f"ws://127.0.0.1:{closed.getsockname()[1]}/ws"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "migratory_cli.main", "bench", "run", "-s", url, "--subscribers", "3", *SMALL,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        line = b""
        async with asyncio.timeout(30):
            while b"retrying" not in line:
                line = await process.stdout.readline()
                assert line, "it ended"
        assert f"connecting  0 of 3 subscribers; retrying: connect_failed: {url}: connection refused" in line.decode()
        assert process.returncode is None
        process.kill()
        await process.wait()


async def test_invalid_record_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "account.jsonl"
    path.write_text("{}\n")
    status, output = await bench("verify", str(path))
    assert status == 1
    assert "line 1" in output
