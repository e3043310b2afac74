"""Shapes of messages that `codec.py` decodes besides the messages themselves: any publication, whatever its fields, and
a subscribe request whose positions are not checked. `codec.py` is compiled; classes of msgspec cannot be."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from migratory_protocol import limits
from migratory_protocol import messages as m


class MsgpackPublication(Struct, array_like=True, tag_field="op", tag=m.Publish.__struct_config__.tag):
    """Any publication in MessagePack. Its fields are ignored."""


class JsonPublication(Struct, tag_field="op", tag=m.Publish.__name__.lower()):
    """Any publication in JSON. Its fields are ignored."""


class LenientTopicRequest(Struct, array_like=True):
    """A topic request in MessagePack whose position (`after`) is not decoded, so that it may be any value."""

    topic: str
    after: Raw = Raw(b"\xc0")
    snapshot: bool = False


class LenientSubscribe(Struct, array_like=True, tag_field="op", tag=m.Subscribe.__struct_config__.tag):
    """A subscribe request in MessagePack whose positions are not decoded, so that each may be any value."""

    request: m.RequestId
    topics: Annotated[list[LenientTopicRequest], Meta(max_length=limits.TOPICS)]
