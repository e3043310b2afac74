"""`migratory pub` and `migratory sub` as processes, against the fake broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest
from migratory_protocol import messages as wire
from migratory_protocol.positions import Position
from migratory_testing.fakebroker import FakeBroker
from migratory_testing.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running


async def start(broker: FakeBroker, *line: str) -> Process:
    environment = {**os.environ, "MIGRATORY_SERVERS": broker.url, "COLUMNS": "200"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "migratory_cli.main", *line, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment
    )


async def run(broker: FakeBroker, *line: str, stdin: bytes = b"") -> tuple[int | None, str, str]:
    process = await start(broker, *line)
    out, err = await asyncio.wait_for(process.communicate(stdin), 30)
    return process.returncode, out.decode(), err.decode()


async def test_publishing_prints_the_position(broker: FakeBroker) -> None:
    code, out, err = await run(broker, "pub", "quotes/eur", "1.0842 €")
    assert (code, out) == (0, "1:1\n"), err
    assert "connected to fake-0" in err
    assert [message.payload for message in broker.memory.topics["quotes/eur"]] == ["1.0842 €".encode()]


async def test_pub_publishes_lines_of_stdin(broker: FakeBroker) -> None:
    code, out, _ = await run(broker, "pub", "t", "--quiet", stdin=b"one\n\xff\r\n\nlast")
    assert (code, out) == (0, "1:1\n1:2\n1:3\n1:4\n")
    assert [message.payload for message in broker.memory.topics["t"]] == [b"one", b"\xff", b"", b"last"]


async def test_pub_repeats_at_the_rate_with_json_results(broker: FakeBroker) -> None:
    began = asyncio.get_running_loop().time()
    code, out, _ = await run(broker, "pub", "t", "x", "--repeat", "5", "--rate", "50", "--json", "--wire", "json")
    assert code == 0
    assert asyncio.get_running_loop().time() - began >= 4 / 50
    records = [json.loads(line) for line in out.splitlines()]
    assert [(line["number"], line["topic"], line["position"]) for line in records] == [
        (number, "t", f"1:{number}") for number in range(1, 6)
    ]


async def test_qos_0_prints_nothing(broker: FakeBroker) -> None:
    code, out, _ = await run(broker, "pub", "t", "x", "--qos", "0")
    assert (code, out) == (0, "")
    await until(lambda: broker.memory.topics.get("t"), "arrived")


async def test_failure_is_named_and_exits_with_1(broker: FakeBroker) -> None:
    code, out, err = await run(broker, "pub", "a\tb", "x", "--json")
    assert code == 1
    assert json.loads(out)["error"] == "bad_topic"
    code, out, err = await run(broker, "pub", "a\tb", "x", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith("Error: publication 1: topic")
    await broker.stop()
    code, out, err = await run(broker, "pub", "t", "x", "--connect-timeout", "0.3")
    assert (code, out) == (1, "")
    assert "no broker within 0.3 s" in err
    assert "Traceback" not in err


async def test_subscribing_prints_messages_and_receipts(broker: FakeBroker) -> None:
    for number in range(1, 8):
        broker.memory.append("t", b"%d" % number)
    broker.memory.first_cached = 4
    code, out, err = await run(broker, "sub", "t", "--after", "1:1", "--count", "4")
    assert (code, out) == (0, "4\n5\n6\n7\n")
    assert "t: truncated, 2 to 3 are missing" in err
    code, out, err = await run(broker, "sub", "t", "--snapshot", "-n", "1", "--quiet")
    assert (code, out, err) == (0, "7\n", "")


async def test_sub_with_json_prints_one_object_per_message(broker: FakeBroker) -> None:
    broker.memory.append("t", "€".encode(), 12.5)
    broker.memory.append("t", b"\xff")
    code, out, err = await run(broker, "sub", "t", "--after", "1:0", "--count", "2", "--json")
    assert code == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["position"], first["data"], first["sent"]) == ("1:1", "€", 12.5)
    assert (second["topic"], second["data64"]) == ("t", "/w==")
    connected, receipt = [json.loads(line) for line in err.splitlines()]
    assert connected == {"status": "connected", "broker": "fake-0", "url": broker.url}
    assert receipt == {"topic": "t", "receipt": "complete", "position": "1:2"}


async def test_json_is_the_only_output_on_both_streams(broker: FakeBroker) -> None:
    """With `--json`, both output streams of `migratory sub` contain only JSON objects, also about a lost history, a
    lost connection, and a topic that looks like a wildcard."""
    topic = "quotes/#"
    broker.memory.epoch = 9
    broker.memory.append(topic, b"old")
    process = await start(broker, "sub", topic, "--after", "1:5", "--json")
    await until(lambda: broker.live and broker.live[0].topics, "subscribed")
    broker.publish(topic, b"1")
    first = broker.live[0]
    broker.memory.first_cached = 99
    broker.memory.topics[topic] += [wire.Message(topic, Position(9, number), b"-") for number in range(3, 101)]
    await first.close(4003, "slow consumer: 9 bytes waited")
    assert process.stdout is not None
    for sequence in (2, 99, 100):
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), 10))
        assert line["position"] == f"9:{sequence}"
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130
    notices = [json.loads(line) for line in err.splitlines()]
    assert [next(iter(line.items())) for line in notices] == [
        ("hint", "quotes/#: there are no wildcards; this subscribes to the topic of exactly this name"),
        ("status", "connected"), ("topic", topic),
        ("hint", "quotes/#: waiting for the next publication (--snapshot, without --after, shows the latest)"),
        ("status", "lost"), ("status", "connected"), ("topic", topic), ("status", "resumed"),
    ]  # fmt: skip
    assert notices[2] == {"topic": topic, "receipt": "reset", "position": "9:1", "after": "9:1", "before": "1:5"}
    assert notices[4] == {"status": "lost", "code": 4003, "reason": "slow consumer: 9 bytes waited"}
    assert notices[6] == {"topic": topic, "receipt": "truncated", "position": "9:100", "first": 3, "last": 98}


async def test_with_json_errors_are_json(broker: FakeBroker) -> None:
    code, out, err = await run(broker, "sub", "a\tb", "--json")
    assert (code, out) == (1, "")
    assert "bad_topic" in [json.loads(line).get("error") for line in err.splitlines()]
    await broker.stop()
    for command in (("sub", "t"), ("pub", "t", "x")):
        code, out, err = await run(broker, *command, "--json", "--connect-timeout", "0.3")
        assert (code, out) == (1, "")
        problem, error = [json.loads(line) for line in err.splitlines()]
        assert (problem["status"], problem["code"]) == ("problem", "connect_failed")
        assert error["error"] == "connect_failed"
        assert "no broker within 0.3 s" in error["text"]


async def test_gaps_are_shown_with_quiet(broker: FakeBroker) -> None:
    broker.memory.append("t", b"1")
    broker.memory.append("t", b"2")
    broker.memory.first_cached = 2
    _, _, err = await run(broker, "sub", "t", "--after", "1:0", "-n", "1", "--quiet")
    assert err.splitlines() == ["t: truncated, 1 to 1 are missing"]
    _, _, err = await run(broker, "sub", "t", "--after", "1:0", "-n", "1", "--quiet", "--json")
    assert json.loads(err) == {"topic": "t", "receipt": "truncated", "position": "1:2", "first": 1, "last": 1}


async def test_wildcards_get_a_hint(broker: FakeBroker) -> None:
    patterns = ("quotes/#", "hand/*", "+/eur", "quotes.>", "*")
    names = (*patterns, "c++/c#", "a*", "t")
    for topic in names:
        broker.memory.append(topic, b"1")
    code, out, err = await run(broker, "sub", *names, "--snapshot", "-n", str(len(names)))
    assert (code, len(out.splitlines())) == (0, len(names))
    assert [line for line in err.splitlines() if "wildcards" in line] == [
        f"{topic}: there are no wildcards; this subscribes to the topic of exactly this name" for topic in patterns
    ]


async def test_close_reason_of_the_broker_is_shown(broker: FakeBroker) -> None:
    process = await start(broker, "sub", "t", "--count", "1")
    await until(lambda: broker.live and broker.live[0].topics, "subscribed")
    await broker.live[0].close(4003, "slow consumer: 9 bytes waited")
    broker.memory.append("t", b"missed")
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (0, b"missed\n")
    assert b"closed by the broker: too slow (slow consumer: 9 bytes waited)\n" in err


async def test_sub_prints_several_topics_and_exits_with_130_on_interrupt(broker: FakeBroker) -> None:
    process = await start(broker, "sub", "t", "u", "bad\0".replace("\0", "\t"))
    assert process.stdout is not None
    await until(lambda: broker.live and len(broker.live[0].topics) == 2, "subscribed")
    broker.publish("u", b"hello")
    assert await asyncio.wait_for(process.stdout.readline(), 10) == b"u\thello\n"
    reset = wire.TopicReceipt("u", "reset", Position(9, 0))
    broker.live[0].send(wire.Subscribed(0, [reset]), wire.Message("u", Position(9, 1), b"again"))
    assert await asyncio.wait_for(process.stdout.readline(), 10) == b"u\tagain\n"
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 130
    assert b"u: reset, the earlier history is lost; continues after 9:0, was at 1:1" in err
    assert b"Error: bad\\t: topic" in err
    assert b"Traceback" not in err


async def test_silent_terminal_does_not_block_the_exit(broker: FakeBroker) -> None:
    process = await start(broker, "pub", "t")
    await until(lambda: broker.live, "connected")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 128 + signal.SIGTERM
    assert process.stdin is not None
    process.stdin.close()


async def test_lost_connection_is_shown_and_survived(broker: FakeBroker) -> None:
    process = await start(broker, "sub", "t", "--count", "1")
    await until(lambda: broker.live and broker.live[0].topics, "subscribed")
    broker.live[0].reset()
    broker.memory.append("t", b"missed")
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (0, b"missed\n")
    assert b"connection lost" in err
    assert b"resumed after" in err


async def test_positions_option_shows_positions(broker: FakeBroker) -> None:
    broker.memory.append("t", b"one")
    code, out, err = await run(broker, "sub", "t", "--snapshot", "--count", "1", "--positions")
    assert (code, out) == (0, "1:1\tone\n"), err
    broker.memory.append("u", b"two")
    code, out, err = await run(broker, "sub", "u", "v", "--snapshot", "--count", "1", "--positions")
    assert (code, out) == (0, "u\t1:1\ttwo\n"), err


async def test_empty_topic_is_refused_with_the_reason(broker: FakeBroker) -> None:
    code, out, err = await run(broker, "sub", "", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith("Error: the topic name is empty"), err


@pytest.mark.parametrize("command", [("sub",), ("pub", "--quiet")])
async def test_errors_quote_input_without_control_characters(broker: FakeBroker, command: tuple[str, ...]) -> None:
    """Regression: errors of `pub` and `sub` quote a topic or option with its control characters escaped, so that no
    line break or escape sequence of it reaches the terminal."""
    name, *options = command
    code, _, err = await run(broker, name, *options, "a\nError: b\x1b[2J\u202e", *(["x"] if name == "pub" else []))
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(("Error: a\\nError: b\\x1b[2J\\u202e: topic", "Error: publication 1: topic 'a\\nError"))
    assert all(line.isprintable() for line in err.splitlines())
    code, _, err = await run(broker, name, "t", "--no\x1b[2J")
    assert code == 2
    assert "--no\\x1b[2J" in err


async def test_pub_on_a_terminal_says_that_it_reads_lines(broker: FakeBroker) -> None:
    terminal, command_end = os.openpty()
    try:
        environment = {**os.environ, "MIGRATORY_SERVERS": broker.url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "migratory_cli.main", "pub", "t", stdin=command_end, stdout=PIPE, stderr=PIPE,
            env=environment,
        )  # fmt: skip
        os.write(terminal, b"typed\n\x04")
        out, err = await asyncio.wait_for(process.communicate(), 30)
    finally:
        os.close(terminal)
        os.close(command_end)
    assert (process.returncode, out) == (0, b"1:1\n")
    assert err.startswith(b"publishing every line of standard input; Ctrl-D ends\n")
    _, _, quiet = await run(broker, "pub", "t", stdin=b"x\n")
    assert "standard input" not in quiet


@pytest.mark.parametrize("on_terminal", [True, False])
async def test_sub_escapes_payloads_on_a_terminal_only(broker: FakeBroker, on_terminal: bool) -> None:
    broker.memory.append("t", b"\x1b[2Jtwo\nlines\xff")
    command = [sys.executable, "-m", "migratory_cli.main", "sub", "t", "--snapshot", "--count", "1"]
    terminal, command_end = os.openpty() if on_terminal else os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=command_end, stderr=PIPE, env={**os.environ, "MIGRATORY_SERVERS": broker.url}
        )
        _, err = await asyncio.wait_for(process.communicate(), 30)
        out = os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.close(command_end)
    assert process.returncode == 0, err
    assert out == (b"\\x1b[2Jtwo\\nlines\\xff\r\n" if on_terminal else b"\x1b[2Jtwo\nlines\xff\n")
