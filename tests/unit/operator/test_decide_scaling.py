"""The operator's decision about a cluster: the number of brokers, and the order in which they are added and removed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from migratory_broker.runtime.config import parse
from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import ClusterPlan, decide
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_testing.kubernetes import (
    BROKER_SET,
    OLD,
    SETTINGS,
    cluster,
    condition,
    config_hash,
    healthy_cluster,
    message,
    page,
    pages_of,
    pod,
    pods,
    replace_pods,
    settled,
)

TEMPLATE = {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}


def test_scaling_to_one_broker_deletes_the_disruption_budget() -> None:
    two = {"brokers": {"replicas": 2}, "delivery": {"minCopies": 1}}
    pages = {name: replace(status_page, copies=1) for name, status_page in pages_of(2).items()}
    observed = healthy_cluster(cluster(two), pods=pods(2), pages=pages)
    status_page = {"brokers": {"replicas": 1}, "delivery": {"minCopies": 1}}
    plan = decide(replace(observed, resource={**observed.resource, "spec": status_page}), SETTINGS)
    assert [key_of(item) for item in plan.delete] == [("PodDisruptionBudget", "quotes-broker")]
    assert [item["spec"]["replicas"] for item in plan.apply if key_of(item) == BROKER_SET] == [1]


def resized(observed: ObservedCluster, replicas: int, **brokers: Any) -> tuple[ObservedCluster, Object]:
    """Return the cluster after the operator has applied another number of brokers, and the StatefulSet of the
    brokers that it applied. `brokers` are the other fields of `spec.brokers`."""
    resource = {**observed.resource, "spec": {"brokers": {"replicas": replicas, **brokers}}}
    plan = decide(replace(observed, resource=resource), SETTINGS)
    changed = {key_of(item): item for item in plan.apply}
    objects = {**observed.objects, **{key: settled(item) for key, item in changed.items()}}
    return replace(observed, resource=resource, objects=objects), changed[BROKER_SET]


def test_scaling_restarts_no_broker() -> None:
    observed = healthy_cluster()
    usual = config_hash(observed.objects[BROKER_SET])
    for replicas in (4, 5, 7):
        observed, changed = resized(observed, replicas)
        assert (changed["spec"]["replicas"], config_hash(changed)) == (replicas, usual)
        assert BROKER_SET not in {key_of(item) for item in decide(observed, SETTINGS).apply}, "it is not applied again"


NAMES = [f"quotes-broker-{number}" for number in range(5)]
INFORMED_PAGES = {
    name: replace(status_page, staying=frozenset({*NAMES[:3], name})) for name, status_page in pages_of(5).items()
}
"""Status pages of five brokers that have already learned that two of them will be removed."""


def scaling_down(**fields: Any) -> ObservedCluster:
    """Return a cluster of five healthy brokers of which three are desired, and which have learned this; `fields`
    replace its fields."""
    observed = healthy_cluster(cluster({"brokers": {"replicas": 5}}), pods=pods(5), pages=INFORMED_PAGES)
    return replace(observed, **{"resource": {**observed.resource, "spec": {"brokers": {"replicas": 3}}}, **fields})


def broker_file(plan: ClusterPlan) -> Object:
    (changed,) = [item for item in plan.apply if key_of(item) == ("ConfigMap", "quotes-broker")]
    document: Object = json.loads(changed["data"]["broker.json"])
    return document


def next_size(observed: ObservedCluster) -> int:
    """Return the number of replicas of the brokers' StatefulSet after one decision about the cluster."""
    plan = decide(observed, SETTINGS)
    changed = {key_of(item): item for item in plan.apply}
    return int(changed.get(BROKER_SET, observed.objects[BROKER_SET])["spec"]["replicas"])


