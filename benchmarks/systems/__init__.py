"""Systems under test: the product, its peers, and the raw loops that are the limit.

base.py       the interface of a system
raw.py        loops of `send()` in C and in Python
product.py    brokers of the product with a ZooKeeper of their own
mosquitto.py, nats.py, centrifugo.py    the peers, as `peers.py` installs them
A new peer is one class here, one in `protocols`, one line in `peers.py`, one in `PEERS` below.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.systems.base import System, Workload
from benchmarks.systems.centrifugo import Centrifugo
from benchmarks.systems.mosquitto import Mosquitto
from benchmarks.systems.nats import JetStream, Nats
from benchmarks.systems.product import Product, UnsupportedField
from benchmarks.systems.raw import C_LOOP, RawLoop, c_loop, python_loop

PEERS: dict[str, Callable[[], System]] = {"mosquitto": Mosquitto, "nats": Nats, "centrifugo": Centrifugo}
"""The peers of most comparisons, by the name in `peers.py`."""

__all__ = [
    "C_LOOP", "PEERS", "Centrifugo", "JetStream", "Nats", "Product", "RawLoop", "System", "UnsupportedField",
    "Workload", "c_loop", "python_loop",
]  # fmt: skip
