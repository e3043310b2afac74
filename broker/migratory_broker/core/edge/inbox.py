"""The inbox of the edge core: parses the bytes of a socket into messages and handles them in the order in which they
were sent.

While a subscribe request has topics that are still to be requested from the logic (subscriptions.py), everything that
its client sends after it waits in the connection's backlog, mostly unparsed: a publication never overtakes the
subscription before it, and a close frame comes last. Meanwhile the effect `Hold` stops reading from the socket.
`EdgeConfig.backlog_per_client` bounds the bytes that were read before that had an effect.

A backlog is continued at an answer of the logic, at `More`, or when a full transport accepts bytes again; never while
the transport is full, because receipts must not fill their client's queue. Each step handles a part, such as the rest
of one read; `More` asks for the next step.

One read can hold tens of thousands of frames, and one frame thousands of messages and topics. After
`EdgeConfig.messages_per_turn` of them the rest also waits until the other connections had their turn: a flood slows
down its sender and nobody else. A new read has less, `EdgeConfig.messages_per_read`: rests come after the new reads of
other connections, and small messages of many must not wait for the large reads of few. A message that exceeds its
client's rate waits in the backlog as well (rates.py). A compressed frame is inflated only when it is handled, because
it may become a thousand times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import length_hint

from migratory_protocol import frames
from migratory_protocol.codec import BadMessage
from migratory_protocol.errors import CloseCode

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.events import Hold, More
from migratory_broker.core.edge.rates import RateLimiter
from migratory_broker.core.edge.state import Backlog, ClientConnection, State
from migratory_broker.core.edge.subscriptions import SubscriptionTable

PIECE_BYTES = 8192
"""Bytes that are parsed at once. A read of 256 KiB may hold 40,000 frames, each of which takes 3 us to parse and is an
object until it is handled."""

PIECE_COST = 64
"""The smallest number of messages of a turn that a piece of a long read costs: its fragments may take as long and
complete no message."""

BYTES_PER_MESSAGE = 4096
"""Bytes of a message that count as one more message of a turn: parsing a long message takes time as well."""

BYTES_PER_BAD_MESSAGE = 32
"""Bytes of a frame with a bad message that count as one more message of a turn: each of its values is examined."""

ENTRY_BYTES = 256
"""Bytes of memory that a parsed frame or a decoded message needs besides its data: objects and the place in a list."""

CloseConnection = Callable[[ClientConnection, CloseCode, str, str], None]


class UnprocessedBytes:
    """The number of bytes received from each client that are not processed yet: the token of its request until
    `connect`, incomplete frames and messages, a pending request and the backlog. Parsed frames and decoded messages
    count with the memory that they take.

    Each client alone may hold one message of the largest size and a backlog. Thousands of clients that never complete a
    message would hold gigabytes. When `total` is over `limit` bytes, `Inbox` closes the largest holders until an eighth
    of the limit is free, so that the search for them is not repeated for every read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[ClientConnection, int] = {}
        self.total = 0

    def update(self, connection: ClientConnection) -> None:
        """Count the connection's bytes again, and change `total` by the difference. Call this after every change of its
        token, parser, request or backlog."""
        parser, backlog, token = connection.parser, connection.backlog, connection.token
        if parser is None and backlog is None and token is None:
            if connection in self._held:
                self.total -= self._held.pop(connection)
            return
        held = parser.buffered_bytes if parser is not None else 0
        if token is not None:
            held += len(token)
        if backlog is not None:
            held += backlog.size + backlog.parsed
        if connection.request is not None:
            held += connection.request.size
        self.total += held - self._held.get(connection, 0)
        self._held[connection] = held

    def over_limit(self) -> list[ClientConnection]:
        """Return the connections to close so that an eighth of the limit, in bytes, is free: those with the most bytes,
        the largest first. Empty if so much is free already. Nothing changes."""
        total = self.total
        closing = []
        for connection in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if total <= self._limit - self._limit // 8:
                break
            total -= self._held[connection]
            closing.append(connection)
        return closing


