"""Resizing of the ZooKeeper ensemble: single steps, and any interleaving of crashes, restarts and edits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from migratory_operator import names
from migratory_operator.api.ensemble import EnsembleConfig, parse_config
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import decide
from migratory_operator.reconcile.ensemble import EnsembleStep, Reconfiguration, next_ensemble_step
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import (
    NEW,
    OLD,
    SETTINGS,
    cluster,
    condition,
    healthy_cluster,
    message,
    observe,
    pod,
)

SET = ("StatefulSet", "quotes-zookeeper")
NAMES = [f"quotes-zookeeper-{ordinal}" for ordinal in range(5)]


def desired(replicas: int) -> KubernetesCluster:
    return read_cluster(cluster({"zookeeper": {"replicas": replicas}}))


def config(version: int, *members: int) -> EnsembleConfig:
    return EnsembleConfig(version, frozenset(members))


def observed(pods: int, answers: dict[int, EnsembleConfig], *unready: int, revision: str = NEW) -> ObservedCluster:
    """Return a cluster whose StatefulSet has this number of members' pods, of which some members answer.

    :param answers: the configurations that members report, by id.
    :param unready: ids of members whose pods are not ready.
    """
    stateful_set: Object = {
        "kind": "StatefulSet",
        "metadata": {"name": "quotes-zookeeper", "generation": 1},
        "spec": {"replicas": pods},
        "status": {"observedGeneration": 1, "updateRevision": NEW},
    }
    members = tuple(
        pod(NAMES[member - 1], names.ZOOKEEPER, ready=member not in unready, revision=revision)
        for member in range(1, pods + 1)
    )
    ensembles = {NAMES[member - 1]: answer for member, answer in answers.items()}
    return observe(cluster(), objects={SET: stateful_set}, pods=members, ensembles=ensembles)


def everywhere(answer: EnsembleConfig, *more: int) -> dict[int, EnsembleConfig]:
    """Return the answers of an ensemble in which all voting members, and those with the ids `more`, report the same."""
    return dict.fromkeys((*answer.members, *more), answer)


def pods_of(step: EnsembleStep) -> int:
    return step.cluster.spec.zookeeper.replicas


ONE, TWO, THREE = config(0x100, 1), config(0x200, 1, 2), config(0x300, 1, 2, 3)


def test_an_ensemble_of_the_right_size_is_left_alone() -> None:
    for version in (0, 0x300):
        step = next_ensemble_step(desired(3), observed(3, everywhere(config(version, 1, 2, 3))))
        assert (pods_of(step), step.reconfiguration, step.message) == (3, None, "")
    step = next_ensemble_step(desired(3), observed(3, {}))
    assert (pods_of(step), step.voters, step.message) == (3, None, "")


def test_a_member_joins_in_three_steps() -> None:
    step = next_ensemble_step(desired(3), observed(1, everywhere(config(0, 1))))
    assert (pods_of(step), step.reconfiguration) == (1, Reconfiguration(0, (1,))), "a version that others adopt"
    step = next_ensemble_step(desired(3), observed(1, everywhere(ONE)))
    assert (pods_of(step), step.reconfiguration) == (2, None), "its pod first"
    assert step.message == "1 members vote, 3 desired; quotes-zookeeper-1 does not exist yet"
    step = next_ensemble_step(desired(3), observed(2, everywhere(ONE), 2))
    assert (pods_of(step), step.reconfiguration) == (2, None), "it has no data yet"
    step = next_ensemble_step(desired(3), observed(2, everywhere(ONE, 2)))
    assert (pods_of(step), step.reconfiguration) == (2, Reconfiguration(0x100, (1, 2)))
    step = next_ensemble_step(desired(3), observed(2, everywhere(TWO)))
    assert (pods_of(step), step.reconfiguration) == (3, None)


def test_a_member_leaves_before_its_pod() -> None:
    step = next_ensemble_step(desired(1), observed(3, everywhere(THREE)))
    assert (pods_of(step), step.reconfiguration) == (3, Reconfiguration(0x300, (1, 2)))
    step = next_ensemble_step(desired(1), observed(3, everywhere(THREE), 3))
    assert step.reconfiguration == Reconfiguration(0x300, (1, 2)), "the one that leaves need not be ready"
    step = next_ensemble_step(desired(1), observed(3, everywhere(THREE), 2))
    assert step.reconfiguration is None
    left = config(0x400, 1, 2)
    step = next_ensemble_step(desired(1), observed(3, everywhere(left, 3)))
    assert (pods_of(step), step.reconfiguration) == (2, Reconfiguration(0x400, (1,)))
    step = next_ensemble_step(desired(1), observed(2, everywhere(config(0x500, 1), 2)))
    assert (pods_of(step), step.reconfiguration, step.message) == (1, None, "")


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ({}, False),
        ({1: THREE}, False),
        ({1: THREE, 2: THREE}, True),
        ({1: TWO, 2: TWO, 3: THREE}, False),
        ({1: TWO, 2: THREE, 3: THREE}, True),
        ({1: TWO, 4: THREE, 5: THREE}, False),
    ],
)
def test_only_a_configuration_that_a_majority_of_its_members_reports_counts(
    answers: dict[int, EnsembleConfig], known: bool
) -> None:
    seen = observed(5, answers)
    assert seen.ensemble == (THREE if known else None)
    step = next_ensemble_step(desired(1), seen)
    assert (step.reconfiguration is None) != known or pods_of(step) == 3
    if not known:
        assert pods_of(step) == 5
        assert step.message == "5 members vote, 1 desired; no majority of the members says which members vote"


def test_members_are_updated_before_they_join_or_leave() -> None:
    step = next_ensemble_step(desired(1), observed(3, everywhere(THREE), revision=OLD))
    assert step.reconfiguration is None
    assert step.message.endswith("quotes-zookeeper-0 is of an old revision")


def test_the_status_says_what_the_resizing_waits_for() -> None:
    before = healthy_cluster(ensembles=dict.fromkeys(NAMES[:3], THREE))
    resource = {**before.resource, "spec": {"zookeeper": {"replicas": 5}}}
    plan = decide(replace(before, resource=resource), SETTINGS)
    changed = {key_of(item): item for item in plan.apply}
    assert changed[SET]["spec"]["replicas"] == 4
    members = changed["ConfigMap", "quotes-zookeeper"]["data"]["members"].splitlines()
    assert [line.partition("=")[0] for line in members] == ["server.1", "server.2", "server.3", "server.4"]
    assert plan.replace == ()
    assert plan.requeue_after
    asked = healthy_cluster(ensembles=dict.fromkeys(NAMES[:3], THREE))
    asked = replace(asked, resource={**asked.resource, "spec": {"zookeeper": {"replicas": 1}}})
    plan = decide(asked, SETTINGS)
    changed = {key_of(item): item for item in plan.apply}
    assert SET not in changed, "the vote first"
    assert changed["ConfigMap", "quotes-zookeeper"]["data"]["reconfigure"] == (
        "version=300\n"
        "server.1=quotes-zookeeper-0.quotes-zookeeper.market.svc:2888:3888:participant\n"
        "server.2=quotes-zookeeper-1.quotes-zookeeper.market.svc:2888:3888:participant\n"
    )
    assert condition(plan, "Ready") == ("True", "AllReady")
    applied = {key_of(item): {**asked.objects[key_of(item)], "data": item["data"]} for item in plan.apply
               if item["kind"] == "ConfigMap"}  # fmt: skip
    plan = decide(replace(asked, objects={**asked.objects, **applied}), SETTINGS)
    assert condition(plan, "Progressing") == ("True", "ZooKeeperResizing")
    assert message(plan, "Progressing") == "3 members vote, 1 desired; the leader changes the members"


def test_a_joining_member_that_is_not_ready_leaves_coordination_available() -> None:
    joining = healthy_cluster(
        pods=(*healthy_cluster().pods, pod(NAMES[3], names.ZOOKEEPER, ready=False)),
        ensembles=dict.fromkeys(NAMES[:3], THREE),
    )
    assert condition(decide(joining, SETTINGS), "CoordinationAvailable")[0] == "True"
    two_away = tuple(
        {**each, "status": {**each["status"], "conditions": []}} if each["metadata"]["name"] in NAMES[:2] else each
        for each in joining.pods
    )
    plan = decide(replace(joining, pods=two_away), SETTINGS)
    assert condition(plan, "CoordinationAvailable") == ("False", "NoQuorum")


@dataclass
class World:
    """Pods, an ensemble and an operator that can be killed between any two of its changes."""

    desired: int
    replicas: int
    request: Reconfiguration | None = None
    requests: list[Reconfiguration] = field(default_factory=list)
    pods: dict[int, bool] = field(default_factory=dict)
    """Ids of the members whose pods exist, and whether each is ready."""
    configs: list[EnsembleConfig] = field(default_factory=list)
    """All configurations that were ever committed."""
    known: dict[int, int] = field(default_factory=dict)
    """The index in `configs` of what each member knows."""

    @classmethod
    def of(cls, size: int) -> World:
        made = cls(size, size, pods=dict.fromkeys(range(1, size + 1), True))
        made.configs.append(config(0, *made.pods))
        made.known = dict.fromkeys(made.pods, 0)
        return made

    @property
    def now(self) -> EnsembleConfig:
        return self.configs[-1]

    def has_quorum(self, voting: frozenset[int]) -> bool:
        return sum(member in self.pods for member in voting) > len(voting) // 2

    def operator(self, changes: int) -> None:
        """Reconcile, and be killed after this number of changes."""
        answers = {member: self.configs[self.known[member]] for member, ready in self.pods.items() if ready}
        seen = observed(self.replicas, {})
        there = tuple(pod(NAMES[member - 1], names.ZOOKEEPER, ready=ready) for member, ready in self.pods.items())
        ensembles = {NAMES[member - 1]: answer for member, answer in answers.items()}
        step = next_ensemble_step(desired(self.desired), replace(seen, pods=there, ensembles=ensembles))
        if changes > 0:
            self.request = step.reconfiguration
            self.requests += [step.reconfiguration] if step.reconfiguration is not None else []
        if changes > 1:
            self.replicas = pods_of(step)

    def leader(self, request: Reconfiguration | None) -> None:
        """Carry a request out, which may be an old one, as ZooKeeper does: from its version only, with a quorum of the
        old and of the new members that have the data."""
        if request is None or request.version != self.now.version or not self.has_quorum(self.now.members):
            return
        new = frozenset(request.members)
        if sum(self.pods.get(member, False) for member in new) <= len(new) // 2:
            return
        self.configs.append(EnsembleConfig(self.now.version + 0x100, new))
        quorum = [member for member in sorted(new) if self.pods.get(member)][: len(new) // 2 + 1]
        self.known |= dict.fromkeys(quorum, len(self.configs) - 1)

    def kubernetes(self) -> None:
        """Create or delete one pod, if there are fewer or more than the StatefulSet has."""
        missing = [member for member in range(1, self.replicas + 1) if member not in self.pods]
        if missing:
            self.pods[missing[0]] = False
            self.known[missing[0]] = 0
        elif len(self.pods) > self.replicas:
            del self.pods[max(self.pods)]

    def restart(self, member: int) -> None:
        """Replace a pod by one that is not ready."""
        if member in self.pods:
            self.pods[member] = False

    def serve(self, member: int) -> None:
        """Let a member become ready with what the leader knows, if there is a quorum."""
        if member in self.pods and self.has_quorum(self.now.members):
            self.pods[member] = True
            self.known[member] = len(self.configs) - 1

    def check(self) -> None:
        assert all(member <= self.replicas for member in self.now.members), "a member's pod is removed after its vote"
        for old, new in zip(self.configs, self.configs[1:], strict=False):
            assert len(old.members ^ new.members) <= 1, "one member at a time"
        assert self.now.members


MEMBERS = st.integers(1, 5)
EVENTS = st.one_of(
    st.tuples(st.just("operator"), st.integers(0, 2)),
    st.tuples(st.just("leader"), st.integers(0, 20)),
    st.tuples(st.just("kubernetes"), st.just(0)),
    st.tuples(st.just("restart"), MEMBERS),
    st.tuples(st.just("serve"), MEMBERS),
    st.tuples(st.just("desire"), st.sampled_from([1, 3, 5])),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([1, 3, 5]), st.lists(EVENTS, max_size=60))
def test_any_interleaving_keeps_the_quorum_and_ends_with_the_desired_members(
    size: int, events: list[tuple[str, int]]
) -> None:
    world = World.of(size)
    for event, argument in events:
        match event:
            case "operator":
                world.operator(argument)
            case "leader":
                # A leader may read a request that is older than the present one.
                world.leader(world.requests[argument] if argument < len(world.requests) else world.request)
            case "kubernetes":
                world.kubernetes()
            case "restart":
                world.restart(argument)
            case "serve":
                world.serve(argument)
            case _:
                world.desired = argument
        world.check()
    for _ in range(40):
        world.kubernetes()
        for member in range(1, 6):
            world.serve(member)
        world.operator(2)
        world.check()
        world.leader(world.request)
        world.check()
    assert world.now.members == frozenset(range(1, world.desired + 1))
    assert (world.replicas, set(world.pods)) == (world.desired, set(world.now.members))


# ---- what members answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "clientPort=2181\nserverId=1\nserver.1=a:2888:3888:participant\nserver.2=b:2888:3888:participant;c:2181\n"
            "server.3=d:2888:3888:observer\nversion=10000000a\n",
            EnsembleConfig(0x10000000A, frozenset({1, 2})),
        ),
        ("server.1=a:2888:3888:participant\nversion=0\n", EnsembleConfig(0, frozenset({1}))),
        ("server.1=a:2888:3888:participant\n", None),
        ("server.1=a:2888:3888:observer\nversion=1\n", None),
        ("This ZooKeeper instance is not currently serving requests\n", None),
        ("conf is not executed because it is not in the whitelist.\n", None),
        ("", None),
    ],
)
def test_configuration_in_an_answer_to_conf(answer: str, expected: EnsembleConfig | None) -> None:
    assert parse_config(answer) == expected
