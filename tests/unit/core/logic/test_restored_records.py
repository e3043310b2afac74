"""ZooKeeper comes back without its data: records are restored from the copies of the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from migratory_broker.core.logic.election.history import SurveyRound
from migratory_broker.core.logic.events import (
    DrainRequest,
    PeerReceived,
    RefusePeer,
    ZkChanged,
    ZkCommit,
    ZkCreate,
)
from migratory_broker.core.logic.membership.records import (
    GroupRecord,
    SourceEpoch,
    decode_group,
    rendezvous,
)
from migratory_protocol.peer import Activated, InventoryRequest, Prepare, Promise, Sync
from migratory_testing.brokers import Cluster, both_ends
from migratory_testing.zookeeper_loss import away, comes_back, publishes, publishing_without_one, reconnect
from msgspec.structs import replace


def test_coordinator_restores_the_record_and_numbers_on() -> None:
    """RESTORE: no publication waits, nobody takes over, and a takeover is possible afterwards."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    old, before = cluster.coordinator(), cluster.record()
    away(cluster)
    assert publishes(cluster, 2)
    prepared = len([message for _, _, message in cluster.sent if isinstance(message, Prepare)])
    comes_back(cluster)
    cluster.run(3.0)
    record = cluster.record()
    assert (record.history, record.first, record.owner[0]) == (before.history, before.first, old)
    assert record.activated
    assert record.epoch > before.epoch
    assert len([message for _, _, message in cluster.sent if isinstance(message, Prepare)]) == prepared
    assert all(cluster.logic(name).identity.losses == 1 for name in cluster.names)
    assert all(cluster[name].notes("zookeeper_data_lost") for name in cluster.names)
    assert publishes(cluster, 3)
    cluster.crash(old)
    cluster.run(6.0)
    assert cluster.record().owner[0] != old
    assert publishes(cluster, 4)
    survivor = cluster.running()[0]
    assert [text for _, text in cluster.delivered(survivor, "t")] == ["x1", "x2", "x3", "x4"]


def test_members_restore_the_record_of_a_dead_coordinator() -> None:
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    old, history = cluster.coordinator(), cluster.record().history
    away(cluster)
    cluster.crash(old)
    comes_back(cluster)
    cluster.run(8.0)
    assert cluster.record().history == history
    assert cluster.record().owner[0] != old
    assert publishes(cluster, 2)


