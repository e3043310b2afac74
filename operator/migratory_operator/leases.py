"""Leases: which operator serves a namespace, so that two operators never reconcile the same cluster at a time.

Each namespace with clusters or reports has one Lease in it. So any two operators that watch the namespace find the same
Lease: two for all namespaces, one for all and one for a few, replicas of one Deployment. The operator that holds the
Lease serves the namespace; the others wait, and log it. docs/decisions/0009-operator-leases.md has the alternatives.

The holder renews the Lease. Another operator takes the Lease over when it has seen no change of it for the Lease's
duration by the clock of that operator, so that clocks need not agree. A holder that could not renew stops before that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from migratory_operator.api.kubernetes import LEASE, ApiError, KubernetesApi
from migratory_operator.names import FIELD_MANAGER, Object
from migratory_operator.telemetry.metrics import OperatorMetrics

LEASE_SECONDS = 15
"""Seconds without a renewal after which another operator may take a Lease over. After an operator's node has died,
nobody serves its namespaces for this time and a few seconds more, because the others look every RETRY_SECONDS."""
RENEW_SECONDS = 3.0
"""Seconds between two renewals."""
HOLD_SECONDS = 10.0
"""Seconds from the start of a renewal in which the holder begins reconciliations. In the rest of LEASE_SECONDS it can
complete those that it has begun."""
RETRY_SECONDS = 2.0
"""Seconds until a Lease that another operator holds is looked at again."""
_MAX_CONCURRENT = 8
"""Leases that are renewed at the same time."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_log = logging.getLogger(__name__)


