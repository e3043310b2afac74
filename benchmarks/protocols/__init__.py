"""Client protocols of all servers as pure functions over bytes, so that receiver and publisher are the same for all.

base.py         the interface of a protocol; `RawProtocol` of the raw loops, which sends nothing
migratory.py    the product's MessagePack protocol
mqtt.py         MQTT 3.1.1 over WebSocket (Mosquitto)
nats.py         the NATS protocol over WebSocket, and JetStream's acknowledgements
centrifuge.py   Centrifugo's JSON protocol
A new server is one class here and one in `systems`.
"""

from __future__ import annotations

from benchmarks.protocols.base import HEARTBEAT, ClientProtocol, Conversation, RawProtocol, RefusedByServer
from benchmarks.protocols.centrifuge import CentrifugeProtocol
from benchmarks.protocols.migratory import ProductProtocol
from benchmarks.protocols.mqtt import MqttProtocol
from benchmarks.protocols.nats import JetStreamProtocol, NatsProtocol

_ALL: tuple[type[ClientProtocol], ...] = (
    RawProtocol,
    ProductProtocol,
    MqttProtocol,
    NatsProtocol,
    JetStreamProtocol,
    CentrifugeProtocol,
)


def find_protocol(name: str, token: str = "") -> ClientProtocol:
    """Return the protocol of this name, whose clients send the token. Raise ValueError when there is none."""
    for protocol in _ALL:
        if protocol.name == name:
            return protocol(token)
    raise ValueError(f"no protocol {name!r}; there are {', '.join(protocol.name for protocol in _ALL)}")


__all__ = ["HEARTBEAT", "ClientProtocol", "Conversation", "RefusedByServer", "find_protocol"]