def test_too_few_copies_wait_for_the_other_brokers() -> None:
    """RESTORE-COUNT: those that are away may hold a later epoch. When none does, the history is unknown."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    old, history = cluster.coordinator(), cluster.record().history
    one, other = cluster.others()
    away(cluster)
    comes_back(cluster, None, one)
    cluster.wall_ms = 1_000_000
    cluster.restart(other)
    cluster.run(20.0)
    assert "/groups/0" not in cluster.store.nodes
    reconnect(cluster, old)
    cluster.run(5.0)
    assert cluster.record().history == history
    assert publishes(cluster, 2)


@pytest.mark.parametrize("promised", [False, True])
def test_coordinator_restores_the_record_though_all_others_were_replaced(promised: bool) -> None:
    """RESTORE-COUNT: no later epoch was activated if the owner and q - 1 other members promised none. Regression: a
    new history began, and the coordinator acknowledged on in the old one."""
    cluster = Cluster(min_copies=1, on_history_loss="halt").up()
    assert publishes(cluster, 1)
    record = cluster.record()
    coordinator, others = record.owner[0], cluster.others()
    if promised:
        request = InventoryRequest(0, record.history, record.epoch + 1)
        cluster.give(coordinator, PeerReceived(others[0], (request,)))
    away(cluster)
    for name in others:
        cluster.crash(name)
    cluster.wall_ms = 1_000_000
    comes_back(cluster)
    cluster.start(*others)
    cluster.run(25.0)
    assert ("/groups/0" not in cluster.store.nodes) == promised
    if not promised:
        assert (cluster.record().history, cluster.record().owner) == (record.history, record.owner)
        assert publishes(cluster, 2)


@pytest.mark.parametrize(("clock", "first"), [(5_000_000, 5_000_000), (2 * 86_400_000, 0)])
def test_first_epoch_is_of_the_clock_that_is_furthest_ahead(clock: int, first: int) -> None:
    """FIRST-EPOCH: a clock that was set back does not begin a history below one that everybody has forgotten. A clock
    that is more than a day ahead is ignored and reported."""
    cluster = Cluster()
    writer, *others = rendezvous(0, cluster.names)
    cluster.start(writer)
    cluster.wall_ms = clock
    cluster.start(*others)
    cluster.run(8.0)
    record = cluster.record()
    assert record.owner[0] == writer
    assert first <= record.first < first + 60_000
    differ = {(note.fields["broker"], note.level) for note in cluster[writer].notes("clocks_differ")}
    assert differ == (set() if first else {(name, "warning") for name in others})


def test_epoch_that_may_not_be_activated_is_restored_like_any_other() -> None:
    """RESTORE-SOURCE: a takeover was under way, and nobody knows whether its epoch was activated."""
    cluster = Cluster(relist_delay=100.0).up()
    assert publishes(cluster, 1)
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Activated)
    stopped: list[str] = []

    def lost(broker: str, commit: ZkCommit) -> bool:
        done = commit.operations[0].path == "/groups/0" and len(commit.operations) == 2
        stopped.extend([broker] if done else [])
        return done

    cluster.lost = lost  # no activation
    cluster.crash(old)
    cluster.run(1.0)
    assert stopped
    away(cluster)
    cluster.lost = lambda broker, commit: False
    cluster.wall_ms = 1_000_000
    cluster.start(old)
    comes_back(cluster)
    written: list[GroupRecord] = []

    def watch(broker: str, commit: ZkCommit) -> bool:
        if isinstance(commit.operations[0], ZkCreate) and commit.operations[0].path == "/groups/0":
            written.append(decode_group(commit.operations[0].data))
        return False

    cluster.unknown = watch
    cluster.run(10.0)
    source = written[0].source
    assert source is not None
    assert ({name for name, _ in source.members}, source.copies) == ({*cluster.names} - {old}, 2)
    assert cluster.record().activated
    assert publishes(cluster, 2)


Held = Callable[[str, str, object], bool]


def unfinished(cluster: Cluster, hold: Held) -> tuple[str, int]:
    """Publish, and let the coordinator drain, so that another broker takes the group over. Empty ZooKeeper while
    messages are held by `hold`, which gets the sender, the receiver and the message, and the takeover is not activated.
    Return the candidate's name and its epoch."""
    assert publishes(cluster, 1)
    old, before = cluster.coordinator(), cluster.record()
    cluster.hold = hold
    cluster.lost = lambda broker, commit: commit.operations[0].path == "/groups/0" and len(commit.operations) == 2
    cluster.give(old, DrainRequest(60.0))
    cluster.run(0.3)
    record = cluster.record()
    assert (record.epoch, record.activated) == (before.epoch + 1, False)
    away(cluster)
    cluster.lost = lambda broker, commit: False
    cluster.wall_ms = 1_000_000
    comes_back(cluster)
    return record.owner[0], record.epoch


def test_history_outlives_one_member_of_an_epoch_that_may_not_be_activated() -> None:
    """RESTORE-SOURCE: one broker of three is replaced before it has promised the restored epoch. Regression: all
    members had to promise it, and a new history began."""
    cluster = Cluster(relist_delay=100.0).up()
    history = cluster.record().history
    candidate, _ = unfinished(cluster, lambda sender, receiver, message: isinstance(message, Activated))
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Prepare, Sync))
    while "/groups/0" not in cluster.store.nodes:
        cluster.run(0.1)
    assert not cluster.record().activated
    cluster.restart(candidate)
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(25.0)
    assert cluster.record().history == history
    assert publishes(cluster, 2)
    assert [text for _, text in cluster.delivered(cluster.coordinator(), "t")] == ["x1", "x2"]


def only_candidate_synced(cluster: Cluster) -> tuple[str, int]:
    """Let ZooKeeper lose a takeover whose candidate alone is synced to its epoch, and end the candidate once the record
    is restored from that epoch. Return the candidate's name and its epoch."""
    candidate, epoch = unfinished(cluster, lambda sender, receiver, message: isinstance(message, Sync))
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Sync, Prepare, Promise))
    while "/groups/0" not in cluster.store.nodes:
        cluster.run(0.1)
    source = cluster.record().source
    assert source is not None
    assert source.epoch == epoch
    cluster.crash(candidate)
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    return candidate, epoch