class Leases:
    """The Leases that one operator takes, renews and gives up, and with them the namespaces that it serves.

    :param identity: `NAMESPACE/INSTALLATION/POD` of this operator. Operators that differ only in the last part are
        replicas of one Deployment: one serves, and the others wait.
    :param clock: returns the seconds of a clock that never goes back.
    """

    def __init__(
        self,
        api: KubernetesApi,
        identity: str,
        metrics: OperatorMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self.identity = identity
        self._metrics = metrics
        self._clock = clock
        self._held_until: dict[str, float] = {}
        # By namespace: the version of a Lease of another operator, and when this version was seen first.
        self._seen: dict[str, tuple[str, float]] = {}
        # By namespace: the other operator that serves it, which has been logged.
        self._holders: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        # A lock for each namespace with a request in progress, and the number of its holder and waiters.
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def holds(self, namespace: str) -> bool:
        """Return whether this operator serves the namespace now: its last successful renewal began less than
        HOLD_SECONDS ago."""
        return self._clock() < self._held_until.get(namespace, float("-inf"))

    def holder(self, namespace: str) -> str:
        """Return the identity of the other operator that held the Lease when this one last looked; "" if there was
        none, or if this operator has taken or given up the Lease since."""
        return self._holders.get(namespace, "")

    def is_replica(self, holder: str) -> bool:
        """Return whether the holder is a replica of this operator's Deployment: the identities differ at most in the
        last part."""
        return holder.rpartition("/")[0] == self.identity.rpartition("/")[0]

    async def acquire(self, namespace: str) -> bool:
        """Take the Lease of a namespace if this operator does not hold it, and it is free or has expired. Return
        whether this operator serves the namespace now. For RETRY_SECONDS after another operator was found to hold the
        Lease, or wrote it first, return False without a request.

        :raises ApiError: a request was rejected or not answered.
        """
        async with self._turn(namespace):
            if self.holds(namespace):
                return True
            if self._clock() < self._retry_at.get(namespace, float("-inf")):
                return False
            return await self._take(namespace)

    async def keep(self, namespaces: Collection[str]) -> frozenset[str]:
        """Acquire the Leases of these namespaces, and give those of all other namespaces up. Return the namespaces that
        this operator serves. A request that failed is logged, and the other namespaces continue."""
        for namespace in {*self._held_until, *self._retry_at}.difference(namespaces):
            await self._release(namespace)
        held = set()
        for namespace in sorted(namespaces):
            try:
                if await self.acquire(namespace):
                    held.add(namespace)
            except ApiError as error:
                if not error.is_namespace_terminating:
                    _log.warning("the Lease of namespace %s: %s", namespace, error)
        return frozenset(held)

    def guarded(self, reconcile: Callable[[str, str], Awaitable[float]]) -> Callable[[str, str], Awaitable[float]]:
        """Return a function that acquires the Lease of a resource's namespace, reconciles the resource, and returns
        what `reconcile` returns. If this operator does not get the Lease, the function only returns RETRY_SECONDS, the
        seconds until the next try. It raises ApiError if the Lease cannot be read or written, and what `reconcile`
        raises."""

        async def reconcile_if_held(namespace: str, name: str) -> float:
            return await reconcile(namespace, name) if await self.acquire(namespace) else RETRY_SECONDS

        return reconcile_if_held

    async def run(self) -> None:
        """Renew the Leases that this operator has taken every RENEW_SECONDS, until cancelled. Then give them up, so
        that another operator need not wait for their end. Failed requests are logged."""
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def renew(namespace: str) -> None:
            async with slots, self._turn(namespace):
                # It may have been given up while this task waited.
                if namespace not in self._held_until:
                    return
                try:
                    await self._take(namespace)
                except ApiError as error:
                    _log.warning("renewing the Lease of namespace %s failed: %s", namespace, error)

        try:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                await asyncio.gather(*(renew(namespace) for namespace in [*self._held_until]))
        finally:
            for namespace in [*self._held_until]:
                await self._release(namespace)

    @asynccontextmanager
    async def _turn(self, namespace: str) -> AsyncIterator[None]:
        """Return a context manager that one task at a time enters for a namespace. Two requests about one Lease at a
        time would conflict, as if they were those of two operators."""
        lock, users = self._turns.get(namespace, (asyncio.Lock(), 0))
        self._turns[namespace] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns.pop(namespace)
            if users > 1:
                self._turns[namespace] = lock, users - 1

    async def _take(self, namespace: str) -> bool:
        """Renew the Lease, or take it if it is free or has expired. Return whether this operator holds it then. Return
        False if another operator holds it or wrote it meanwhile, and make `acquire` wait for RETRY_SECONDS.

        :raises ApiError: a request was rejected, for another reason than that the Lease has changed, or not answered.
        """
        began = self._clock()
        lease = await self._api.get(LEASE, namespace, FIELD_MANAGER)
        spec = (lease or {}).get("spec", {})
        holder = spec.get("holderIdentity") or ""
        if lease is not None and holder not in ("", self.identity) and not self._has_expired(namespace, lease):
            self._wait_for(namespace, holder)
            return False
        try:
            await self._write(namespace, lease)
        except ApiError as error:
            if error.code != 409:
                raise
            # Somebody else was quicker.
            self._lose(namespace)
            return False
        if not self.holds(namespace):
            _log.info("serving namespace %s%s", namespace, f", after {holder}" if holder else "")
        self._held_until[namespace] = began + HOLD_SECONDS
        self._holders.pop(namespace, None)
        self._metrics.set_lease(namespace, is_held=True)
        return True

    def _has_expired(self, namespace: str, lease: Object) -> bool:
        """Return whether the Lease has stayed unchanged for its duration, by this operator's clock since it first saw
        this version of the Lease. Record the version and the time if the version is new."""
        version = lease["metadata"]["resourceVersion"]
        seen_version, since = self._seen.get(namespace, ("", 0.0))
        if version != seen_version:
            self._seen[namespace] = (version, self._clock())
            return False
        return self._clock() - since >= float(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)

    async def _write(self, namespace: str, lease: Object | None) -> None:
        """Create or replace the Lease with this operator as its holder.

        :param lease: the Lease as it was read; None to create it.
        :raises ApiError: with code 409 if the Lease was created or changed since it was read; or any other failed
            request.
        """
        now = datetime.now(UTC).strftime(_TIME_FORMAT)
        before = (lease or {}).get("spec", {})
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        if before.get("holderIdentity") == self.identity:
            spec |= {key: before[key] for key in ("acquireTime", "leaseTransitions") if key in before}
        else:
            spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1}
        if lease is None:
            metadata = {"name": FIELD_MANAGER, "namespace": namespace}
            body = {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
            await self._api.create(LEASE, body)
        else:
            # With the version that was read, so that only one operator succeeds.
            await self._api.replace(LEASE, {**lease, "spec": spec})

    def _wait_for(self, namespace: str, holder: str) -> None:
        """Record that another operator holds the Lease, as `_lose` does. Log it if the holder is a new one: as a
        warning, unless it is a replica."""
        self._lose(namespace)
        if self._holders.get(namespace) == holder:
            return
        self._holders[namespace] = holder
        if self.is_replica(holder):
            _log.info("standing by: %s serves namespace %s", holder, namespace)
        else:
            _log.warning(
                "waiting: another operator, %s, serves namespace %s; uninstall one of them, or give them namespaces of "
                "their own",
                holder,
                namespace,
            )

    def _lose(self, namespace: str) -> None:
        """Record, also in the metric, that this operator does not hold the Lease, and let `acquire` make no request for
        RETRY_SECONDS."""
        self._held_until.pop(namespace, None)
        self._retry_at[namespace] = self._clock() + RETRY_SECONDS
        self._metrics.set_lease(namespace, is_held=False)

    async def _release(self, namespace: str) -> None:
        """Forget the namespace and its metric, and delete the Lease if this operator holds it, when the requests about
        this Lease that have begun are done. A failed request is logged."""
        async with self._turn(namespace):
            is_held = self.holds(namespace)
            for table in (self._held_until, self._holders, self._retry_at, self._seen):
                table.pop(namespace, None)
            self._metrics.forget_lease(namespace)
            if not is_held:
                return
            try:
                lease = await self._api.get(LEASE, namespace, FIELD_MANAGER)
                if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                    await self._api.delete(LEASE, lease)
            except ApiError as error:
                _log.warning("giving up the Lease of namespace %s failed: %s", namespace, error)
