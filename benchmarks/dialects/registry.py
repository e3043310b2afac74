"""All dialects by name."""

from __future__ import annotations

from benchmarks.dialects.base import Dialect, RawBytes
from benchmarks.dialects.centrifuge import Centrifuge
from benchmarks.dialects.mqtt import Mqtt
from benchmarks.dialects.nats import JetStream, Nats
from benchmarks.dialects.product import Product

_ALL: tuple[type[Dialect], ...] = (RawBytes, Product, Mqtt, Nats, JetStream, Centrifuge)


def named(name: str) -> Dialect:
    """Raises ValueError for a name that is none."""
    for one in _ALL:
        if one.name == name:
            return one()
    raise ValueError(f"no dialect {name!r}; there are {', '.join(one.name for one in _ALL)}")
