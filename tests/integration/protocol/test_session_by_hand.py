"""The session of docs/reference/protocol.md, sent to a real broker with an independent WebSocket library."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import websockets
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.processes import Brokers

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
WRITTEN_EPOCH = "1700000000000"  # of the page; a real one is the time of the cluster's start
LIMIT = 20.0

pytestmark = pytest.mark.real

Message = dict[str, Any]


def steps() -> list[tuple[list[str], list[Message]]]:
    """Return the sessions of the page as a list of (lines to send, expected answers)."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    sessions: list[tuple[list[str], list[Message]]] = []
    for sign, group in groupby(lines, key=lambda line: line[0]):
        texts = [line[2:] for line in group]
        if sign == ">":
            sessions.append((texts, []))
        else:
            sessions[-1][1].extend(map(json.loads, texts))
    return sessions


def parts(message: Message) -> list[Message]:
    """Return the message as a list; a `subscribed` message becomes one message per receipt, because receipts may
    come one by one or together."""
    if message["op"] != "subscribed":
        return [message]
    return [{**message, "topics": [topic]} for topic in message["topics"]]


class Session:
    """A session with a broker whose answers are compared with those on the page, except for values that differ from
    run to run."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self._epochs: dict[str, str] = defaultdict(lambda: WRITTEN_EPOCH)

    async def type(self, line: str) -> None:
        for topic, epoch in self._epochs.items():
            if topic in line:
                line = line.replace(f'"{WRITTEN_EPOCH}:', f'"{epoch}:')
        await self._socket.send(line)

    async def expect(self, written: list[Message]) -> None:
        wanted = [self._shown(part) for message in written for part in parts(message)]
        messages: list[Message] = []
        async with asyncio.timeout(LIMIT):
            while len(messages) < len(wanted):
                data = json.loads(await self._socket.recv())
                for message in data if isinstance(data, list) else [data]:
                    messages += [self._shown(part) for part in parts(message)]
        key = json.dumps
        assert sorted(messages, key=key) == sorted(wanted, key=key)

    def _shown(self, message: Message) -> Message:
        if message["op"] == "welcome":
            shown = {**message, "broker": "", "cluster": "", "incarnation": 0, "servers": []}
            assert message["broker"]
            assert len(message["servers"]) == 1
            return shown
        holders = message["topics"] if message["op"] == "subscribed" else [message]
        for holder in holders:
            if "position" in holder:
                epoch, sequence = holder["position"].split(":")
                if epoch != WRITTEN_EPOCH:
                    assert self._epochs.setdefault(holder["topic"], epoch) == epoch
                holder["position"] = f"{WRITTEN_EPOCH}:{sequence}"
        if "time" in message:
            message["time"] = 0
        return message


async def test_documented_session_works_with_a_real_broker(tmp_path: Path) -> None:
    with (
        ZooKeeperEnsemble(tmp_path / "zookeeper", 1) as zookeeper,
        Brokers(tmp_path / "brokers", zookeeper.servers, size=1, delivery={"minCopies": 1}) as brokers,
    ):
        brokers.start_all()
        async with websockets.connect(brokers["b0"].url) as socket:
            session = Session(socket)
            for typed, answers in steps():
                for line in typed:
                    await session.type(line)
                await session.expect(answers)
            with pytest.raises(websockets.ConnectionClosedOK):
                await asyncio.wait_for(socket.recv(), LIMIT)
            assert socket.close_code == 1000
