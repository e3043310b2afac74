"""Default limits of a client connection, which brokers and clients enforce. Sizes are bytes, times are seconds.

A broker's configuration can set some of them. `welcome` tells a client those in force that it needs.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = 255
"""Bytes of UTF-8 of the longest topic name. Every message repeats it, so it must be small beside the payload."""

PAYLOAD: Final = 1024 * 1024
"""Bytes of the largest payload. Every copy of a publication is in memory: this is a message bus, not a file store."""

ENVELOPE: Final = 64 * 1024
"""Bytes that a WebSocket message may have besides its payload: names, ids, and fields that a later version adds."""

MESSAGE: Final = PAYLOAD + ENVELOPE
"""Bytes of the largest WebSocket message, after defragmentation and inflation."""

MESSAGES: Final = 4096
"""The largest number of messages in one frame. Half a million short ones would fit into its bytes and block a broker's
loop for seconds. The decoder stops at the first one above the limit."""

TOPICS: Final = 4096
"""The largest number of entries of a list in a message: topics of a request or an answer, servers. The decoder stops at
the first one above the limit. A client with more subscriptions sends several requests."""

ITEMS: Final = 8192
"""The largest number of messages and topics in one frame, together: 8 ms of a broker's loop when every topic has a
malformed position."""

POSITION_PARTS: Final = 16
"""The largest number of items of a malformed position that are read, to say how many it has; a valid one has two."""

TEXT: Final = 64 * 1024
"""Characters of the longest text in a message, except a payload: no valid name, token or position is nearly as long."""

JSON_VALUES: Final = 32_768
"""The largest number of commas in a JSON frame over `ENVELOPE` bytes that holds anything but publications: it bounds
the number of values without decoding. With 4096 topics of three fields it leaves room for names with commas."""

SUBSCRIPTIONS: Final = 1000
"""The largest number of subscriptions of one client."""

ID_JUMP: Final = 1_000_000
"""Message ids that a publisher may skip at once, because it gave them up. A client that gives up its 10,000 unanswered
publications every minute reaches it after an hour and a half without a broker, long after it was forgotten."""

QUEUE: Final = 1024 * 1024
"""Bytes that a broker queues for one client before it closes the client as a slow consumer."""

OFFERS: Final = 16
"""The largest number of subprotocols, of extensions, and of parameters of an extension that are read from a handshake;
browsers offer one or two."""

HANDSHAKE: Final = 10.0
"""Seconds from the TCP accept, with TLS from the end of the TLS handshake, within which the client must send `connect`.
The TLS handshake may take as long."""

HEARTBEAT: Final = 15.0
"""Seconds between two pings of a client, and of silence after which a broker pings one. A connection that is silent for
twice that time is dead."""

CONNECTS_PER_SECOND: Final = 5000
"""The largest number of new connections per second of one broker, over all its listeners."""

RESUME_WAIT: Final = 2.0
"""Seconds that a broker waits for a resume position ahead of its own while it hears the coordinator."""

RESUME_LIMIT: Final = 30.0
"""Seconds that a broker waits for a resume position ahead of its own in any case, without a coordinator as well."""
