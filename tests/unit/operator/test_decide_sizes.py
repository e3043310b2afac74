"""The decision: how many brokers there are, and in which order they come and go."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from migratory_broker.runtime.config import parse
from migratory_operator import names
from migratory_operator.decide import Plan, decide
from migratory_operator.names import Object
from migratory_operator.observe import Observed, key_of
from migratory_testing.decisions import BROKERS, brokers_hash, condition, instead, message, whole
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, page, pages_of, pod, pods, settled

TEMPLATE = {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}


def test_from_two_brokers_to_one_the_budget_goes_in_the_same_look() -> None:
    two = {"brokers": {"replicas": 2}, "delivery": {"minCopies": 1}}
    pages = {name: replace(one, copies=1) for name, one in pages_of(2).items()}
    seen = whole(cluster(two), pods=pods(2), pages=pages)
    one = {"brokers": {"replicas": 1}, "delivery": {"minCopies": 1}}
    plan = decide(replace(seen, resource={**seen.resource, "spec": one}), SETTINGS)
    assert [key_of(thing) for thing in plan.delete] == [("PodDisruptionBudget", "quotes-broker")]
    assert [thing["spec"]["replicas"] for thing in plan.apply if key_of(thing) == BROKERS] == [1]


def resized(seen: Observed, replicas: int, **brokers: Any) -> tuple[Observed, Object]:
    """What is applied as the brokers' StatefulSet for so many brokers, and what there is afterwards."""
    resource = {**seen.resource, "spec": {"brokers": {"replicas": replicas, **brokers}}}
    plan = decide(replace(seen, resource=resource), SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    objects = {**seen.objects, **{key: settled(thing) for key, thing in made.items()}}
    return replace(seen, resource=resource, objects=objects), made[BROKERS]


def test_more_or_fewer_brokers_are_no_reason_to_restart_any() -> None:
    seen = whole()
    usual = brokers_hash(seen.objects[BROKERS])
    for replicas in (4, 5, 7):
        seen, made = resized(seen, replicas)
        assert (made["spec"]["replicas"], brokers_hash(made)) == (replicas, usual)
        assert BROKERS not in {key_of(thing) for thing in decide(seen, SETTINGS).apply}, "and it stays so"


NAMES = [f"quotes-broker-{number}" for number in range(5)]
TOLD = {name: replace(one, staying=frozenset({*NAMES[:3], name})) for name, one in pages_of(5).items()}
"""Of five brokers that know that two leave."""


def five(**fields: Any) -> Observed:
    """Five brokers, all well, of which three are wanted from now on, which they were told."""
    seen = whole(cluster({"brokers": {"replicas": 5}}), pods=pods(5), pages=TOLD)
    return replace(seen, **{"resource": {**seen.resource, "spec": {"brokers": {"replicas": 3}}}, **fields})


def broker_file(plan: Plan) -> Object:
    (made,) = [thing for thing in plan.apply if key_of(thing) == ("ConfigMap", "quotes-broker")]
    found: Object = json.loads(made["data"]["broker.json"])
    return found


def next_size(seen: Observed) -> int:
    """Of the brokers' StatefulSet after this look."""
    plan = decide(seen, SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    return int(made.get(BROKERS, seen.objects[BROKERS])["spec"]["replicas"])


def test_brokers_leave_one_after_the_other() -> None:
    seen = five()
    plan = decide(seen, SETTINGS)
    made = {key_of(thing): thing for thing in plan.apply}
    assert made[BROKERS]["spec"]["replicas"] == 4
    assert brokers_hash(made[BROKERS]) == brokers_hash(seen.objects[BROKERS])
    assert (broker_file(plan)["brokers"], broker_file(plan)["leaving"]) == (NAMES[:4], NAMES[3:4])
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert condition(plan, "Ready") == ("True", "AllReady")
    four = {key: settled(thing) for key, thing in made.items()}
    seen = replace(seen, objects={**seen.objects, **four})
    assert next_size(seen) == 4, "the fifth is still there"
    plan = decide(replace(seen, pods=pods(4), pages=pages_of(4)), SETTINGS)
    assert [thing["spec"]["replicas"] for thing in plan.apply if key_of(thing) == BROKERS] == [3]
    assert broker_file(plan)["brokers"] == NAMES[:3]
    assert "leaving" not in broker_file(plan), "a broker of a release before knows no such field"


def test_the_first_leaves_when_it_knows_who_else_does_so_that_no_client_is_sent_there() -> None:
    old = (*pods(0, 3), *pods(5, 0, revision=OLD))
    seen = five(pages=pages_of(5), pods=old)
    plan = decide(seen, SETTINGS)
    assert (broker_file(plan)["brokers"], broker_file(plan)["leaving"]) == (NAMES, NAMES[3:])
    read = parse(json.dumps(broker_file(plan)).encode())
    assert read.staying(NAMES[4]) == (*NAMES[:3], NAMES[4]), "as a broker reads it"
    assert BROKERS not in {key_of(thing) for thing in plan.apply}
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert message(plan, "Progressing").endswith(
        "waits: quotes-broker-4 has not read yet that quotes-broker-3 leaves, too"
    )
    objects = {**seen.objects, **{key_of(thing): settled(thing) for thing in plan.apply}}
    seen = replace(seen, objects=objects)
    plan = decide(seen, SETTINGS)
    assert (plan.apply, plan.replace) == ((), ()), "nor is anything replaced meanwhile"
    assert plan.again
    assert next_size(replace(seen, pages={**pages_of(5), NAMES[4]: TOLD[NAMES[4]]})) == 4
    silent = {name: replace(one, staying=frozenset()) for name, one in pages_of(5).items()}
    assert next_size(replace(seen, pages=silent)) == 4, "brokers that do not say it"
    idle = {**pages_of(5), NAMES[4]: replace(pages_of(5)[NAMES[4]], clients=0)}
    assert next_size(replace(seen, pages=idle)) == 4, "nobody is there to be sent on"
    back = decide(replace(seen, resource={**seen.resource, "spec": {"brokers": {"replicas": 5}}}), SETTINGS)
    assert broker_file(back)["brokers"] == NAMES
    assert "leaving" not in broker_file(back)


def test_the_next_broker_leaves_when_those_that_stay_are_well() -> None:
    seen = five()
    assert next_size(seen) == 4
    fewer = {name: one for name, one in seen.pages.items() if name != "quotes-broker-1"}
    assert next_size(replace(seen, pages=fewer)) == 5, "groups without a coordinator"
    unready = pod("quotes-broker-1", names.BROKER, ready=False)
    assert next_size(replace(seen, pods=instead(pods(5), unready))) == 5, "one that stays takes no clients"
    listed = {**seen.pages, "quotes-broker-0": page(range(0, 100, 5), 6)}
    assert next_size(replace(seen, pages=listed)) == 5, "the one before is on a list still"
    many = {name: replace(one, copies=3) for name, one in seen.pages.items()}
    plan = decide(replace(seen, pages=many), SETTINGS)
    assert "waits: topic groups have 3 copies still, which takes 5 brokers" in message(plan, "Progressing")
    learning = {**seen.pages, "quotes-broker-1": replace(seen.pages["quotes-broker-1"], member=False)}
    plan = decide(replace(seen, pages=learning), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "Scaling")
    assert "quotes-broker-1 is not a synced member of every topic group yet" in message(plan, "Progressing")
    assert plan.again, "what a broker says of itself is no event of Kubernetes"


@pytest.mark.parametrize(
    "there", [instead(pods(5), pod(NAMES[4], names.BROKER, ready=False, phase="Pending")), pods(4)]
)
def test_a_broker_that_does_not_run_leaves_at_once(there: tuple[Object, ...]) -> None:
    assert next_size(five(pods=there, pages={})) == 4


@pytest.mark.parametrize("there", [pods(3), (*pods(3), pod(NAMES[3], names.BROKER, ready=False, phase="Running"))])
def test_brokers_that_never_got_well_keep_no_other_from_leaving(there: tuple[Object, ...]) -> None:
    """Two more were asked for, and there is no quota for them, or they crash: it can be taken back."""
    lists = {name: page(range(number, 100, 3)) for number, name in enumerate(NAMES[:3])}
    last = pod(NAMES[4], names.BROKER, ready=False, phase="Running")
    assert next_size(five(pods=(*there, last), pages=lists)) == 4
    listed = {name: replace(TOLD[name], lists=lists[name].lists) for name in NAMES[:3]}
    one = {**listed[NAMES[0]].lists, 0: frozenset(NAMES[:4])}
    listed[NAMES[0]] = replace(listed[NAMES[0]], lists=one)
    assert next_size(five(pods=(*there, last), pages=listed)) == 5, "who is on a list counts"


def test_another_configuration_or_address_restarts_them_also_when_their_number_changes() -> None:
    seen = whole()
    usual = brokers_hash(seen.objects[BROKERS])
    assert brokers_hash(resized(seen, 5, drain={"period": "7s"})[1]) != usual
    assert brokers_hash(resized(seen, 5, expose=TEMPLATE)[1]) != usual
    grown, _ = resized(seen, 5)
    assert brokers_hash(resized(grown, 5, expose=TEMPLATE)[1]) != usual


def test_the_size_comes_before_the_pods_and_a_broker_that_is_unwell_before_the_size() -> None:
    old = pods(5, 3, revision=OLD)
    plan = decide(five(pods=old), SETTINGS)
    assert (next_size(five(pods=old)), plan.replace) == (4, ())
    unready = pod("quotes-broker-1", names.BROKER, ready=False, revision=OLD)
    seen = five(pods=instead((*pods(0, 3), *pods(5, 0, revision=OLD)), unready))
    assert next_size(seen) == 5
    told = {key_of(thing): settled(thing) for thing in decide(seen, SETTINGS).apply}
    seen = replace(seen, objects={**seen.objects, **told})
    assert [one.pod["metadata"]["name"] for one in decide(seen, SETTINGS).replace] == ["quotes-broker-1"]


def test_brokers_that_wait_for_a_rollout_that_has_stopped_need_a_person() -> None:
    slow = pod(NAMES[1], names.BROKER, ready=False)
    slow["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    seen = five(pods=instead((*pods(0, 3), *pods(5, 0, revision=OLD)), slow))
    told = {key_of(thing): settled(thing) for thing in decide(seen, SETTINGS).apply}
    plan = decide(replace(seen, objects={**seen.objects, **told}), SETTINGS)
    assert condition(plan, "Progressing") == ("False", "RolloutStopped")
    assert condition(plan, "Degraded") == ("True", "RolloutStopped")
    assert "quotes-broker-1 has not been ready for 10 minutes" in message(plan, "Progressing")
    assert "5 brokers, wanted 3" in message(plan, "Progressing")
