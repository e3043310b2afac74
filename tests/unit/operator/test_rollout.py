"""The next pod to replace and its order, each rule that alone prevents a replacement, and how a rollout stops or
ends."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.names import Object
from migratory_operator.objects import desired, exposure
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_operator.reconcile.pods import READY_DEADLINE, SETTLE_TIME
from migratory_operator.reconcile.rollout import UNKNOWN_ROLLOUT, Rollout, next_rollout_step, outdated_members
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import NOW, OLD, SETTINGS, cluster, pages_of, pod, pods, settled

BROKER, MEMBER = names.BROKER, names.ZOOKEEPER
PULLING: Object = {
    "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
}
CRASHING: Object = {"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}


def observe(present: Sequence[Object], spec: Object | None = None, **fields: Any) -> ObservedCluster:
    """Return a healthy cluster with these pods, whose StatefulSets have the revision NEW; `fields` replace its
    fields."""
    resource = cluster(spec)
    spec_cluster = read_cluster(resource)
    plain = ObservedCluster(resource=resource, now=NOW)
    urls = exposure.urls(spec_cluster, plain.owner, {})
    built = {key_of(item): settled(item) for item in desired(spec_cluster, plain.owner, SETTINGS, urls, frozenset())}
    usual: Object = {"objects": built, "pods": tuple(present), "pages": pages_of(spec_cluster.spec.brokers.replicas)}
    return replace(plain, **{**usual, **fields})


def step(observed: ObservedCluster, *, in_progress: bool = False) -> Rollout:
    return next_rollout_step(read_cluster(observed.resource), observed, in_progress)


def replaced(rollout: Rollout) -> list[str]:
    return [entry.pod["metadata"]["name"] for entry in rollout.replace]


def with_pod(present: Sequence[Object], changed: Object) -> tuple[Object, ...]:
    name = changed["metadata"]["name"]
    assert name in {entry["metadata"]["name"] for entry in present}
    return tuple(changed if entry["metadata"]["name"] == name else entry for entry in present)


def without(present: Sequence[Object], name: str) -> tuple[Object, ...]:
    remaining = tuple(entry for entry in present if entry["metadata"]["name"] != name)
    assert len(remaining) == len(present) - 1
    return remaining


def terminating(entry: Object) -> Object:
    return {**entry, "metadata": {**entry["metadata"], "deletionTimestamp": "2026-01-02T03:04:00Z"}}


OLD_BROKERS = (*pods(3, 0, revision=OLD), *pods(0, 3))
OLD_MEMBERS = (*pods(3, 0), *pods(0, 3, revision=OLD))
ALL_OLD = pods(revision=OLD)


def test_nothing_is_replaced_when_all_pods_are_up_to_date() -> None:
    assert step(observe(pods())) == Rollout()
    assert step(observe(pods()), in_progress=True) == Rollout()


def test_one_broker_is_evicted_when_all_are_healthy() -> None:
    rollout = step(observe(OLD_BROKERS))
    assert (rollout.state, replaced(rollout), rollout.replace[0].evict) == ("rolling", ["quotes-broker-2"], True)
    assert rollout.message == "replacing quotes-broker-2; still of an old revision: quotes-broker-0, quotes-broker-1"
    next_one = with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER))
    assert replaced(step(observe(next_one))) == ["quotes-broker-1"]


def page_with(name: str, **fields: Any) -> Callable[[ObservedCluster], ObservedCluster]:
    def change(observed: ObservedCluster) -> ObservedCluster:
        return replace(observed, pages={**observed.pages, name: replace(observed.pages[name], **fields)})

    return change


def no_page(observed: ObservedCluster) -> ObservedCluster:
    return replace(observed, pages={name: page for name, page in observed.pages.items() if name != "quotes-broker-0"})


def no_coordinator(observed: ObservedCluster) -> ObservedCluster:
    page = observed.pages["quotes-broker-0"]
    return page_with("quotes-broker-0", lists={g: names for g, names in page.lists.items() if g != 3})(observed)


def not_listed(observed: ObservedCluster) -> ObservedCluster:
    page = observed.pages["quotes-broker-0"]
    lists = {**page.lists, 3: frozenset({"quotes-broker-0", "quotes-broker-2"})}
    return page_with("quotes-broker-0", lists=lists)(observed)


def pod_with(changed: Object) -> Callable[[ObservedCluster], ObservedCluster]:
    return lambda observed: replace(observed, pods=with_pod(observed.pods, changed))


def no_pod(name: str) -> Callable[[ObservedCluster], ObservedCluster]:
    return lambda observed: replace(observed, pods=without(observed.pods, name))


def ready_since(name: str, component: str, seconds: float, restarts: int = 0) -> Object:
    built = pod(name, component, containerStatuses=[{"restartCount": restarts, "state": {"running": {}}}])
    built["status"]["conditions"][0]["lastTransitionTime"] = (NOW - timedelta(seconds=seconds)).isoformat()
    return built


SETTLE_SECONDS = SETTLE_TIME.total_seconds()
BROKER_BLOCKERS: list[tuple[Callable[[ObservedCluster], ObservedCluster], str]] = [
    (no_page, "quotes-broker-0 does not answer"),
    (page_with("quotes-broker-1", member=False), "quotes-broker-1 is not a synced member of every topic group yet"),
    (page_with("quotes-broker-2", member=False), "quotes-broker-2 is not a synced member"),
    (page_with("quotes-broker-1", fenced=True), "quotes-broker-1 is fenced"),
    (page_with("quotes-broker-1", draining=True), "quotes-broker-1 is shutting down"),
    (page_with("quotes-broker-1", ready=False), "quotes-broker-1 does not accept clients"),
    (page_with("quotes-broker-1", zookeeper_connected=False), "quotes-broker-1 is not connected to ZooKeeper"),
    (page_with("quotes-broker-1", waiting_groups=1), "quotes-broker-1 has topic groups that wait"),
    (page_with("quotes-broker-1", links={"quotes-broker-0": 1}), "quotes-broker-1 is not connected to quotes-broker-2"),
    (page_with("quotes-broker-1", incarnation=2), "quotes-broker-0 is not connected to quotes-broker-1"),
    (no_coordinator, "1 topic groups have no coordinator"),
    (not_listed, "quotes-broker-1 is not on the member list of topic group 3"),
    (pod_with(pod("quotes-broker-2", BROKER, ready=False)), "quotes-broker-2 is not ready"),
    (pod_with(terminating(pod("quotes-broker-2", BROKER))), "quotes-broker-2 is terminating"),
    (no_pod("quotes-broker-2"), "quotes-broker-2 does not exist yet"),
    (lambda observed: replace(observed, pods=(*observed.pods, pod("quotes-broker-3", BROKER))),
     "quotes-broker-3 is terminating"),
    (pod_with(ready_since("quotes-broker-2", BROKER, SETTLE_SECONDS - 1)), "broker-2 has been ready for less than"),
    (pod_with(ready_since("quotes-broker-2", BROKER, 4 * SETTLE_SECONDS - 1, 2)), "after 2 restarts"),
    (pod_with(ready_since("quotes-broker-2", BROKER, 299, 1000)), "less than 300 s"),
    (pod_with(pod("quotes-zookeeper-1", MEMBER, ready=False)), "quotes-zookeeper-1 is not ready"),
    (pod_with(terminating(pod("quotes-zookeeper-1", MEMBER))), "quotes-zookeeper-1 is terminating"),
    (no_pod("quotes-zookeeper-0"), "quotes-zookeeper-0 does not exist yet"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), BROKER_BLOCKERS, ids=[reason for _, reason in BROKER_BLOCKERS])
def test_each_problem_alone_blocks_the_next_broker(
    change: Callable[[ObservedCluster], ObservedCluster], reason: str
) -> None:
    under_way = observe(with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER)))
    assert replaced(step(under_way)) == ["quotes-broker-1"], "without the change one is replaced"
    rollout = step(change(under_way))
    assert (rollout.state, replaced(rollout)) == ("rolling", [])
    assert rollout.message.startswith("waiting: ")
    assert reason in rollout.message


@pytest.mark.parametrize(
    "change",
    [
        pod_with(ready_since("quotes-broker-2", BROKER, SETTLE_SECONDS)),
        pod_with(ready_since("quotes-broker-2", BROKER, 4 * SETTLE_SECONDS, 2)),
        pod_with(ready_since("quotes-broker-2", BROKER, 300, 1000)),
    ],
)
def test_a_pod_counts_after_its_settle_time(change: Callable[[ObservedCluster], ObservedCluster]) -> None:
    assert replaced(step(change(observe(with_pod(OLD_BROKERS, pod("quotes-broker-2", BROKER)))))) == ["quotes-broker-1"]


def test_a_broker_that_is_not_ready_is_replaced_first() -> None:
    unready = pod("quotes-broker-0", BROKER, ready=False, revision=OLD)
    rollout = step(page_with("quotes-broker-0", ready=False, member=False)(observe(with_pod(OLD_BROKERS, unready))))
    assert replaced(rollout) == ["quotes-broker-0"]
    two = with_pod(with_pod(OLD_BROKERS, unready), pod("quotes-broker-1", BROKER, ready=False, revision=OLD))
    assert replaced(step(observe(two))) == [], "two brokers that are not ready block each other"
    alone = observe(two)
    pages = {name: replace(page, ready=False, member=False, lists={}) for name, page in alone.pages.items()}
    everything = dict.fromkeys(range(100), frozenset({"quotes-broker-2"}))
    unlisted = {**pages, "quotes-broker-2": replace(alone.pages["quotes-broker-2"], lists=everything)}
    rollout = step(replace(alone, pages=unlisted))
    assert replaced(rollout) == ["quotes-broker-1"], "unless no member list has it"
    assert not rollout.replace[0].evict, "the disruption budget would forbid an eviction"
    assert replaced(step(observe(with_pod(OLD_BROKERS, terminating(unready))))) == [], "and it is replaced once"


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (pod("quotes-broker-2", BROKER, ready=False, **PULLING), "no such image (ImagePullBackOff)"),
        (pod("quotes-broker-2", BROKER, ready=False, **CRASHING), "CrashLoopBackOff"),
        (pod("quotes-zookeeper-2", MEMBER, ready=False, **PULLING), "quotes-zookeeper-2: no such image"),
    ],
)
def test_a_rollout_stops_at_the_first_failure(failing: Object, reason: str) -> None:
    stuck = pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **CRASHING)
    present = with_pod(with_pod(OLD_BROKERS, failing), stuck)
    rollout = step(observe(present))
    assert (rollout.state, replaced(rollout)) == ("stopped", [])
    assert reason in rollout.message
    assert "still of an old revision: quotes-broker-0, quotes-broker-1" in rollout.message
    last = step(observe(with_pod(pods(), failing)), in_progress=True)
    assert (last.state, replaced(last)) == ("stopped", []), "also at the last pod"
    assert step(observe(with_pod(pods(), failing))) == Rollout(), "without a rollout nothing stops"


def test_a_rollout_stops_at_a_pod_that_is_not_ready_in_time() -> None:
    slow = pod("quotes-broker-2", BROKER, ready=False)
    slow["status"]["conditions"][0]["lastTransitionTime"] = (NOW - READY_DEADLINE).isoformat()
    present = with_pod(OLD_BROKERS, slow)
    assert step(observe(present)).state == "rolling"
    late = step(observe(present, now=NOW + timedelta(seconds=1)))
    assert (late.state, replaced(late)) == ("stopped", [])
    assert "quotes-broker-2 has not been ready for 10 minutes" in late.message
    never = pod("quotes-broker-2", BROKER, ready=False)
    never["status"]["conditions"] = []
    never["metadata"]["creationTimestamp"] = (NOW - READY_DEADLINE - timedelta(seconds=1)).isoformat()
    assert step(observe(with_pod(OLD_BROKERS, never))).state == "stopped"


def test_an_evicted_new_pod_has_not_failed() -> None:
    evicted = terminating(ready_since("quotes-broker-2", BROKER, READY_DEADLINE.total_seconds() + 1))
    rollout = step(observe(with_pod(OLD_BROKERS, evicted)))
    assert (rollout.state, replaced(rollout)) == ("rolling", [])
    assert "waiting: quotes-broker-2 is terminating" in rollout.message


@pytest.mark.parametrize("status", [PULLING, CRASHING, {"phase": "Pending"}])
def test_empty_old_pods_are_all_deleted_at_once(status: Object) -> None:
    present = ALL_OLD
    for name, component in (("quotes-broker-0", BROKER), ("quotes-broker-1", BROKER), ("quotes-zookeeper-2", MEMBER)):
        present = with_pod(present, pod(name, component, ready=False, revision=OLD, **status))
    rollout = step(observe(present, pages={}))
    assert sorted(replaced(rollout)) == ["quotes-broker-0", "quotes-broker-1", "quotes-zookeeper-2"]
    assert not any(entry.evict for entry in rollout.replace)
    assert "which run nothing" in rollout.message


def test_an_empty_pod_that_is_terminating_is_deleted_once() -> None:
    gone = terminating(pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **PULLING))
    rollout = step(observe(with_pod(OLD_BROKERS, gone)))
    assert (rollout.state, replaced(rollout)) == ("rolling", [])
    assert "waiting: quotes-broker-0 is terminating" in rollout.message


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
        {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]},
    ],
)
def test_old_pods_that_run_wait_until_the_others_are_healthy(status: Object) -> None:
    unready = pod("quotes-broker-0", BROKER, ready=False, revision=OLD, **status)
    assert replaced(step(observe(with_pod(OLD_BROKERS, unready), pages={}))) == []


def test_an_ephemeral_member_that_has_run_is_not_deleted() -> None:
    ephemeral = {"zookeeper": {"storage": {"ephemeral": True}}}
    present: tuple[Object, ...] = OLD_MEMBERS
    for number in range(2):
        present = with_pod(present, pod(f"quotes-zookeeper-{number}", MEMBER, ready=False, revision=OLD, **CRASHING))
    assert replaced(step(observe(present, ephemeral))) == []
    assert replaced(step(observe(present))) == ["quotes-zookeeper-0", "quotes-zookeeper-1"]
    never = with_pod(OLD_MEMBERS, pod("quotes-zookeeper-1", MEMBER, ready=False, revision=OLD, phase="Pending"))
    assert replaced(step(observe(never, ephemeral))) == ["quotes-zookeeper-1"]


@pytest.mark.parametrize("storage", [{"ephemeral": True}, {}])
def test_failed_members_that_never_were_ready_are_deleted_at_once(storage: Object) -> None:
    """ZooKeeper members that have failed for over ten minutes and were never ready are deleted all at once, because
    they hold no data and wait for each other; younger ones, and those that were ready once, stay."""

    def member(number: int, minutes: float, ready_after: float = 0) -> Object:
        began = NOW - timedelta(minutes=minutes)
        runs: Object = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        built = pod(f"quotes-zookeeper-{number}", MEMBER, ready=False, revision=OLD, **runs)
        built["status"]["startTime"] = began.isoformat()
        turned = (began + timedelta(seconds=ready_after)).isoformat()
        built["status"]["conditions"][0]["lastTransitionTime"] = turned
        return built

    present = (*pods(3, 0), *(member(number, 11) for number in range(3)))
    spec = {"zookeeper": {"storage": storage}}
    assert replaced(step(observe(present, spec, pages={}))) == [f"quotes-zookeeper-{number}" for number in range(3)]
    young = with_pod(present, member(1, 9))
    assert replaced(step(observe(young, spec, pages={}))) == ["quotes-zookeeper-0", "quotes-zookeeper-2"]
    once = with_pod(present, member(1, 11, ready_after=3))
    assert replaced(step(observe(once, spec, pages={}))) == ["quotes-zookeeper-0", "quotes-zookeeper-2"]


def test_members_are_replaced_before_brokers_and_the_leader_last() -> None:
    followers = {"quotes-zookeeper-1": "follower", "quotes-zookeeper-2": "follower", "quotes-zookeeper-0": "leader"}
    present = ALL_OLD
    order = []
    for _ in range(3):
        (name,) = replaced(step(observe(present, modes=followers)))
        order.append(name)
        present = with_pod(present, pod(name, MEMBER))
    assert order == ["quotes-zookeeper-1", "quotes-zookeeper-2", "quotes-zookeeper-0"]
    assert replaced(step(observe(present))) == ["quotes-broker-2"]


def test_a_member_of_unknown_mode_is_replaced_after_followers() -> None:
    assert replaced(step(observe(OLD_MEMBERS, modes={"quotes-zookeeper-1": "follower"}))) == ["quotes-zookeeper-1"]
    assert replaced(step(observe(OLD_MEMBERS))) == ["quotes-zookeeper-0"]
    entry = {"zookeeper": {"replicas": 1}}
    alone = (*pods(3, 0), *pods(0, 1, revision=OLD))
    assert replaced(step(observe(alone, entry, modes={"quotes-zookeeper-0": "standalone"}))) == ["quotes-zookeeper-0"]


MEMBER_BLOCKERS: list[tuple[Callable[[ObservedCluster], ObservedCluster], str]] = [
    (pod_with(pod("quotes-zookeeper-1", MEMBER, ready=False)), "quotes-zookeeper-1 is not ready"),
    (pod_with(terminating(pod("quotes-zookeeper-1", MEMBER))), "quotes-zookeeper-1 is terminating"),
    (no_pod("quotes-zookeeper-1"), "quotes-zookeeper-1 does not exist yet"),
    (pod_with(ready_since("quotes-zookeeper-1", MEMBER, 1)), "quotes-zookeeper-1 has been ready for less than"),
    (page_with("quotes-broker-1", zookeeper_connected=False), "quotes-broker-1 is not connected to ZooKeeper"),
    (no_pod("quotes-broker-1"), "quotes-broker-1 is being replaced"),
    (pod_with(terminating(pod("quotes-broker-1", BROKER))), "quotes-broker-1 is being replaced"),
    (pod_with(pod("quotes-broker-1", BROKER, ready=False)), "quotes-broker-1 is not ready"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), MEMBER_BLOCKERS, ids=[reason for _, reason in MEMBER_BLOCKERS])
def test_each_problem_alone_blocks_the_next_member(
    change: Callable[[ObservedCluster], ObservedCluster], reason: str
) -> None:
    under_way = observe(with_pod(OLD_MEMBERS, pod("quotes-zookeeper-1", MEMBER)))
    assert replaced(step(under_way)) == ["quotes-zookeeper-0"]
    rollout = step(change(under_way))
    assert (rollout.state, replaced(rollout)) == ("rolling", [])
    assert reason in rollout.message


def test_a_failed_broker_does_not_block_zookeeper_members() -> None:
    failed = pod("quotes-broker-1", BROKER, ready=False, revision="revision-0", phase="Running")
    failed["status"]["conditions"][0]["lastTransitionTime"] = (NOW - READY_DEADLINE - timedelta(seconds=1)).isoformat()
    assert replaced(step(no_page(observe(with_pod(OLD_MEMBERS, failed))))) == ["quotes-zookeeper-0"]


def test_the_rollout_is_unknown_until_the_controller_has_observed_the_change() -> None:
    observed = observe(OLD_BROKERS)
    objects = copy.deepcopy(dict(observed.objects))
    objects["StatefulSet", "quotes-broker"]["metadata"]["generation"] = 2
    assert step(replace(observed, objects=objects)) == UNKNOWN_ROLLOUT


def test_a_rollout_ends_when_all_are_healthy() -> None:
    rollout = step(page_with("quotes-broker-0", member=False)(observe(pods())), in_progress=True)
    assert (rollout.state, replaced(rollout)) == ("rolling", [])
    assert rollout.message.startswith("all pods are up to date; waiting: quotes-broker-0 is not a synced member")
    assert step(page_with("quotes-broker-0", member=False)(observe(pods()))) == Rollout(), (
        "without a rollout none starts"
    )


def test_an_external_ensemble_has_no_members_to_replace() -> None:
    external = {"zookeeper": {"external": "zk:2181"}}
    brokers = pods(3, 0, revision=OLD)
    assert replaced(step(observe(brokers, external))) == ["quotes-broker-2"]
    cut = page_with("quotes-broker-0", zookeeper_connected=False)(observe(brokers, external))
    assert replaced(step(cut)) == []


def test_a_single_broker_is_replaced_without_waiting() -> None:
    entry = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
    assert replaced(step(observe((*pods(1, 0, revision=OLD), *pods(0, 1)), entry))) == ["quotes-broker-0"]


def test_modes_are_asked_only_for_outdated_members() -> None:
    assert outdated_members(observe(pods())) == []
    assert [entry["metadata"]["name"] for entry in outdated_members(observe(OLD_MEMBERS))] == [
        f"quotes-zookeeper-{number}" for number in range(3)
    ]
    assert outdated_members(ObservedCluster(resource=cluster(), now=NOW, pods=OLD_MEMBERS)) == []


def test_a_status_page_is_read() -> None:
    groups = [
        {"group": 0, "role": "coordinator", "members": ["a", "b"], "copies": 2},
        {"group": 1, "role": "member", "members": ["a", "c"], "copies": 3},
    ]
    logic = {
        "groups": groups, "waiting_groups": 2, "incarnation": 5, "member": True, "fenced": False, "draining": True,
        "peers": {"b": 3},
    }  # fmt: skip
    status = {"ready": True, "zookeeper_connected": False, "edge": {"clients": 4}, "logic": logic}
    rollout = BrokerStatusPage.read(json.dumps(status).encode())
    assert (rollout.clients, rollout.waiting_groups, rollout.incarnation, rollout.links) == (4, 2, 5, {"b": 3})
    assert rollout.lists == {0: {"a", "b"}}
    assert (rollout.copies, sorted(rollout.staying)) == (2, [])
    alone = {"ready": True, "zookeeper_connected": True, "edge": None, "logic": {**logic, "groups": []}}
    found_alone = BrokerStatusPage.read(json.dumps({**alone, "staying": ["a", "b"]}).encode())
    assert (found_alone.copies, sorted(found_alone.staying)) == (0, ["a", "b"])
    assert (sorted(rollout.owned), sorted(rollout.listed)) == ([0], ["a", "b"])
    assert (rollout.ready, rollout.zookeeper_connected, rollout.member, rollout.fenced, rollout.draining) == (
        True, False, True, False, True,
    )  # fmt: skip