def test_epoch_that_never_was_activated_is_not_waited_for() -> None:
    """RESTORE-AGAIN: its only synced member is lost. Enough others answer, none of them is synced, and the record is
    restored from the epoch before."""
    cluster = Cluster(relist_delay=100.0).up()
    before = cluster.record()
    _, epoch = only_candidate_synced(cluster)
    cluster.run(8.0)
    record = cluster.record()
    assert (record.history, record.activated) == (before.history, True)
    written = [note.fields["reason"] for name in cluster.running() for note in cluster[name].notes("record_written")]
    assert "restore" in written
    assert all(cluster.logic(name).groups[0].replica.synced > epoch for name in cluster.running())
    assert publishes(cluster, 2)
    assert [text for _, text in cluster.delivered(cluster.coordinator(), "t")] == ["x1", "x2"]


def test_promise_of_the_only_synced_member_is_waited_for() -> None:
    """RESTORE-AGAIN: enough others have answered before it, but the survey finds it, and no other source is chosen."""
    cluster = Cluster(relist_delay=100.0).up()
    history = cluster.record().history
    candidate, epoch = unfinished(cluster, lambda sender, receiver, message: isinstance(message, Sync))
    cluster.give(candidate, DrainRequest(60.0))  # so that the third broker restores the record
    cluster.hold = lambda sender, receiver, message: isinstance(message, Prepare) and receiver == candidate
    cluster.run(3.0)
    record = cluster.record()
    assert record.owner[0] != candidate
    assert not record.activated
    assert record.source is not None
    assert record.source.epoch == epoch
    waits = {note.fields["reason"] for note in cluster[record.owner[0]].notes("group_waits")}
    assert waits == {"waiting for the promise of a broker that holds the log of the last epoch"}
    cluster.run(1.0)
    cluster.give(record.owner[0], ZkChanged("/coordinators"))  # the listing shows this broker's own ephemeral
    cluster.settle()
    assert {cluster.logic(record.owner[0]).election.states[0].waiting} == waits
    cluster.release()
    cluster.run(8.0)
    assert cluster.record().history == history
    assert publishes(cluster, 2)


@pytest.mark.parametrize("rule", ["reset", "halt"])
def test_history_is_lost_with_the_copies_of_both_epochs(rule: str) -> None:
    """RESTORE-AGAIN: the epoch before the one that never was activated has lost too many members as well. The group
    does not wait for ever: a new history begins after 3 sessions."""
    cluster = Cluster(relist_delay=100.0, on_history_loss=rule).up()
    before = cluster.record()
    candidate, _ = only_candidate_synced(cluster)
    cluster.start(candidate)
    cluster.run(0.2)
    survivors = [cluster.logic(name).groups[0] for name in cluster.running() if name != candidate]
    for group in survivors:  # as if they had been replaced, and listed again, between the two epochs
        group.replica.view = None
    cluster.run(8.0)
    assert cluster.record().history == before.history
    cluster.run(12.0)
    assert (cluster.record().history == before.history) == (rule == "halt")
    if rule == "reset":
        assert publishes(cluster, 2)
    else:
        assert any(cluster[name].notes("history_lost_halted") for name in cluster.running())


def test_promises_without_a_copy_restore_nothing() -> None:
    """RESTORE-COUNT: the brokers hold promises and no copy, so the history is unknown."""
    cluster = Cluster(on_history_loss="halt").up()
    away(cluster)
    for name in cluster.names:
        group = cluster.logic(name).groups[0]
        group.term = group.replica.view = None
    comes_back(cluster)
    cluster.run(5.0)
    assert "/groups/0" not in cluster.store.nodes
    waiting = {cluster.logic(name).election.states[0].waiting for name in cluster.names}
    assert "history unknown: ZooKeeper lost its record, and too few brokers hold copies" in waiting


