"""Defaults of the limits that both ends of a client connection keep. Sizes are bytes, times seconds.

Every one can be set in a broker's configuration; the limits in force are told to each client in `welcome`.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = 255
"""Longest topic name, in UTF-8. Names are in every message: it keeps their share of a small message small."""

PAYLOAD: Final = 1024 * 1024
"""Largest payload. A publication is held in memory `copies` times: this is a message bus, not a file store."""

ENVELOPE: Final = 64 * 1024
"""What a WebSocket message may have besides one largest payload: names, ids and whatever a later version adds."""

MESSAGE: Final = PAYLOAD + ENVELOPE
"""Largest WebSocket message after defragmentation and inflation."""

MESSAGES: Final = 4096
"""Messages in one frame. Short ones could be half a million, and keep a broker's loop from all others for seconds."""

SUBSCRIPTIONS: Final = 1000
"""Subscriptions of one client."""

QUEUE: Final = 1024 * 1024
"""Bytes that may wait in a broker for one client before it counts as a slow consumer."""

HANDSHAKE: Final = 10.0
"""From TCP accept to the client's `connect`."""

HEARTBEAT: Final = 15.0
"""Interval of the heartbeat; a link that was silent for two of them is dead."""

CONNECTS_PER_SECOND: Final = 5000
"""New connections of one broker, over all its listeners."""

RESUME_WAIT: Final = 2.0
"""How long a broker that hears the coordinator waits for a position ahead of its own before it answers `reset`."""

RESUME_LIMIT: Final = 30.0
"""The same, when it hears none."""
