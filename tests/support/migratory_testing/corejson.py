"""The client core's events and effects in JSON ("notation"), as the conformance sessions have them, and a core in
another language that a process runs.

The notation is that of `clients/js/src/core/session.js`. Messages are in the wire format, positions are texts. A field
without information (None, false, an empty text, a text for people) is left out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from math import inf
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from migratory_client.core import events as ev
from migratory_protocol.codec import JSON
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position, parse_position

Notation = dict[str, Any]

_FOR_PEOPLE = {"text", "reason", "abort", "cluster", "broker"}


def compact(content: Notation) -> Notation:
    """Return the notation without the fields that carry no information, and those for people."""
    known = {key: value for key, value in content.items() if key not in _FOR_PEOPLE}
    return {key: value for key, value in known.items() if value is not None and value is not False and value != ""}


def _position(text: Any) -> Position | None:
    return None if text is None else parse_position(text)


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


# ---- events ------------------------------------------------------------------------------------------------------


def event_from_json(event: Notation) -> ev.Event:
    """Return the event that a notation describes. Raise ValueError for one that the Python core does not know."""
    match event:
        case {"type": "open"}:
            return ev.Open()
        case {"type": "close"}:
            return ev.Close()
        case {"type": "tick"}:
            return ev.Tick()
        case {"type": "connected", "link": link}:
            return ev.Connected(link)
        case {"type": "received", "link": link, "messages": messages}:
            return ev.Received(link, JSON.decode_broker(json.dumps(messages).encode()))
        case {"type": "disconnected", "link": link}:
            return ev.Disconnected(link, event.get("code", 1006), event.get("reason", ""))
        case {"type": "token", "link": link, "token": token}:
            return ev.Token(link, token)
        case {"type": "tokenFailed", "link": link}:
            return ev.TokenFailed(link, event.get("reason", ""))
        case {"type": "subscribe", "topic": topic}:
            after = _position(event.get("after"))
            return ev.SubscribeTopic(topic, after, event.get("snapshot", False), event.get("fresh", False))
        case {"type": "unsubscribe", "topic": topic}:
            return ev.UnsubscribeTopic(topic, _position(event.get("seen")))
        case {"type": "submit", "ticket": ticket, "topic": topic, "payload": payload}:
            return ev.Submit(ticket, topic, payload.encode(), event.get("qos", 1), event.get("sent"))
        case {"type": "giveUp", "ticket": ticket}:
            return ev.GiveUp(ticket)
    raise ValueError(f"unknown event {event}")


def event_to_json(event: ev.Event) -> Notation:
    """Return the notation of an event. Payloads must be UTF-8."""
    match event:
        case ev.Received(link, messages):
            return {"type": "received", "link": link, "messages": [json.loads(JSON.encode(item)) for item in messages]}
        case ev.Disconnected(link, code, reason):
            return {"type": "disconnected", "link": link, "code": int(code), "reason": reason}
        case ev.SubscribeTopic(topic, after, snapshot, fresh):
            wanted = {"topic": topic, "after": _text(after), "snapshot": snapshot, "fresh": fresh}
            return {"type": "subscribe", **compact(wanted)}
        case ev.UnsubscribeTopic(topic, seen):
            return {"type": "unsubscribe", **compact({"topic": topic, "seen": _text(seen)})}
        case ev.Submit(ticket, topic, payload, qos, sent):
            optional = {} if sent is None else {"sent": sent}
            content = {"ticket": ticket, "topic": topic, "payload": payload.decode(), "qos": qos, **optional}
            return {"type": "submit", **content}
        case ev.GiveUp(ticket):
            return {"type": "giveUp", "ticket": ticket}
        case ev.Connected(link):
            return {"type": "connected", "link": link}
        case ev.Token(link, token):
            return {"type": "token", "link": link, "token": token}
        case ev.TokenFailed(link, reason):
            return {"type": "tokenFailed", "link": link, "reason": reason}
        case ev.Open() | ev.Close() | ev.Tick():
            return {"type": type(event).__name__.lower()}


# ---- effects -----------------------------------------------------------------------------------------------------


def effects_to_json(effects: Sequence[ev.Effect]) -> list[Notation]:
    """Return the notation of effects. Neighbouring `send` to one link are joined, and pings are left out, because
    clients may differ in when they send them."""
    out: list[Notation] = []
    for effect in effects:
        content = compact(_effect_to_json(effect))
        if content["type"] == "send":
            content["messages"] = [message for message in content["messages"] if message["op"] != "ping"]
            if not content["messages"]:
                continue
            if out and out[-1]["type"] == "send" and out[-1]["link"] == content["link"]:
                out[-1]["messages"] += content["messages"]
                continue
        out.append(content)
    return out


def _effect_to_json(effect: ev.Effect) -> Notation:
    """Return the notation of one effect, also with fields that carry no information."""
    match effect:
        case ev.Send(link, messages):
            return {"type": "send", "link": link, "messages": [json.loads(JSON.encode(item)) for item in messages]}
        case ev.Dial(link, url):
            return {"type": "dial", "link": link, "url": url}
        case ev.RequestToken(link):
            return {"type": "requestToken", "link": link}
        case ev.Disconnect(link):
            return {"type": "disconnect", "link": link}
        case ev.Deliver(link, message):
            content = {"topic": message.topic, "position": str(message.position), "data": message.payload.decode()}
            return {"type": "deliver", "link": link, "message": content}
        case ev.Receipt():
            missing = {"first": str(effect.first), "last": str(effect.last)} if effect.first else {}
            return {
                "type": "receipt", "topic": effect.topic, "kind": effect.kind, "position": _text(effect.position),
                "after": _text(effect.after), "before": _text(effect.before), "resumed": effect.resumed, **missing,
            }  # fmt: skip
        case ev.SubscribeRefused(topic, code):
            return {"type": "refused", "topic": topic, "code": code}
        case ev.Acknowledged(ticket, position):
            return {"type": "acknowledged", "ticket": ticket, "position": _text(position)}
        case ev.PublishFailed(ticket, code):
            return {"type": "failed", "ticket": ticket, "code": code}
        case ev.LinkUp(link, url):
            return {"type": "linkUp", "link": link, "url": url}
        case ev.LinkDown(link, code, _, cause, replaced):
            return {"type": "linkDown", "link": link, "code": int(code), "cause": cause, "replaced": replaced}
        case ev.Ready(link, seconds):
            return {"type": "ready", "link": link, "seconds": seconds}
        case ev.Problem(code, _, fatal):
            return {"type": "problem", "code": code, "fatal": fatal}


def effect_from_json(effect: Notation) -> ev.Effect | None:
    """Return the effect that a notation of another core describes. Return None for `closed`, which the Python core does
    not have. Raise ValueError for an unknown one."""
    link = effect.get("link", 0)
    match effect:
        case {"type": "send", "messages": messages}:
            return ev.Send(link, list(JSON.decode_client(json.dumps(messages).encode())))
        case {"type": "dial", "url": url}:
            return ev.Dial(link, url)
        case {"type": "requestToken"}:
            return ev.RequestToken(link)
        case {"type": "disconnect"}:
            return ev.Disconnect(link, effect.get("abort", False))
        case {"type": "deliver", "message": {"topic": topic, "position": position, "data": data}}:
            return ev.Deliver(link, Message(topic, parse_position(position), data.encode()))
        case {"type": "receipt"}:
            return ev.Receipt(
                effect["topic"], effect["kind"], _position(effect["position"]), _position(effect["after"]),
                int(effect["first"] or 0), int(effect["last"] or 0), effect["resumed"], _position(effect["before"]),
            )  # fmt: skip
        case {"type": "refused"}:
            return ev.SubscribeRefused(effect["topic"], effect["code"], effect["text"])
        case {"type": "acknowledged"}:
            return ev.Acknowledged(effect["ticket"], _position(effect["position"]))
        case {"type": "failed"}:
            return ev.PublishFailed(effect["ticket"], effect["code"], effect["text"])
        case {"type": "linkUp"}:
            return ev.LinkUp(link, effect["url"], effect["cluster"], effect["broker"], 0)
        case {"type": "linkDown"}:
            return ev.LinkDown(link, effect["code"], effect["reason"], effect["cause"], effect["replaced"])
        case {"type": "ready"}:
            return ev.Ready(link, effect["seconds"])
        case {"type": "problem"}:
            return ev.Problem(effect["code"], effect["text"], effect["fatal"])
        case {"type": "closed"}:
            return None
    raise ValueError(f"unknown effect {effect}")


# ---- a core in another process -----------------------------------------------------------------------------------


class ForeignCore:
    """A client core that a process runs, which is started at creation and ended at the end of `with`. A line of JSON
    for each step, {"event", "now"}, is answered by a line with "effects", "deadline" (null: none), "closed",
    "reconnects" and "waiting", the number of unanswered publications.

    It has the part of `ClientCore`'s interface that the random runs use. `random` gives the numbers that the core uses
    as random ones, again from the first after the last.
    """

    def __init__(self, command: Sequence[str], servers: Sequence[str], random: Sequence[float], **options: Any):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.publisher = SimpleNamespace(waiting=0)
        self._ask({"servers": list(servers), "random": list(random), "options": options})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def step(self, event: ev.Event, now: float) -> list[ev.Effect]:
        """Give an event to the core, and return its effects. Update `deadline`, `closed`, `reconnects` and
        `publisher.waiting`."""
        answer = self._ask({"event": event_to_json(event), "now": now})
        found = [effect_from_json(effect) for effect in answer["effects"]]
        return [effect for effect in found if effect is not None]

    def _ask(self, request: Notation) -> Notation:
        """Send a request to the process and return its answer, after updating the attributes. Raise AssertionError if
        the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the core's process ended at {request}"
        answer: Notation = json.loads(line)
        self.deadline: float = inf if answer["deadline"] is None else answer["deadline"]
        self.closed: bool = answer["closed"]
        self.reconnects: int = answer["reconnects"]
        self.publisher.waiting = answer["waiting"]
        return answer