def test_brokers_are_removed_one_at_a_time() -> None:
    observed = scaling_down()
    plan = decide(observed, SETTINGS)
    changed = {key_of(item): item for item in plan.apply}
    assert changed[BROKER_SET]["spec"]["replicas"] == 4
    assert config_hash(changed[BROKER_SET]) == config_hash(observed.objects[BROKER_SET])
    assert (broker_file(plan)["brokers"], broker_file(plan)["leaving"]) == (NAMES[:4], NAMES[3:4])
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert condition(plan, "Ready") == ("True", "AllReady")
    four = {key: settled(item) for key, item in changed.items()}
    observed = replace(observed, objects={**observed.objects, **four})
    assert next_size(observed) == 4, "the fifth still exists"
    plan = decide(replace(observed, pods=pods(4), pages=pages_of(4)), SETTINGS)
    assert [item["spec"]["replicas"] for item in plan.apply if key_of(item) == BROKER_SET] == [3]
    assert broker_file(plan)["brokers"] == NAMES[:3]
    assert "leaving" not in broker_file(plan), "brokers of the previous release reject the field"


def test_a_broker_is_removed_once_it_knows_which_others_will_be() -> None:
    old = (*pods(0, 3), *pods(5, 0, revision=OLD))
    observed = scaling_down(pages=pages_of(5), pods=old)
    plan = decide(observed, SETTINGS)
    assert (broker_file(plan)["brokers"], broker_file(plan)["leaving"]) == (NAMES, NAMES[3:])
    read = parse(json.dumps(broker_file(plan)).encode())
    assert read.staying(NAMES[4]) == (*NAMES[:3], NAMES[4]), "as a broker reads it"
    assert BROKER_SET not in {key_of(item) for item in plan.apply}
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert message(plan, "Progressing").endswith(
        "waiting: quotes-broker-4 has not read yet that quotes-broker-3 will be removed, too"
    )
    objects = {**observed.objects, **{key_of(item): settled(item) for item in plan.apply}}
    observed = replace(observed, objects=objects)
    plan = decide(observed, SETTINGS)
    assert (plan.apply, plan.replace) == ((), ()), "nothing is replaced meanwhile"
    assert plan.requeue_after
    assert next_size(replace(observed, pages={**pages_of(5), NAMES[4]: INFORMED_PAGES[NAMES[4]]})) == 4
    silent = {name: replace(status_page, staying=frozenset()) for name, status_page in pages_of(5).items()}
    assert next_size(replace(observed, pages=silent)) == 4, "brokers whose page has no list"
    idle = {**pages_of(5), NAMES[4]: replace(pages_of(5)[NAMES[4]], clients=0)}
    assert next_size(replace(observed, pages=idle)) == 4, "it has no clients to send away"
    back = decide(replace(observed, resource={**observed.resource, "spec": {"brokers": {"replicas": 5}}}), SETTINGS)
    assert broker_file(back)["brokers"] == NAMES
    assert "leaving" not in broker_file(back)


