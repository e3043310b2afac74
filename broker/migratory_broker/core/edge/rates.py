"""The rates at which clients may publish and subscribe, in the edge core: token buckets of each connection, of each
identity and of each address.

A client over a rate is refused nothing. Its next message waits, and its socket is not read, until the rate allows it;
an `error` with `rate_limited` says which limit, and when the broker reads on. So its publications keep their order, and
a flood costs the broker no more than the rate (Kafka's quotas do the same: KIP-219).

A message is admitted while each bucket that it counts for has tokens left, and may then take more than there are: the
largest one passes as well. Clients that wait for a bucket go on in the order in which they reached its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

from migratory_protocol import errors
from migratory_protocol.messages import Error, Publish, Subscribe

from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.events import NO_RATES, More, RateLimits, Rates
from migratory_broker.core.edge.state import MIN_DELAY, Bucket, ClientConnection, RateMeter
from migratory_broker.core.logic.events import Note, Observe

MAX_TURNS = 64
"""The largest number of clients that go on at once, of those that wait for one bucket."""

MAX_UNUSED = 10_000
"""The largest number of buckets of identities and addresses without a connection. They are kept until they are full
again, so that nobody gets a full one by connecting again."""

LOG_INTERVAL = 1.0
"""Seconds between two log lines about clients at a limit."""

KINDS = ("publications", "bytes", "subscriptions")
"""The kinds of rates: of publications, of the bytes of their payloads, and of the topics of subscribe requests."""


class RateLimiter:
    """The rates of all clients of an edge. Without any limit no connection has a meter, and nothing is counted."""

    def __init__(self, limits: RateLimits, delivery: EdgeDelivery) -> None:
        self._limits = limits
        self._delivery = delivery
        self._shared: dict[tuple[str, str, str], Bucket] = {}
        self._unused: dict[tuple[str, str, str], None] = {}  # keys of those without users, oldest first
        self._timers: list[tuple[float, int, Bucket]] = []  # a heap
        self._timer_count = 0
        self._logged_at = float("-inf")
        self._not_logged = 0

    # ---- connections -----------------------------------------------------------------------------------------

    def add(self, connection: ClientConnection, address: str) -> None:
        """Give a new connection a meter, if there is any limit. `address` is what it counts as for the rates of
        addresses, "" if it does not count."""
        if self._limits != NO_RATES:
            connection.meter = RateMeter(address)
            self.identify(connection)

    def identify(self, connection: ClientConnection) -> None:
        """Let a metered connection count for the buckets of its present identity and of its address. Its own buckets,
        of the connection, keep their levels. Without a meter: nothing."""
        meter = connection.meter
        if meter is None:
            return
        subject = "" if connection.access is None else connection.access.subject
        own = [bucket for bucket in meter.buckets if bucket.key is None]
        buckets = [
            *(own or self._buckets("client", "", self._limits.client)),
            *(self._buckets("identity", subject, self._limits.identity) if subject else ()),
            *(self._buckets("address", meter.address, self._limits.address) if meter.address else ()),
        ]
        for bucket in buckets:
            bucket.users += 1
        self._release(meter)
        meter.buckets = tuple(buckets)

    def remove(self, connection: ClientConnection) -> None:
        """Stop metering a connection that ends, also as one that waits. Shared buckets keep their levels."""
        meter, connection.meter = connection.meter, None
        if meter is not None:
            if meter.waits_for is not None:
                del meter.waits_for.waiting[connection]
            self._release(meter)

    def change(self, limits: RateLimits, connections: Iterable[ClientConnection]) -> None:
        """Replace the limits, also for `connections`, which are all that have not begun to close. All buckets are full
        at first. Connections that waited at a limit go on, by the effect `More`."""
        metered = list(connections)
        waiting = [each for each in metered if each.meter is not None and each.meter.waits_for is not None]
        for connection in metered:
            self.remove(connection)
        self._limits = limits
        self._shared.clear()
        self._unused.clear()
        for connection in metered:
            self.add(connection, limits.addresses.get(connection.number, ""))
        for connection in waiting:
            self._delivery.emit(More(connection.number))

    def _buckets(self, scope: str, name: str, rates: Rates) -> Iterator[Bucket]:
        """Yield the bucket of each kind that has a limit in `rates`. With a `name`, that of an identity or address, it
        is the shared one, which is created for the first connection; without one a new bucket of one connection."""
        for kind, rate in zip(KINDS, (rates.publications, rates.bytes, rates.subscriptions), strict=True):
            if not rate:
                continue
            key = (scope, kind, name) if name else None
            if key is None:
                yield Bucket(scope, kind, rate, self._delivery.now, None)
                continue
            if key not in self._shared:
                self._shared[key] = Bucket(scope, kind, rate, self._delivery.now, key)
            self._unused.pop(key, None)
            yield self._shared[key]

    def _release(self, meter: RateMeter) -> None:
        """Stop counting the meter's connection as a user of its buckets. Shared ones without users are kept, at most
        `MAX_UNUSED`."""
        for bucket in meter.buckets:
            bucket.users -= 1
            if bucket.key is not None and not bucket.users:
                self._unused[bucket.key] = None
        while len(self._unused) > MAX_UNUSED:
            self._forget(next(iter(self._unused)))

    def _forget(self, key: tuple[str, str, str]) -> None:
        del self._unused[key]
        del self._shared[key]

    def tick(self) -> None:
        """Forget shared buckets without users that are full again, the oldest first, up to the first one that is
        not."""
        while self._unused:
            key = next(iter(self._unused))
            bucket = self._shared[key]
            bucket.fill(self._delivery.now)
            if bucket.level < bucket.rate:
                return
            self._forget(key)

    # ---- messages --------------------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection, meter: RateMeter, message: object) -> bool:
        """Return whether a message of a metered connection may be handled. If so, take its cost from the buckets. If
        not, the connection waits: it gets an `error` that names the limit, and later the effect `More`. Only `publish`
        and `subscribe` cost anything."""
        if isinstance(message, Publish):
            costs = {"publications": 1, "bytes": len(message.payload)}
        elif isinstance(message, Subscribe):
            costs = {"subscriptions": len(message.topics)}
        else:
            return True
        now = self._delivery.now
        for bucket in meter.buckets:
            if bucket.kind in costs:
                bucket.fill(now)
                if bucket.level <= 0 or (bucket.waiting and not meter.has_turn):
                    self._wait(connection, meter, bucket)
                    return False
        for bucket in meter.buckets:
            bucket.level -= costs.get(bucket.kind, 0)
        if meter.waits_for is not None:
            del meter.waits_for.waiting[connection]
            meter.waits_for = None
        return True

    def _wait(self, connection: ClientConnection, meter: RateMeter, bucket: Bucket) -> None:
        """Let a connection wait at the limit of a bucket, in the last place, or in its old one if it waits there
        already. When it begins to wait there: tell the client, count it for /metrics and log it."""
        meter.has_turn = False
        self._set_timer(bucket)
        if meter.waits_for is bucket:
            return  # others before it took all tokens: it keeps its place
        if meter.waits_for is not None:
            del meter.waits_for.waiting[connection]
        meter.waits_for = bucket
        bucket.waiting[connection] = None
        self._delivery.emit(Observe("migratory_rate_limited_total", label=f"{bucket.scope}_{bucket.kind}"))
        self.remind(connection, meter)
        self._log(connection, meter, bucket)

    def remind(self, connection: ClientConnection, meter: RateMeter) -> None:
        """Send a client that waits at a limit the error `rate_limited`, which says which limit it is, and when the
        broker reads on."""
        bucket = meter.waits_for
        assert bucket is not None, "only a client that waits is told"
        delay = bucket.delay()
        text = (
            f"limit of {bucket.kind} of one {bucket.scope} reached ({bucket.rate} a second); "
            f"nothing is refused, the broker reads on in {delay:.2f} s"
        )
        self._delivery.reply(connection, Error(errors.RATE_LIMITED, text, retry_after=round(delay, 3)))

    def _log(self, connection: ClientConnection, meter: RateMeter, bucket: Bucket) -> None:
        """Log that a client is at a limit, at most one line in `LOG_INTERVAL`. The line says how many `others` were not
        logged since the one before."""
        now = self._delivery.now
        if now - self._logged_at < LOG_INTERVAL:
            self._not_logged += 1
            return
        fields: dict[str, object] = {
            "client": connection.client, "connection": connection.number,
            "subject": "" if connection.access is None else connection.access.subject,
            "limit": f"{bucket.scope}_{bucket.kind}", "rate": bucket.rate, "others": self._not_logged,
        }  # fmt: skip
        self._logged_at, self._not_logged = now, 0
        self._delivery.emit(Note("warning", "client_rate_limited", fields, connection.number))

    # ---- time ------------------------------------------------------------------------------------------------

    def _set_timer(self, bucket: Bucket) -> None:
        """Set a timer for the next turn of the connections that wait for this bucket, unless it has one."""
        if not bucket.has_timer:
            bucket.has_timer = True
            self._timer_count += 1
            at = self._delivery.now + bucket.delay()
            heappush(self._timers, (at, self._timer_count, bucket))
            self._delivery.set_timer(self._timers[0][0])

    def handle_timer(self) -> None:
        """Give turns to the clients that wait for buckets which hold `REFILL` seconds of their rate again, and set the
        timer for the next."""
        now = self._delivery.now
        while self._timers and self._timers[0][0] <= now:
            _, _, bucket = heappop(self._timers)
            bucket.has_timer = False
            bucket.fill(now)
            if bucket.delay() <= MIN_DELAY:
                self._give_turns(bucket)
            if bucket.waiting:
                self._set_timer(bucket)
        if self._timers:
            self._delivery.set_timer(self._timers[0][0])

    def _give_turns(self, bucket: Bucket) -> None:
        """Give a turn, by the effect `More`, to the connections that wait longest for this bucket, at most `MAX_TURNS`.
        One whose transport is full moves to the last place."""
        for connection in list(islice(bucket.waiting, MAX_TURNS)):
            if connection.queue is not None:  # it handles nothing before its transport takes bytes again
                del bucket.waiting[connection]
                bucket.waiting[connection] = None
            assert connection.meter is not None, "a connection that ends waits no more"
            connection.meter.has_turn = True
            self._delivery.emit(More(connection.number))
