"""Which pod is replaced next: every gate by itself keeps it waiting, and nothing that is not a gate does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.health import CALM, DEADLINE
from migratory_operator.names import Object
from migratory_operator.objects import desired, exposure
from migratory_operator.observe import BrokerPage, Observed, key_of
from migratory_operator.rollout import UNSEEN, Rollout, next_step, old_members
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import NOW, OLD, SETTINGS, cluster, pages_of, pod, pods, settled

BROKER, MEMBER = names.BROKER, names.ZOOKEEPER
PULLING: Object = {
    "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
}
CRASHING: Object = {"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}


def seen(there: Sequence[Object], spec: Object | None = None, **fields: Any) -> Observed:
    """A cluster whose StatefulSets are at the revision NEW; all well but for what is given."""
    resource = cluster(spec)
    asked = read_cluster(resource)
    plain = Observed(resource=resource, now=NOW)
    urls = exposure.urls(asked, plain.owner, {})
    made = {key_of(thing): settled(thing) for thing in desired(asked, plain.owner, SETTINGS, urls, frozenset())}
    usual: Object = {"objects": made, "pods": tuple(there), "pages": pages_of(asked.spec.brokers.replicas)}
    return replace(plain, **{**usual, **fields})


def step(observed: Observed, *, began: bool = False) -> Rollout:
    return next_step(read_cluster(observed.resource), observed, began)


def goes(rollout: Rollout) -> list[str]:
    return [one.pod["metadata"]["name"] for one in rollout.replace]


def with_pod(there: Sequence[Object], changed: Object) -> tuple[Object, ...]:
    name = changed["metadata"]["name"]
    assert name in {one["metadata"]["name"] for one in there}
    return tuple(changed if one["metadata"]["name"] == name else one for one in there)


def without(there: Sequence[Object], name: str) -> tuple[Object, ...]:
    left = tuple(one for one in there if one["metadata"]["name"] != name)
    assert len(left) == len(there) - 1
    return left


def leaving(one: Object) -> Object:
    return {**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-02T03:04:00Z"}}


OLD_BROKERS = (*pods(3, 0, revision=OLD), *pods(0, 3))
OLD_MEMBERS = (*pods(3, 0), *pods(0, 3, revision=OLD))
ALL_OLD = pods(revision=OLD)


def test_when_every_pod_is_new_nothing_is_replaced() -> None:
    assert step(seen(pods())) == Rollout()
    assert step(seen(pods()), began=True) == Rollout()


def test_one_broker_goes_by_an_eviction_when_all_is_well() -> None:
    found = step(seen(OLD_BROKERS))
    assert (found.state, goes(found), found.replace[0].gently) == ("rolling", ["quotes-broker-2"], True)
    assert found.message == "quotes-broker-2 is being replaced; of an old revision: quotes-broker-0, quotes-broker-1"
    next_one = with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER))
    assert goes(step(seen(next_one))) == ["quotes-broker-1"]


def page_with(name: str, **fields: Any) -> Callable[[Observed], Observed]:
    def change(observed: Observed) -> Observed:
        return replace(observed, pages={**observed.pages, name: replace(observed.pages[name], **fields)})

    return change


def no_page(observed: Observed) -> Observed:
    return replace(observed, pages={name: page for name, page in observed.pages.items() if name != "quotes-broker-0"})


def no_coordinator(observed: Observed) -> Observed:
    page = observed.pages["quotes-broker-0"]
    return page_with("quotes-broker-0", lists={g: who for g, who in page.lists.items() if g != 3})(observed)


def not_listed(observed: Observed) -> Observed:
    page = observed.pages["quotes-broker-0"]
    lists = {**page.lists, 3: frozenset({"quotes-broker-0", "quotes-broker-2"})}
    return page_with("quotes-broker-0", lists=lists)(observed)


def pod_with(changed: Object) -> Callable[[Observed], Observed]:
    return lambda observed: replace(observed, pods=with_pod(observed.pods, changed))


def no_pod(name: str) -> Callable[[Observed], Observed]:
    return lambda observed: replace(observed, pods=without(observed.pods, name))


def ready_since(name: str, component: str, seconds: float, restarts: int = 0) -> Object:
    made = pod(name, component, containerStatuses=[{"restartCount": restarts, "state": {"running": {}}}])
    made["status"]["conditions"][0]["lastTransitionTime"] = (NOW - timedelta(seconds=seconds)).isoformat()
    return made


CALM_SECONDS = CALM.total_seconds()
OF_BROKERS: list[tuple[Callable[[Observed], Observed], str]] = [
    (no_page, "quotes-broker-0 does not answer"),
    (page_with("quotes-broker-1", member=False), "quotes-broker-1 is not a synced member of every topic group yet"),
    (page_with("quotes-broker-2", member=False), "quotes-broker-2 is not a synced member"),
    (page_with("quotes-broker-1", fenced=True), "quotes-broker-1 is cut off from the others"),
    (page_with("quotes-broker-1", draining=True), "quotes-broker-1 is leaving"),
    (page_with("quotes-broker-1", ready=False), "quotes-broker-1 takes no clients"),
    (page_with("quotes-broker-1", zookeeper_connected=False), "quotes-broker-1 does not reach ZooKeeper"),
    (page_with("quotes-broker-1", waiting_groups=1), "quotes-broker-1 knows topic groups that wait"),
    (page_with("quotes-broker-1", links={"quotes-broker-0": 1}), "quotes-broker-1 is not connected to quotes-broker-2"),
    (page_with("quotes-broker-1", incarnation=2), "quotes-broker-0 is not connected to quotes-broker-1"),
    (no_coordinator, "1 topic groups have no coordinator"),
    (not_listed, "quotes-broker-1 is not on the list of topic group 3"),
    (pod_with(pod("quotes-broker-2", BROKER, ready=False)), "quotes-broker-2 is not ready"),
    (pod_with(leaving(pod("quotes-broker-2", BROKER))), "quotes-broker-2 is on its way out"),
    (no_pod("quotes-broker-2"), "quotes-broker-2 is to be made"),
    (lambda observed: replace(observed, pods=(*observed.pods, pod("quotes-broker-3", BROKER))),
     "quotes-broker-3 is on its way out"),
    (pod_with(ready_since("quotes-broker-2", BROKER, CALM_SECONDS - 1)), "broker-2 has been ready for less than"),
    (pod_with(ready_since("quotes-broker-2", BROKER, 4 * CALM_SECONDS - 1, 2)), "and was restarted 2 times"),
    (pod_with(ready_since("quotes-broker-2", BROKER, 299, 1000)), "less than 300 s"),
    (pod_with(pod("quotes-zookeeper-1", MEMBER, ready=False)), "quotes-zookeeper-1 is not ready"),
    (pod_with(leaving(pod("quotes-zookeeper-1", MEMBER))), "quotes-zookeeper-1 is on its way out"),
    (no_pod("quotes-zookeeper-0"), "quotes-zookeeper-0 is to be made"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), OF_BROKERS, ids=[why for _, why in OF_BROKERS])
def test_each_of_these_alone_keeps_the_next_broker(change: Callable[[Observed], Observed], why: str) -> None:
    under_way = seen(with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER)))
    assert goes(step(under_way)) == ["quotes-broker-1"], "but for the change one would go"
    found = step(change(under_way))
    assert (found.state, goes(found)) == ("rolling", [])
    assert found.message.startswith("waits: ")
    assert why in found.message


@pytest.mark.parametrize(
    "change",
    [
        pod_with(ready_since("quotes-broker-2", BROKER, CALM_SECONDS)),
        pod_with(ready_since("quotes-broker-2", BROKER, 4 * CALM_SECONDS, 2)),
        pod_with(ready_since("quotes-broker-2", BROKER, 300, 1000)),
    ],
)
def test_what_has_been_ready_for_long_enough_counts(change: Callable[[Observed], Observed]) -> None:
    assert goes(step(change(seen(with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER)))))) == ["quotes-broker-1"]


def test_a_broker_that_is_not_ready_itself_goes_first() -> None:
    unready = pod("quotes-broker-0", BROKER, ready=False, revision=OLD)
    found = step(page_with("quotes-broker-0", ready=False, member=False)(seen(with_pod(OLD_BROKERS, unready))))
    assert goes(found) == ["quotes-broker-0"]
    two = with_pod(with_pod(OLD_BROKERS, unready), pod("quotes-broker-1", BROKER, ready=False, revision=OLD))
    assert goes(step(seen(two))) == [], "of two that are unwell, each keeps the other"
    alone = seen(two)
    pages = {name: replace(page, ready=False, member=False, lists={}) for name, page in alone.pages.items()}
    everything = dict.fromkeys(range(100), frozenset({"quotes-broker-2"}))
    unlisted = {**pages, "quotes-broker-2": replace(alone.pages["quotes-broker-2"], lists=everything)}
    found = step(replace(alone, pages=unlisted))
    assert goes(found) == ["quotes-broker-1"], "unless no topic group lists it"
    assert not found.replace[0].gently, "the budget would keep both"
    assert goes(step(seen(with_pod(OLD_BROKERS, leaving(unready))))) == [], "and it goes once"


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        (pod("quotes-broker-2", BROKER, ready=False, **PULLING), "no such image (ImagePullBackOff)"),
        (pod("quotes-broker-2", BROKER, ready=False, **CRASHING), "CrashLoopBackOff"),
        (pod("quotes-zookeeper-2", MEMBER, ready=False, **PULLING), "quotes-zookeeper-2: no such image"),
    ],
)
def test_it_stops_at_the_first_that_fails(failing: Object, why: str) -> None:
    stuck = pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **CRASHING)
    there = with_pod(with_pod(OLD_BROKERS, failing), stuck)
    found = step(seen(there))
    assert (found.state, goes(found)) == ("stopped", [])
    assert why in found.message
    assert "of an old revision: quotes-broker-0, quotes-broker-1" in found.message
    last = step(seen(with_pod(pods(), failing)), began=True)
    assert (last.state, goes(last)) == ("stopped", []), "also at the last one"
    assert step(seen(with_pod(pods(), failing))) == Rollout(), "but for a rollout it is no rollout's failure"


def test_it_stops_at_one_that_is_not_ready_in_time() -> None:
    slow = pod("quotes-broker-2", BROKER, ready=False)
    slow["status"]["conditions"][0]["lastTransitionTime"] = (NOW - DEADLINE).isoformat()
    there = with_pod(OLD_BROKERS, slow)
    assert step(seen(there)).state == "rolling"
    late = step(seen(there, now=NOW + timedelta(seconds=1)))
    assert (late.state, goes(late)) == ("stopped", [])
    assert "quotes-broker-2 has not been ready for 10 minutes" in late.message
    never = pod("quotes-broker-2", BROKER, ready=False)
    never["status"]["conditions"] = []
    never["metadata"]["creationTimestamp"] = (NOW - DEADLINE - timedelta(seconds=1)).isoformat()
    assert step(seen(with_pod(OLD_BROKERS, never))).state == "stopped"


def test_a_new_pod_that_is_sent_away_has_not_failed_however_long_it_was_ready() -> None:
    evicted = leaving(ready_since("quotes-broker-2", BROKER, DEADLINE.total_seconds() + 1))
    found = step(seen(with_pod(OLD_BROKERS, evicted)))
    assert (found.state, goes(found)) == ("rolling", [])
    assert "waits: quotes-broker-2 is on its way out" in found.message


@pytest.mark.parametrize("status", [PULLING, CRASHING, {"phase": "Pending"}])
def test_old_pods_that_run_nothing_go_at_once_and_all_of_them(status: Object) -> None:
    there = ALL_OLD
    for name, component in (("quotes-broker-0", BROKER), ("quotes-broker-1", BROKER), ("quotes-zookeeper-2", MEMBER)):
        there = with_pod(there, pod(name, component, ready=False, revision=OLD, **status))
    found = step(seen(there, pages={}))
    assert sorted(goes(found)) == ["quotes-broker-0", "quotes-broker-1", "quotes-zookeeper-2"]
    assert not any(one.gently for one in found.replace)
    assert "ran nothing" in found.message


def test_one_that_runs_nothing_and_is_on_its_way_out_goes_once() -> None:
    gone = leaving(pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **PULLING))
    found = step(seen(with_pod(OLD_BROKERS, gone)))
    assert (found.state, goes(found)) == ("rolling", [])
    assert "waits: quotes-broker-0 is on its way out" in found.message


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
        {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]},
    ],
)
def test_old_pods_that_run_or_are_about_to_wait_until_the_others_are_well(status: Object) -> None:
    unready = pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **status)
    assert goes(step(seen(with_pod(OLD_BROKERS, unready), pages={}))) == []


def test_what_a_member_without_a_volume_wrote_is_not_thrown_away() -> None:
    ephemeral = {"zookeeper": {"storage": {"ephemeral": True}}}
    there: tuple[Object, ...] = OLD_MEMBERS
    for number in range(2):
        there = with_pod(there, pod(f"quotes-zookeeper-{number}", MEMBER, ready=False, revision=OLD, **CRASHING))
    assert goes(step(seen(there, ephemeral))) == []
    assert goes(step(seen(there))) == ["quotes-zookeeper-0", "quotes-zookeeper-1"]
    never = with_pod(OLD_MEMBERS, pod("quotes-zookeeper-1", MEMBER, ready=False, revision=OLD, phase="Pending"))
    assert goes(step(seen(never, ephemeral))) == ["quotes-zookeeper-1"]


@pytest.mark.parametrize("storage", [{"ephemeral": True}, {}])
def test_members_that_failed_and_never_were_ready_go_at_once(storage: Object) -> None:
    """A first image that crashes, or never gets a quorum: there is nothing in them, and they wait for each other."""

    def member(number: int, minutes: float, ready_after: float = 0) -> Object:
        began = NOW - timedelta(minutes=minutes)
        runs: Object = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        made = pod(f"quotes-zookeeper-{number}", MEMBER, ready=False, revision=OLD, **runs)
        made["status"]["startTime"] = began.isoformat()
        turned = (began + timedelta(seconds=ready_after)).isoformat()
        made["status"]["conditions"][0]["lastTransitionTime"] = turned
        return made

    there = (*pods(3, 0), *(member(number, 11) for number in range(3)))
    spec = {"zookeeper": {"storage": storage}}
    assert goes(step(seen(there, spec, pages={}))) == [f"quotes-zookeeper-{number}" for number in range(3)]
    young = with_pod(there, member(1, 9))
    assert goes(step(seen(young, spec, pages={}))) == ["quotes-zookeeper-0", "quotes-zookeeper-2"]
    once = with_pod(there, member(1, 11, ready_after=3))
    assert goes(step(seen(once, spec, pages={}))) == ["quotes-zookeeper-0", "quotes-zookeeper-2"]


def test_zookeeper_before_brokers_and_its_leader_last() -> None:
    followers = {"quotes-zookeeper-1": "follower", "quotes-zookeeper-2": "follower", "quotes-zookeeper-0": "leader"}
    there = ALL_OLD
    order = []
    for _ in range(3):
        (name,) = goes(step(seen(there, modes=followers)))
        order.append(name)
        there = with_pod(there, pod(name, MEMBER))
    assert order == ["quotes-zookeeper-1", "quotes-zookeeper-2", "quotes-zookeeper-0"]
    assert goes(step(seen(there))) == ["quotes-broker-2"]


def test_a_member_that_does_not_say_is_taken_for_one_that_may_lead() -> None:
    assert goes(step(seen(OLD_MEMBERS, modes={"quotes-zookeeper-1": "follower"}))) == ["quotes-zookeeper-1"]
    assert goes(step(seen(OLD_MEMBERS))) == ["quotes-zookeeper-0"]
    one = {"zookeeper": {"replicas": 1}}
    alone = (*pods(3, 0), *pods(0, 1, revision=OLD))
    assert goes(step(seen(alone, one, modes={"quotes-zookeeper-0": "standalone"}))) == ["quotes-zookeeper-0"]


OF_MEMBERS: list[tuple[Callable[[Observed], Observed], str]] = [
    (pod_with(pod("quotes-zookeeper-1", MEMBER, ready=False)), "quotes-zookeeper-1 is not ready"),
    (pod_with(leaving(pod("quotes-zookeeper-1", MEMBER))), "quotes-zookeeper-1 is on its way out"),
    (no_pod("quotes-zookeeper-1"), "quotes-zookeeper-1 is to be made"),
    (pod_with(ready_since("quotes-zookeeper-1", MEMBER, 1)), "quotes-zookeeper-1 has been ready for less than"),
    (page_with("quotes-broker-1", zookeeper_connected=False), "quotes-broker-1 does not reach ZooKeeper"),
    (no_pod("quotes-broker-1"), "quotes-broker-1 is being replaced"),
    (pod_with(leaving(pod("quotes-broker-1", BROKER))), "quotes-broker-1 is being replaced"),
    (pod_with(pod("quotes-broker-1", BROKER, ready=False)), "quotes-broker-1 is not ready"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), OF_MEMBERS, ids=[why for _, why in OF_MEMBERS])
def test_each_of_these_alone_keeps_the_next_member(change: Callable[[Observed], Observed], why: str) -> None:
    under_way = seen(with_pod(OLD_MEMBERS, pod("quotes-zookeeper-1", MEMBER)))
    assert goes(step(under_way)) == ["quotes-zookeeper-0"]
    found = step(change(under_way))
    assert (found.state, goes(found)) == ("rolling", [])
    assert why in found.message


def test_a_broker_that_failed_does_not_keep_zookeeper_from_being_mended() -> None:
    failed = pod("quotes-broker-1", BROKER, ready=False, revision="revision-0", phase="Running")
    failed["status"]["conditions"][0]["lastTransitionTime"] = (NOW - DEADLINE - timedelta(seconds=1)).isoformat()
    assert goes(step(no_page(seen(with_pod(OLD_MEMBERS, failed))))) == ["quotes-zookeeper-0"]


def test_nothing_is_known_of_pods_before_the_statefulset_s_controller_has_seen_its_change() -> None:
    observed = seen(OLD_BROKERS)
    objects = copy.deepcopy(dict(observed.objects))
    objects["StatefulSet", "quotes-broker"]["metadata"]["generation"] = 2
    assert step(replace(observed, objects=objects)) == UNSEEN


def test_the_end_waits_until_all_is_well() -> None:
    found = step(page_with("quotes-broker-0", member=False)(seen(pods())), began=True)
    assert (found.state, goes(found)) == ("rolling", [])
    assert found.message.startswith("every pod is new; waits: quotes-broker-0 is not a synced member")
    assert step(page_with("quotes-broker-0", member=False)(seen(pods()))) == Rollout(), "without a rollout it is none"


def test_an_ensemble_of_somebody_else_is_left_to_them() -> None:
    external = {"zookeeper": {"external": "zk:2181"}}
    brokers = pods(3, 0, revision=OLD)
    assert goes(step(seen(brokers, external))) == ["quotes-broker-2"]
    cut = page_with("quotes-broker-0", zookeeper_connected=False)(seen(brokers, external))
    assert goes(step(cut)) == []


def test_one_broker_alone_goes_without_others_to_wait_for() -> None:
    one = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
    assert goes(step(seen((*pods(1, 0, revision=OLD), *pods(0, 1)), one))) == ["quotes-broker-0"]


def test_members_are_asked_for_their_mode_only_while_some_are_to_go() -> None:
    assert old_members(seen(pods())) == []
    assert [one["metadata"]["name"] for one in old_members(seen(OLD_MEMBERS))] == [
        f"quotes-zookeeper-{number}" for number in range(3)
    ]
    assert old_members(Observed(resource=cluster(), now=NOW, pods=OLD_MEMBERS)) == []


def test_what_a_broker_says_is_read_from_its_page() -> None:
    groups = [
        {"group": 0, "role": "coordinator", "members": ["a", "b"], "copies": 2},
        {"group": 1, "role": "member", "members": ["a", "c"], "copies": 3},
    ]
    logic = {
        "groups": groups, "waiting_groups": 2, "incarnation": 5, "member": True, "fenced": False, "draining": True,
        "peers": {"b": 3},
    }  # fmt: skip
    found = BrokerPage.read({"ready": True, "zookeeper_connected": False, "edge": {"clients": 4}, "logic": logic})
    assert (found.clients, found.waiting_groups, found.incarnation, found.links) == (4, 2, 5, {"b": 3})
    assert found.lists == {0: {"a", "b"}}
    assert (found.copies, sorted(found.staying)) == (2, [])
    alone = {"ready": True, "zookeeper_connected": True, "edge": None, "logic": {**logic, "groups": []}}
    found_alone = BrokerPage.read({**alone, "staying": ["a", "b"]})
    assert (found_alone.copies, sorted(found_alone.staying)) == (0, ["a", "b"])
    assert (sorted(found.owned), sorted(found.listed)) == ([0], ["a", "b"])
    assert (found.ready, found.zookeeper_connected, found.member, found.fenced, found.draining) == (
        True, False, True, False, True,
    )  # fmt: skip