def test_a_broker_is_removed_when_those_that_stay_are_healthy() -> None:
    observed = scaling_down()
    assert next_size(observed) == 4
    fewer = {name: status_page for name, status_page in observed.pages.items() if name != "quotes-broker-1"}
    assert next_size(replace(observed, pages=fewer)) == 5, "groups without a coordinator"
    unready = pod("quotes-broker-1", names.BROKER, ready=False)
    assert next_size(replace(observed, pods=replace_pods(pods(5), unready))) == 5, (
        "one that stays does not accept clients"
    )
    listed = {**observed.pages, "quotes-broker-0": page(range(0, 100, 5), 6)}
    assert next_size(replace(observed, pages=listed)) == 5, "the one removed before is still on a member list"
    many = {name: replace(status_page, copies=3) for name, status_page in observed.pages.items()}
    plan = decide(replace(observed, pages=many), SETTINGS)
    assert "waiting: topic groups still have 3 copies, which require 5 brokers" in message(plan, "Progressing")
    learning = {**observed.pages, "quotes-broker-1": replace(observed.pages["quotes-broker-1"], member=False)}
    plan = decide(replace(observed, pages=learning), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert "quotes-broker-1 is not a synced member of every topic group yet" in message(plan, "Progressing")
    assert plan.requeue_after, "a broker's own status is no event of Kubernetes"


@pytest.mark.parametrize(
    "there", [replace_pods(pods(5), pod(NAMES[4], names.BROKER, ready=False, phase="Pending")), pods(4)]
)
def test_a_broker_that_does_not_run_is_removed_at_once(there: tuple[Object, ...]) -> None:
    assert next_size(scaling_down(pods=there, pages={})) == 4


@pytest.mark.parametrize("there", [pods(3), (*pods(3), pod(NAMES[3], names.BROKER, ready=False, phase="Running"))])
def test_brokers_that_never_became_healthy_do_not_block_a_removal(there: tuple[Object, ...]) -> None:
    """Two added brokers that never became ready, or whose pods were never created, do not block scaling back, unless
    a broker's page lists one of them as a member."""
    lists = {name: page(range(number, 100, 3)) for number, name in enumerate(NAMES[:3])}
    last = pod(NAMES[4], names.BROKER, ready=False, phase="Running")
    assert next_size(scaling_down(pods=(*there, last), pages=lists)) == 4
    listed = {name: replace(INFORMED_PAGES[name], lists=lists[name].lists) for name in NAMES[:3]}
    status_page = {**listed[NAMES[0]].lists, 0: frozenset(NAMES[:4])}
    listed[NAMES[0]] = replace(listed[NAMES[0]], lists=status_page)
    assert next_size(scaling_down(pods=(*there, last), pages=listed)) == 5, "a broker on a member list counts"


def test_a_changed_configuration_or_address_restarts_brokers_while_scaling() -> None:
    observed = healthy_cluster()
    usual = config_hash(observed.objects[BROKER_SET])
    assert config_hash(resized(observed, 5, drain={"period": "7s"})[1]) != usual
    assert config_hash(resized(observed, 5, expose=TEMPLATE)[1]) != usual
    grown, _ = resized(observed, 5)
    assert config_hash(resized(grown, 5, expose=TEMPLATE)[1]) != usual


def test_scaling_precedes_a_rollout_except_for_unhealthy_brokers() -> None:
    old = pods(5, 3, revision=OLD)
    plan = decide(scaling_down(pods=old), SETTINGS)
    assert (next_size(scaling_down(pods=old)), plan.replace) == (4, ())
    unready = pod("quotes-broker-1", names.BROKER, ready=False, revision=OLD)
    observed = scaling_down(pods=replace_pods((*pods(0, 3), *pods(5, 0, revision=OLD)), unready))
    assert next_size(observed) == 5
    applied = {key_of(item): settled(item) for item in decide(observed, SETTINGS).apply}
    observed = replace(observed, objects={**observed.objects, **applied})
    assert [status_page.pod["metadata"]["name"] for status_page in decide(observed, SETTINGS).replace] == [
        "quotes-broker-1"
    ]


def test_a_removal_blocked_by_a_stopped_rollout_degrades_the_cluster() -> None:
    slow = pod(NAMES[1], names.BROKER, ready=False)
    slow["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    observed = scaling_down(pods=replace_pods((*pods(0, 3), *pods(5, 0, revision=OLD)), slow))
    applied = {key_of(item): settled(item) for item in decide(observed, SETTINGS).apply}
    plan = decide(replace(observed, objects={**observed.objects, **applied}), SETTINGS)
    assert condition(plan, "Progressing") == ("False", "RolloutStopped")
    assert condition(plan, "Degraded") == ("True", "RolloutStopped")
    assert "quotes-broker-1 has not been ready for 10 minutes" in message(plan, "Progressing")
    assert "5 exist, 3 desired" in message(plan, "Progressing")
