"""How clients of each server talk: pure functions over bytes, so that receiver and publisher are the same for all.

base.py         what a dialect is; `RawBytes`, which says nothing at all
product.py      the product's MessagePack protocol
mqtt.py         MQTT 3.1.1 over WebSocket (Mosquitto)
nats.py         the NATS protocol over WebSocket, and JetStream's acknowledgements
centrifuge.py   Centrifugo's JSON protocol
A new server is one class here and one in `contenders`.
"""

from benchmarks.dialects.base import Dialect, Refused, Speaker
from benchmarks.dialects.registry import named

__all__ = ["Dialect", "Refused", "Speaker", "named"]
