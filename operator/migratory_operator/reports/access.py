"""Who a run's pods are, and the little that they may do; pure.

The submitter makes the driver and its parts. The driver makes executors and writes its answer into the one ConfigMap
that there is for it. Executors may do nothing. The operator holds all of this itself, or it could not grant it.
"""

from __future__ import annotations

from migratory_operator.names import Object
from migratory_operator.reports.run import Run


def objects(run: Run, alone: bool) -> list[Object]:
    """:param alone: there is no submitter, and the driver makes no pods."""
    answer = _rule("", ["configmaps"], ["patch"], resourceNames=[run.result])
    executors = _rule("", ["pods"], ["get", "list", "watch", "create", "delete"])
    made = _granted(run, run.driver, [answer] if alone else [answer, executors])
    if not alone:
        made += _granted(
            run,
            run.submit,
            [
                _rule("", ["pods"], ["create", "delete"]),
                _rule("", ["services", "configmaps"], ["create", "patch"]),
                _rule("networking.k8s.io", ["networkpolicies"], ["create", "patch"]),
            ],
        )
    return made


def _granted(run: Run, name: str, rules: list[Object]) -> list[Object]:
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": run.owner.namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": name}
    return [
        run.thing("v1", "ServiceAccount", name, automountServiceAccountToken=False),
        run.thing(f"{group}/v1", "Role", name, rules=rules),
        run.thing(f"{group}/v1", "RoleBinding", name, roleRef=reference, subjects=[subject]),
    ]


def _rule(group: str, resources: list[str], verbs: list[str], **more: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **more}
