"""Names and labels of what belongs to one run; pure.

All names derive from the report's UID, so that whoever looks again, a restarted operator or a second one, finds what
there is and can't make it twice. The longest is an executor's, of 36 characters and "-exec-" and its number.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from migratory_operator import names
from migratory_operator.names import Object, Owner

REPORT_LABEL = f"{names.PREFIX}/report"
"""A report's name, on everything of its run."""
CLUSTER_LABEL = f"{names.PREFIX}/cluster"
SLOT_ANNOTATION = f"{names.PREFIX}/slot"
"""Of a report that a schedule made: the time that it was made for."""

SUBMIT, DRIVER, EXECUTOR = "sla-submit", "sla-driver", "sla-executor"
PARTS = "sla-run"
"""The component of what is no pod."""


@dataclass(frozen=True)
class Run:
    owner: Owner

    @property
    def id(self) -> str:
        uid = self.owner.uid.replace("-", "").lower()
        return f"sla-{uid if re.fullmatch('[0-9a-f]{32}', uid) else hashlib.sha256(uid.encode()).hexdigest()[:32]}"

    @property
    def job(self) -> str:
        return self.id

    @property
    def result(self) -> str:
        """The ConfigMap that takes the answer."""
        return self.id

    @property
    def request(self) -> str:
        """The ConfigMap with the question and the pods' templates."""
        return f"{self.id}-request"

    @property
    def driver(self) -> str:
        """The driver's pod, its account and what that may do."""
        return f"{self.id}-driver"

    @property
    def submit(self) -> str:
        return f"{self.id}-submit"

    def labels(self, component: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "migratory-sla",
            "app.kubernetes.io/instance": self.id,
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
            REPORT_LABEL: self.owner.name,
        }

    def thing(self, api_version: str, kind: str, name: str, **fields: object) -> Object:
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