class Inbox:
    """The received bytes of all connections of an edge, and their handling in order. Its callbacks:

    handle           handles a message, or the error of a bad one
    close            begins the closing handshake: connection, close code, label of the metric, text for the client
    closed_by_peer   handles a close frame
    """

    def __init__(
        self,
        config: EdgeConfig,
        delivery: EdgeDelivery,
        subscriptions: SubscriptionTable,
        handle: Callable[[ClientConnection, object], None],
        close: CloseConnection,
        closed_by_peer: Callable[[ClientConnection, frames.CloseReceived], None],
        rates: RateLimiter,
    ) -> None:
        self._config = config
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._handle = handle
        self._close = close
        self._closed_by_peer = closed_by_peer
        self._rates = rates
        self.unprocessed = UnprocessedBytes(config.input_total)
        self._budget = 0  # messages and topics that this step may still handle
        self._idle_parsers = {deflate: self._new_parser(deflate) for deflate in (False, True)}  # for all connections

    def receive(self, connection: ClientConnection, data: bytes) -> None:
        """Handle bytes from the socket, up to the number of messages of a read; what remains of them goes to the
        connection's backlog. If there is a backlog already, add all bytes to it, and close the connection if it exceeds
        its limit. Close the clients that hold the most unprocessed bytes if all clients together hold too many. The
        connection counts as heard."""
        connection.heard_at = self._delivery.coarse_now
        self._receive(connection, data)
        self._enforce_total(connection)

    def _receive(self, connection: ClientConnection, data: bytes) -> None:
        """Do the work of `receive` for this connection: handle the bytes, or add them to its backlog and close it if
        that exceeds its limit."""
        backlog = connection.backlog
        if backlog is None:
            self._budget = min(self._config.messages_per_read, self._config.messages_per_turn)
            self._parse_read(connection, data)
            return
        backlog.size += len(data)
        backlog.chunks.append(data)
        limit = self._config.backlog_per_client
        if backlog.size > limit:
            text = f"over {limit} bytes waited behind requests that are still being handled"
            self._close(connection, CloseCode.NOT_ALLOWED, "backlog", text)

    def _parse_read(self, connection: ClientConnection, data: bytes) -> bool:
        """Parse the bytes of a read in pieces, and handle them. Return whether all were handled, or dropped because the
        connection ended; otherwise those that were not handled are first in the backlog."""
        if len(data) <= PIECE_BYTES:
            return self._parse(connection, data)
        for end in range(PIECE_BYTES, len(data) + PIECE_BYTES, PIECE_BYTES):
            left = self._budget - PIECE_COST
            done = self._parse(connection, data[end - PIECE_BYTES : end])
            self._budget = min(self._budget, left)
            if connection.state is State.GONE:
                return True
            if done and self._budget <= 0 and end < len(data):
                self._backlog_of(connection)
                self._delivery.emit(More(connection.number))
                done = False
            backlog = connection.backlog
            if not done and backlog is not None:
                rest = data[end:]
                if rest:
                    backlog.size += len(rest)
                    backlog.chunks.appendleft(rest)
                return False
        return True

    def hold_token(self, connection: ClientConnection, token: str) -> None:
        """Store the token of a connection's request until its `connect`, and count its bytes as unprocessed. Clients
        may be closed for that, as in `receive`."""
        connection.token = token
        self._enforce_total(connection)

    def resume(self, connection: ClientConnection) -> None:
        """Handle the next part of the connection's backlog, and emit `More` if a part remains that can be handled. The
        connection counts as heard. Without a backlog, or while the connection is paused or waits for its rate:
        nothing."""
        backlog, meter = connection.backlog, connection.meter
        if backlog is None or connection.queue is not None or (meter is not None and meter.is_blocked):
            return
        connection.heard_at = self._delivery.coarse_now  # while `Hold` stops its socket it cannot show that it is alive
        self._budget = self._config.messages_per_turn
        self._resume(connection, backlog)
        self._enforce_total(connection)

    def _resume(self, connection: ClientConnection, backlog: Backlog) -> None:
        """Handle the next part of a backlog, in its order: the pending request, the message that waited for its rate,
        the other messages of its frame, the other frames of its read, and one further read. Stop where something must
        wait. Drop a backlog that is used up."""
        if connection.request is not None:
            self._subscriptions.resume(connection, connection.request)
        if connection.request is not None:
            return
        limited, backlog.limited = backlog.limited, None
        if not self._handle_messages(connection, backlog.messages, limited):
            return
        if not self._handle_events(connection, backlog.frames):
            return
        backlog.parsed = 0
        if connection.backlog is not None and backlog.chunks:
            data = backlog.chunks.popleft()
            backlog.size -= len(data)
            if not self._parse_read(connection, data):
                return
        if connection.backlog is not None:
            if backlog.chunks:
                self._delivery.emit(More(connection.number))
            else:
                self.drop_backlog(connection)

    def charge(self, messages: int) -> None:
        """Subtract more than the one that each message costs from the number of messages that this turn may still
        handle: the topics of a request, or the cost of a `connect`."""
        self._budget -= messages

    def drop_backlog(self, connection: ClientConnection) -> None:
        """Drop the connection's backlog, if it has one, and resume reading from its socket: either all input is
        handled, or the connection ends."""
        if connection.backlog is not None:
            connection.backlog = None
            self._delivery.emit(Hold(connection.number, False))
            self.unprocessed.update(connection)

    def release(self, connection: ClientConnection) -> None:
        """Drop the token, the parser and the backlog of a connection that ends: all its unprocessed input, which is
        counted no more."""
        connection.parser = None
        connection.token = None
        self.drop_backlog(connection)
        self.unprocessed.update(connection)

    def _enforce_total(self, connection: ClientConnection) -> None:
        """Count the connection's bytes again. If all clients together are over the limit, begin to close those that
        hold the most, and drop their input, until an eighth of the limit is free."""
        unprocessed = self.unprocessed
        unprocessed.update(connection)
        if unprocessed.total > self._config.input_total:
            for largest in unprocessed.over_limit():
                text = f"limit of unprocessed bytes of all clients reached ({self._config.input_total})"
                self._close(largest, CloseCode.TRY_ANOTHER, "incoming", text)
                self.release(largest)

    # ---- frames ----------------------------------------------------------------------------------------------

    def _parse(self, connection: ClientConnection, data: bytes) -> bool:
        """Parse bytes into frames and handle these. Return whether all were handled; otherwise the frames that were not
        handled are in the backlog. A parser with an incomplete frame stays with the connection. A violation of the
        protocol is handled after the complete frames, and closes the connection."""
        deflate = connection.format.deflate
        parser = connection.parser or self._idle_parsers[deflate]
        try:
            events = parser.feed(data)
        except frames.ProtocolError as error:
            self._assign_parser(connection, parser, deflate)  # it is closed, and ignores all further bytes
            return self._handle_events(connection, iter([*error.events, error]))
        if not parser.is_reusable:
            self._assign_parser(connection, parser, deflate)
        elif connection.parser is not None:
            connection.parser = None  # an idle connection holds no parser
        return self._handle_events(connection, iter(events))

    def _new_parser(self, deflate: bool) -> frames.FrameParser:
        return frames.FrameParser("server", self._config.max_message, deflate, inflate=False)

    def _assign_parser(self, connection: ClientConnection, parser: frames.FrameParser, deflate: bool) -> None:
        """Give the connection the shared parser that now holds its incomplete frame, or has refused its bytes, and
        create another shared parser. Without effect if the connection has a parser."""
        if connection.parser is None:
            connection.parser = parser
            self._idle_parsers[deflate] = self._new_parser(deflate)

    def _handle_events(
        self, connection: ClientConnection, events: Iterator[frames.FrameEvent | frames.ProtocolError]
    ) -> bool:
        """Handle parsed frames in their order: inflate and decode messages and handle them, answer pings, pass on close
        frames, and close the connection after a violation. Return whether all were handled; otherwise the frames and
        messages that were not handled are in the backlog."""
        for event in events:
            if connection.format.deflate and isinstance(event, frames.DeflatedReceived):
                if connection.state > State.OPEN:
                    continue
                event = self._inflate(event)  # noqa: PLW2901
            if isinstance(event, frames.MessageReceived):
                self._budget -= len(event.data) // BYTES_PER_MESSAGE
                if connection.state <= State.OPEN:
                    messages = self._decode(connection, event)
                    if not self._handle_messages(connection, messages):
                        self._keep(connection, events, len(event.data) + ENTRY_BYTES * length_hint(messages))
                        return False
            elif isinstance(event, frames.CloseReceived):
                self._closed_by_peer(connection, event)
            elif isinstance(event, frames.ProtocolError):
                reason = "too_large" if event.code == CloseCode.TOO_LARGE else "protocol"
                self._close(connection, event.code, reason, event.text)
            elif isinstance(event, frames.PingReceived) and connection.state <= State.OPEN:
                self._delivery.write(connection, frames.pong_frame(event.data))
            self._budget -= 1
            if self._budget <= 0 and connection.state <= State.OPEN:
                self._keep(connection, events)
                self._delivery.emit(More(connection.number))
                return False
        return True

    def _inflate(self, event: frames.DeflatedReceived) -> frames.MessageReceived | frames.ProtocolError:
        """Return the message that a compressed frame holds, or, as an event, the error for one that is malformed or too
        large."""
        try:
            return frames.inflate_message(event, self._config.max_message)
        except frames.ProtocolError as error:
            return error

    def _keep(
        self, connection: ClientConnection, events: Iterator[frames.FrameEvent | frames.ProtocolError], size: int = 0
    ) -> None:
        """Store the remaining `events` in the backlog, in place of its frames. Without a backlog create one, and stop
        reading from the socket.

        `size` is the memory in bytes of the frame before them if its messages were handled only in part, else 0.
        """
        backlog = self._backlog_of(connection)
        rest = list(events)
        backlog.frames = iter(rest)
        backlog.parsed = size + sum(ENTRY_BYTES + len(getattr(event, "data", b"")) for event in rest)

    # ---- messages --------------------------------------------------------------------------------------------

    def _decode(self, connection: ClientConnection, event: frames.MessageReceived) -> Iterator[object]:
        """Return the messages of a frame, each bad one replaced by its error. For a binary frame where text is
        required, or the reverse, begin to close the connection and return nothing."""
        codec = connection.format.codec
        if event.text is codec.binary:
            kind = "binary" if codec.binary else "text"
            self._close(
                connection, CloseCode.UNSUPPORTED_DATA, "protocol", f"{codec.subprotocol} requires {kind} frames"
            )
            return iter(())
        messages: Sequence[object]
        try:
            messages = codec.decode_client(event.data)
        except BadMessage as error:
            messages = error.frame
            self._budget -= len(event.data) // BYTES_PER_BAD_MESSAGE
        return iter(messages)

    def _handle_messages(
        self, connection: ClientConnection, messages: Iterator[object], limited: object = None
    ) -> bool:
        """Handle the messages of a frame, before them `limited`, the one that waited for its rate, if there is one.

        Return False if a subscribe request is pending, a rate is reached or the turn's number of messages is used up:
        then the messages that were not handled are in the backlog. Otherwise return True; once the connection is
        closing, further messages are ignored.
        """
        for message in messages if limited is None else chain((limited,), messages):
            if connection.state > State.OPEN:
                return True
            meter = connection.meter
            if meter is not None and not self._rates.admit(connection, meter, message):
                backlog = self._backlog_of(connection)
                backlog.limited, backlog.messages = message, messages
                return False
            self._handle(connection, message)
            self._budget -= 1
            if connection.request is not None:
                self._backlog_of(connection).messages = messages
                return False
            if self._budget <= 0 and connection.state <= State.OPEN:
                self._backlog_of(connection).messages = messages
                self._delivery.emit(More(connection.number))
                return False
        return True

    def _backlog_of(self, connection: ClientConnection) -> Backlog:
        """Return the connection's backlog. If it has none, create one and stop reading from the socket."""
        if connection.backlog is None:
            connection.backlog = Backlog()
            self._delivery.emit(Hold(connection.number, True))
        return connection.backlog
