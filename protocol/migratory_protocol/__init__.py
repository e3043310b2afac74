"""The wire protocol without I/O: what brokers and clients say to each other, and brokers among themselves.

Begin with `messages.py`, the one table that both formats of the client protocol are made from; `codec.py` turns
messages into bytes and back, `diagnosis.py` says what was wrong with those that are none. Below them are WebSocket's
`handshake.py`, `frames.py` and `deflate.py`; `peer.py` is what brokers say to each other. docs/protocol.md is for
people who write a client.
"""
