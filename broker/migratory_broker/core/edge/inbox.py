"""The inbox: from the bytes of a socket to messages, worked off in the order in which they were sent.

While a subscribe request waits for the logic (subscriptions.py), everything that its client sends behind it waits as
well, unread: who subscribes and then publishes never overtakes himself, and a close frame comes last. `Hold` stops the
socket meanwhile, so that little comes; what had been read before is bounded by `EdgeConfig.backlog_per_client`.

Whatever waits goes on with the answers, or when a full transport takes bytes again, and not before: receipts must not
fill the queue of their client. Each step works off a piece, the rest of one read; `More` brings the next.

A read can bring tens of thousands of frames. After `EdgeConfig.messages_per_turn` messages the rest of them waits as
well, until everybody else had a turn: a flood slows its sender down, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from migratory_protocol import frames
from migratory_protocol.codec import BadMessage
from migratory_protocol.errors import CloseCode

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Backlog, Connection, State
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.edge.events import Hold, More
from migratory_broker.core.edge.incoming import Incoming
from migratory_broker.core.edge.subscriptions import Subscriptions

PIECE = 32_768
"""Bytes that are taken apart at once: of a read of 256 KiB there may be 40,000 frames, each an object while it waits,
or two hundred messages that inflate to a megabyte."""

LONG = 4096
"""Bytes of a message that count for one more: a long one that says little takes its time as well."""

Close = Callable[[Connection, CloseCode, str, str], None]


class Inbox:
    """Of all connections of an edge. `handle` takes a message, or what is wrong with one; `close` is our half of the
    closing handshake, `closed` is told of the peer's."""

    def __init__(
        self,
        config: EdgeConfig,
        delivery: Delivery,
        subscriptions: Subscriptions,
        handle: Callable[[Connection, object], None],
        close: Close,
        closed: Callable[[Connection, frames.CloseReceived], None],
    ) -> None:
        self._config = config
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._handle = handle
        self._close = close
        self._closed = closed
        self.incoming = Incoming(config.incoming_total)
        self._left = 0  # messages that this step still works off
        self._parsers = {deflate: self._parser(deflate) for deflate in (False, True)}  # for whom holds no own one

    def take(self, connection: Connection, data: bytes) -> None:
        """Bytes as the socket gave them."""
        connection.heard = self._delivery.moment
        self._take(connection, data)
        self._account(connection)

    def _take(self, connection: Connection, data: bytes) -> None:
        backlog = connection.backlog
        if backlog is None:
            self._left = self._config.messages_per_turn
            if len(data) > PIECE:
                self._pieces(connection, data)
            else:
                self._feed(connection, data)
            return
        backlog.size += len(data)
        backlog.chunks.append(data)
        limit = self._config.backlog_per_client
        if backlog.size > limit:
            text = f"over {limit} bytes behind a subscribe request that is not carried out yet"
            self._close(connection, CloseCode.NOT_ALLOWED, "backlog", text)

    def _pieces(self, connection: Connection, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            done = self._feed(connection, data[start : start + PIECE])
            if connection.state is State.GONE:
                return
            backlog = connection.backlog
            if not done and backlog is not None:
                rest = data[start + PIECE :]
                if rest:
                    backlog.size += len(rest)
                    backlog.chunks.append(rest)
                return

    def go_on(self, connection: Connection) -> None:
        """Something that the connection's request waited for has happened, if it has one that waits."""
        backlog = connection.backlog
        if backlog is None or connection.queue is not None:
            return
        connection.heard = self._delivery.moment  # while its socket is held it can't give another sign of life
        self._left = self._config.messages_per_turn
        self._go_on(connection, backlog)
        self._account(connection)

    def _go_on(self, connection: Connection, backlog: Backlog) -> None:
        if connection.request is not None:
            self._subscriptions.go_on(connection, connection.request)
        if connection.request is None:
            self._work(connection, backlog.messages)
        if connection.request is not None or not self._events(connection, backlog.frames):
            return
        if connection.backlog is not None and backlog.chunks:
            data = backlog.chunks.popleft()
            if len(data) > PIECE:
                backlog.chunks.appendleft(data[PIECE:])
                data = data[:PIECE]
            backlog.size -= len(data)
            if not self._feed(connection, data):
                return
        if connection.backlog is not None:
            if backlog.chunks:
                self._delivery.aside(More(connection.number))
            else:
                self.leave(connection)

    def leave(self, connection: Connection) -> None:
        """Nothing waits any more: all was worked off, or the connection ends."""
        if connection.backlog is not None:
            connection.backlog = None
            self._delivery.aside(Hold(connection.number, False))
            self.incoming.note(connection)

    def forget(self, connection: Connection) -> None:
        """It is gone, or is to hold nothing any more."""
        connection.parser = None
        self.leave(connection)
        self.incoming.note(connection)

    def _account(self, connection: Connection) -> None:
        """Keep the limit over all clients."""
        incoming = self.incoming
        incoming.note(connection)
        if incoming.total > self._config.incoming_total:
            for largest in incoming.largest():
                text = f"holds most when all clients together were over {self._config.incoming_total} bytes unread"
                self._close(largest, CloseCode.TRY_ANOTHER, "incoming", text)
                self.forget(largest)

    # ---- frames ----------------------------------------------------------------------------------------------

    def _feed(self, connection: Connection, data: bytes) -> bool:
        """Takes the frames apart and does what they say. Returns whether all of it was done."""
        deflate = connection.format.deflate
        parser = connection.parser or self._parsers[deflate]
        try:
            found = parser.feed(data)
        except frames.ProtocolError as error:
            self._keep(connection, parser, deflate)  # it is finished, and ignores what still comes
            return self._events(connection, iter([*error.events, error]))
        if not parser.is_reusable:
            self._keep(connection, parser, deflate)
        elif connection.parser is not None:
            connection.parser = None  # an idle connection holds no parser
        return self._events(connection, iter(found))

    def _parser(self, deflate: bool) -> frames.FrameParser:
        return frames.FrameParser("server", self._config.max_message, deflate)

    def _keep(self, connection: Connection, parser: frames.FrameParser, deflate: bool) -> None:
        """The parser holds something of this connection: it is no longer anybody's."""
        if connection.parser is None:
            connection.parser = parser
            self._parsers[deflate] = self._parser(deflate)

    def _events(self, connection: Connection, found: Iterator[frames.FrameEvent | frames.ProtocolError]) -> bool:
        """Whether all were worked off; the rest waits otherwise."""
        for event in found:
            if isinstance(event, frames.MessageReceived):
                self._left -= len(event.data) // LONG
                if connection.state <= State.OPEN:
                    self._work(connection, self._messages(connection, event))
            elif isinstance(event, frames.CloseReceived):
                self._closed(connection, event)
            elif isinstance(event, frames.ProtocolError):
                reason = "too_large" if event.code == CloseCode.TOO_LARGE else "protocol"
                self._close(connection, event.code, reason, event.text)
            elif isinstance(event, frames.PingReceived) and connection.state <= State.OPEN:
                self._delivery.write(connection, frames.pong_frame(event.data))
            if connection.request is not None:
                self._behind(connection).frames = found
                return False
            self._left -= 1
            if self._left <= 0 and connection.state <= State.OPEN:
                self._behind(connection).frames = found
                self._delivery.aside(More(connection.number))
                return False
        return True

    # ---- messages --------------------------------------------------------------------------------------------

    def _messages(self, connection: Connection, event: frames.MessageReceived) -> Iterator[object]:
        codec = connection.format.codec
        if event.text is codec.binary:
            kind = "binary" if codec.binary else "text"
            self._close(connection, CloseCode.UNSUPPORTED_DATA, "protocol", f"{codec.subprotocol} takes {kind} frames")
            return iter(())
        messages: Sequence[object]
        try:
            messages = codec.decode_client(event.data)
        except BadMessage as error:
            messages = error.frame
        return iter(messages)

    def _work(self, connection: Connection, messages: Iterator[object]) -> None:
        for message in messages:
            if connection.state > State.OPEN:
                return
            self._handle(connection, message)
            self._left -= 1
            if connection.request is not None:
                self._behind(connection).messages = messages
                return

    def _behind(self, connection: Connection) -> Backlog:
        """Where what came behind the connection's request waits."""
        if connection.backlog is None:
            connection.backlog = Backlog()
            self._delivery.aside(Hold(connection.number, True))
        return connection.backlog
