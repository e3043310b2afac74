"""What there is of one report at one moment. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from migratory_operator.names import Object, Owner
from migratory_operator.reports.run import DRIVER, EXECUTOR, SUBMIT, Run


@dataclass(frozen=True)
class Observed:
    """Read in this order: the Job, the pods, the result. So a Job that has ended made the driver that is missing, and a
    driver that has ended left what result there is."""

    resource: Object
    now: datetime
    cluster: Object | None = None
    job: Object | None = None
    pods: tuple[Object, ...] = ()
    result: Object | None = None

    @property
    def run(self) -> Run:
        return Run(Owner.of(self.resource))

    @property
    def status(self) -> Object:
        found: Object = self.resource.get("status") or {}
        return found

    @property
    def driver(self) -> Object | None:
        return next(iter(self._of(DRIVER)), None)

    @property
    def submitter(self) -> Object | None:
        return next(iter(self._of(SUBMIT)), None)

    @property
    def executors(self) -> list[Object]:
        return self._of(EXECUTOR)

    def _of(self, component: str) -> list[Object]:
        wanted = self.run.labels(component).items()
        return [pod for pod in self.pods if wanted <= pod["metadata"].get("labels", {}).items()]
