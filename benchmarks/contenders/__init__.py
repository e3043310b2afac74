"""What is measured: the product, its peers, and the raw loops that are the limit.

base.py       what a contender is
raw.py        loops of `send()` in C and in Python
product.py    brokers of the product with a ZooKeeper of their own
mosquitto.py, nats.py, centrifugo.py    the peers, as `peers.py` has them
A new peer is one class here, one in `dialects`, one line in `peers.py`, one in `PEERS` below.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.contenders.base import Contender, Work
from benchmarks.contenders.centrifugo import Centrifugo
from benchmarks.contenders.mosquitto import Mosquitto
from benchmarks.contenders.nats import JetStream, Nats
from benchmarks.contenders.product import Product, Unsupported
from benchmarks.contenders.raw import C_LOOP, Raw, c_loop, python_loop

PEERS: dict[str, Callable[[], Contender]] = {"mosquitto": Mosquitto, "nats": Nats, "centrifugo": Centrifugo}
"""By the name in `peers.py`."""

__all__ = [
    "C_LOOP", "PEERS", "Contender", "JetStream", "Product", "Raw", "Unsupported", "Work", "c_loop", "python_loop",
]  # fmt: skip