@pytest.mark.unmeasured
def test_epoch_to_which_only_a_learner_is_synced_is_not_restored() -> None:
    """RESTORE-COUNT: no publication was committed in it, and no member of its list could promise its log. Regression:
    the candidate dropped its own log, and stopped."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3, relist_delay=100.0).up()
    assert publishes(cluster, 1)
    old, history = cluster.coordinator(), cluster.record().history
    cluster.hold = lambda sender, receiver, message: isinstance(message, Sync) and receiver != old
    cluster.crash(old)
    cluster.run(0.3)
    candidate, epoch = cluster.record().owner[0], cluster.record().epoch
    cluster.start(old)
    cluster.run(0.5)
    synced = [name for name in cluster.running() if cluster.logic(name).groups[0].replica.synced == epoch]
    assert sorted(synced) == sorted([candidate, old])
    assert (old, cluster.logic(old).incarnation) not in cluster.record().members
    away(cluster)
    cluster.crash(candidate)
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    comes_back(cluster)
    cluster.run(15.0)
    assert cluster.record().history == history
    assert publishes(cluster, 2)
    assert [text for _, text in cluster.delivered(cluster.coordinator(), "t")][-2:] == ["x1", "x2"]


def test_source_of_a_restored_record_is_not_below_the_epoch_of_a_learner() -> None:
    """RESTORE-COUNT: one of the two members of an activated epoch follows a later, unfinished one as a learner, and the
    other one is lost. Regression: the record was restored from the epoch before, by a broker that lacked a publication
    which was acknowledged, and its position was given to another one."""
    cluster, coordinator, back, follower = publishing_without_one()
    cluster.cut(follower, coordinator)  # the next list is activated without the follower
    cluster.start(back)
    cluster.run(3.0)
    assert cluster.record().activated
    reference = cluster.publish(coordinator, "t", "x2", id=2)
    cluster.run(0.3)
    assert not cluster.answers[reference].code
    cluster.zookeeper(False, follower)  # so that the broker that came back is the candidate
    cluster.hold = lambda sender, receiver, message: isinstance(message, Sync) and receiver == follower
    cluster.cut(coordinator, back)
    for _ in range(60):
        cluster.run(0.1)
        if cluster.record().owner[0] == back:
            break
    unfinished_epoch = cluster.record().epoch
    cluster.cuts.discard(both_ends(coordinator, back))
    cluster.run(0.3)
    replica = cluster.logic(coordinator).groups[0].replica
    assert (replica.synced, replica.listed) == (unfinished_epoch, False)
    cluster.zookeeper(False)
    cluster.run(0.1)
    cluster.crash(back)
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    cluster.heal()
    cluster.run(1.0)
    comes_back(cluster, None, follower)
    while "/groups/0" not in cluster.store.nodes:
        cluster.run(0.1)
    source = cluster.record().source
    assert source is not None
    assert source.epoch == unfinished_epoch
    assert (back, 100) not in source.members
    reconnect(cluster, coordinator)
    cluster.wall_ms = 2_000_000
    cluster.start(back)
    cluster.run(12.0)
    assert publishes(cluster, 3)
    for name in cluster.running():
        assert not cluster[name].of(RefusePeer)
    assert [text for _, text in cluster.delivered(cluster.coordinator(), "t")] == ["x1", "x2", "x3"]


@pytest.mark.parametrize("listed", [False, True])
def test_broker_that_is_not_asked_is_not_waited_for(listed: bool) -> None:
    """RESTORE-AGAIN: only a broker that the refuted source lists will promise. One that is synced to its epoch as a
    learner is asked when the epoch before, which lists it, is the source's list."""
    cluster = Cluster().up()
    me, (one, other) = cluster.coordinator(), cluster.others()
    histories = cluster.logic(me).histories
    copy = histories.holdings(1, [0]).copies[0]
    epoch = copy.synced + 1
    identifiers = {broker[0]: broker for broker in copy.members}
    lost = (other, identifiers[other][1] - 1)
    unfinished_copy = replace(
        copy, synced=epoch, owner=lost, members=[identifiers[me], lost], activated=False, leads=False
    )
    survey = SurveyRound([0], set(), cluster.now)
    survey.answered = [identifiers[me], identifiers[one]]
    survey.promised[0] = dict.fromkeys(survey.answered, epoch)
    survey.copies[0] = {identifiers[me]: copy, identifiers[one]: unfinished_copy}
    members = [*([identifiers[one]] if listed else []), *unfinished_copy.members]
    refuted = SourceEpoch(epoch, members, 2, lost)
    decision = histories._judge(0, survey, refuted)
    if listed:
        assert decision.action == "wait"
    else:
        assert decision.action == "restore"
        assert decision.source == SourceEpoch(epoch, copy.members, copy.copies, copy.owner)


def test_restored_record_needs_enough_brokers_to_list() -> None:
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    coordinator = cluster.coordinator()
    away(cluster)
    election = cluster.logic(coordinator).election
    copy = cluster.logic(coordinator).histories.holdings(1, [0]).copies[0]
    cluster.logic(coordinator).ctx.links.clear()
    election._restore(0, copy, None, 1)
    assert election.states[0].waiting == "only 1 brokers can be listed"
