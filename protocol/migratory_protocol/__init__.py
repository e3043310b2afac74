"""The wire protocol without I/O, for brokers and clients: messages between clients and brokers, and between brokers.

Begin with `messages.py`, which defines every client message once for both wire formats. `codec.py` encodes and decodes
them, `jsonwire.py` derives the JSON format, and `diagnosis.py` explains what was wrong with a frame that cannot be
decoded. `positions.py` and `topics.py` are the values inside. Below them is WebSocket: `handshake.py`, `origins.py` and
`frames.py`. `errors.py` has the error codes and close codes, `limits.py` the default limits. `peer.py` defines the
messages between brokers. Authors of clients read docs/reference/protocol.md.

Importing the package makes later imports load compiled modules where they are installed
(`migratory_compiled.activate`).
"""

from migratory_compiled import activate

activate()
