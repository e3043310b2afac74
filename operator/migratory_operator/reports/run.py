"""Names, labels and builds the Kubernetes objects of one report's run, and holds their observed state; pure.

All names derive from the report's UID, so that a restarted or second operator finds the existing objects and can't
create them twice. The longest name is an executor's: 36 characters, "-exec-" and its number.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""Label of every object of a run, with the run's id."""
REPORT_LABEL = f"{names.PREFIX}/report"
"""Label of every object of a run, with the report's name."""
CLUSTER_LABEL = f"{names.PREFIX}/cluster"
"""Label of a scheduled report, with the cluster's name."""
SLOT_ANNOTATION = f"{names.PREFIX}/slot"
"""Annotation of a scheduled report, with the time of the schedule that it was made for."""

SUBMIT, DRIVER, EXECUTOR = "sla-submit", "sla-driver", "sla-executor"
"""Components of the pods."""
PARTS = "sla-run"
"""Component of the other objects."""


@dataclass(frozen=True)
class ReportRun:
    """The names and labels of the objects of one report's run. `owner` is the report."""

    owner: ResourceOwner

    @property
    def id(self) -> str:
        """The prefix of the names of all objects of the run: "sla-" and 32 hexadecimal digits, from the report's
        UID."""
        uid = self.owner.uid.replace("-", "").lower()
        return f"sla-{uid if re.fullmatch('[0-9a-f]{32}', uid) else hashlib.sha256(uid.encode()).hexdigest()[:32]}"

    @property
    def job(self) -> str:
        """The name of the Job."""
        return self.id

    @property
    def result(self) -> str:
        """The name of the ConfigMap into which the driver writes the result."""
        return self.id

    @property
    def request(self) -> str:
        """The name of the ConfigMap with the request file and the pod templates."""
        return f"{self.id}-request"

    @property
    def auth(self) -> str:
        """The name of the Secret by which driver and executors know each other. A run of a single pod has none."""
        return f"{self.id}-auth"

    @property
    def driver(self) -> str:
        """The name of the driver's pod, service account and role."""
        return f"{self.id}-driver"

    @property
    def submit(self) -> str:
        """The name of the submitter's service account and role."""
        return f"{self.id}-submit"

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of a component's objects. `component` is SUBMIT, DRIVER, EXECUTOR or PARTS."""
        return {
            "app.kubernetes.io/name": "migratory-sla",
            INSTANCE_LABEL: self.id,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
            REPORT_LABEL: self.owner.name,
        }

    def build_object(self, api_version: str, kind: str, name: str, **fields: object) -> Object:
        """Return an object of the run that is not a pod, with its labels and the report as owner.

        :param fields: the top-level fields beside `metadata`, such as `spec` or `data`.
        """
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.owner.namespace,
                "labels": self.labels(PARTS),
                "ownerReferences": [self.owner.reference],
            },
            **fields,
        }


@dataclass(frozen=True)
class ObservedReport:
    """The observed state of one report and its run at one moment. None stands for what does not exist.

    Job, pods and result are read in this order. So if a Job has ended, a driver that it created is among the pods or
    gone; and if the driver has ended, its result is read.
    """

    resource: Object
    now: datetime
    cluster: Object | None = None
    job: Object | None = None
    pods: tuple[Object, ...] = ()
    """Pods of any run with this report's name; the properties below select those of this report's run."""
    result: Object | None = None
    """The ConfigMap for the result."""
    secret: Object | None = None
    """The metadata of the Secret that the report names; read only while there is no Job."""

    @property
    def run(self) -> ReportRun:
        """The names and labels of the report's run."""
        return ReportRun(ResourceOwner.of(self.resource))

    @property
    def status(self) -> Object:
        """The report's status when it was observed; {} if none has been written yet."""
        status: Object = self.resource.get("status") or {}
        return status

    @property
    def driver(self) -> Object | None:
        """The driver's pod, None if there is none."""
        return next(iter(self._pods_of(DRIVER)), None)

    @property
    def submitter(self) -> Object | None:
        """The submitter's pod, None if there is none."""
        return next(iter(self._pods_of(SUBMIT)), None)

    @property
    def executors(self) -> list[Object]:
        """The executors' pods."""
        return self._pods_of(EXECUTOR)

    def _pods_of(self, component: str) -> list[Object]:
        wanted = self.run.labels(component).items()
        return [pod for pod in self.pods if wanted <= pod["metadata"].get("labels", {}).items()]
