"""The verifier on records with deliberate faults: it finds and names every single one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_loadtest.records import (
    DeliveryRecord,
    GapRecord,
    PublicationRecord,
    SubscriberRecord,
    TopicRecord,
    read_records,
    write_records,
)
from migratory_loadtest.result import DeliveryProblem
from migratory_loadtest.verifier import Verification, verify
from migratory_protocol.positions import Position
from migratory_testing.accounts import double, drop, perfect, recount, rewrite, swap

Mutation = Callable[[TopicRecord, int, int], Position]


def only_problem(verification: Verification) -> DeliveryProblem:
    assert not verification.clean
    (problem,) = verification.problems
    return problem


def test_perfect_record_is_clean_and_its_sums_are_right() -> None:
    verification = verify(
        [perfect("bench/0", subscribers=3, publications=6), perfect("bench/1", subscribers=2, publications=4)]
    )
    assert verification.clean
    assert verification.problems == []
    assert (verification.acknowledged, verification.expected, verification.delivered, verification.received) == (
        10,
        26,
        26,
        26,
    )


@pytest.mark.parametrize(("mutate", "kind"), [(drop, "lost"), (double, "duplicate"), (swap, "reordered")])
@pytest.mark.parametrize("subscriber", [0, 1, 2])
@pytest.mark.parametrize("delivery", [0, 2, 4])
def test_single_fault_is_found_and_named(mutate: Mutation, kind: str, subscriber: int, delivery: int) -> None:
    record = perfect("bench/7")
    position = mutate(record, subscriber, delivery)
    problem = only_problem(verify([perfect("bench/6"), record]))
    assert (problem.kind, problem.topic, problem.subscriber) == (kind, "bench/7", subscriber)
    assert (problem.count, problem.positions) == (1, [str(position)])


def test_lost_last_delivery_is_found() -> None:
    record = perfect()
    position = drop(record, 1, 5)
    assert only_problem(verify([record])).positions == [str(position)]


def test_loss_is_attributed_to_the_last_broker() -> None:
    record = perfect()
    drop(record, 1, 2)
    assert verify([record]).lost_by_broker == {"broker-0": 1}


def test_subscriber_without_deliveries_lost_everything() -> None:
    record = perfect(publications=30)
    record.subscribers[0].runs = []
    problem = only_problem(verify([record]))
    assert (problem.count, len(problem.positions)) == (30, 20)


def test_unanswered_publication_may_be_delivered_or_not() -> None:
    record = perfect()
    record.unanswered = [PublicationRecord("late", 0, 7), PublicationRecord("later", 0, 8)]
    rewrite(record, 0, lambda entries: [*entries, DeliveryRecord(Position(2, 7), "late")])
    verification = verify([record])
    assert verification.clean
    assert (verification.unknown, verification.unanswered, verification.received, verification.delivered) == (
        1,
        2,
        19,
        18,
    )


@pytest.mark.parametrize("known_as_failed", [True, False])
def test_unknown_or_refused_publication_is_unexpected(known_as_failed: bool) -> None:
    record = perfect()
    if known_as_failed:
        record.failed = [PublicationRecord("refused", 0, 7)]
    rewrite(record, 2, lambda entries: [*entries, DeliveryRecord(Position(1, 7), "refused")])
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions, problem.subscriber) == ("unexpected", ["1:7"], 2)


def test_delivery_before_the_subscription_is_unexpected() -> None:
    record = perfect()
    record.subscribers[0].start = Position(1, 2)
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions) == ("unexpected", ["1:1", "1:2"])
    record.subscribers[0].runs = [(2, 6)]
    verification = verify([record])
    assert verification.clean
    assert verification.expected == 4 + 6 + 6


def test_two_contents_at_one_position_are_a_conflict() -> None:
    record = perfect(subscribers=2)
    record.unanswered = [PublicationRecord("one", 0, 7), PublicationRecord("two", 0, 8)]
    rewrite(record, 0, lambda entries: [*entries, DeliveryRecord(Position(1, 7), "one")])
    rewrite(record, 1, lambda entries: [*entries, DeliveryRecord(Position(1, 7), "two")])
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions) == ("conflict", ["1:7"])


def test_acknowledged_content_at_another_position_is_a_conflict() -> None:
    record = perfect(subscribers=1)
    rewrite(record, 0, lambda entries: [*entries[:5], DeliveryRecord(Position(2, 6), entries[5].digest)])
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions) == ("conflict", ["2:6"])


def test_content_at_two_positions_is_a_duplicate() -> None:
    record = perfect(subscribers=1)
    record.unanswered = [PublicationRecord("again", 0, 7)]
    rewrite(record, 0, lambda e: [*e, DeliveryRecord(Position(1, 7), "again"), DeliveryRecord(Position(2, 8), "again")])
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions) == ("duplicate", ["2:8"])


def test_reversed_publisher_order_is_reordered() -> None:
    record = perfect()
    first, second = record.acknowledged[1:3]
    record.acknowledged[1:3] = [
        PublicationRecord(first.digest, 0, second.number, first.position),
        PublicationRecord(second.digest, 0, first.number, second.position),
    ]
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.subscriber, problem.positions) == ("reordered", None, ["1:2"])


def test_acknowledgement_without_position_is_expected_by_content() -> None:
    record = perfect()
    sent = record.acknowledged[2]
    record.acknowledged[2] = PublicationRecord(sent.digest, sent.publisher, sent.number, None)
    assert verify([record]).clean
    drop(record, 0, 2)
    problem = only_problem(verify([record]))
    assert (problem.kind, problem.positions) == ("lost", ["unknown"])


@pytest.mark.parametrize(
    ("notice", "reported"),
    [
        (GapRecord("truncated", Position(1, 6), 2, 3), 2),
        (GapRecord("truncated", Position(1, 6), 3, 9), 1),
        (GapRecord("reset", Position(2, 0)), 2),
        (GapRecord("complete", Position(1, 6)), 0),
    ],
)
def test_loss_reported_by_a_receipt_is_a_loss_and_a_gap(notice: GapRecord, reported: int) -> None:
    record = perfect(subscribers=1)
    rewrite(record, 0, lambda entries: [entries[0], *entries[3:]])
    record.subscribers[0].notices = [notice]
    verification = verify([record])
    assert (verification.lost, verification.gaps, verification.clean) == (2, reported, False)


def test_subscriber_without_a_receipt_expects_nothing() -> None:
    record = perfect(subscribers=1)
    record.subscribers.append(SubscriberRecord(9, None))
    verification = verify([record])
    assert verification.clean
    assert verification.expected == 6


def test_records_of_two_workers_add_up() -> None:
    first, second = perfect(subscribers=2), perfect(subscribers=3)
    second.acknowledged = []
    first.add(second)
    assert [subscriber.transcript for subscriber in first.subscribers] == [0, 0, 1, 1, 1]
    verification = verify([first])
    assert verification.clean
    assert verification.expected == 30


def test_invalid_record_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "account.jsonl"
    write_records(path, [perfect()])
    with path.open("a") as file:
        file.write('{"topic": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_records(path))


@given(st.integers(0, 2**32), st.integers(0, 6))
def test_counts_equal_an_independent_count_of_random_faults(
    tmp_path_factory: pytest.TempPathFactory, seed: int, faults: int
) -> None:
    rng = random.Random(seed)
    records = [perfect(f"bench/{number}", subscribers=4, publications=8) for number in range(2)]
    for record in records:
        record.unanswered = [PublicationRecord(f"open/{number}", 0, 9 + number) for number in range(2)]
        for fault in range(faults):
            subscriber = rng.randrange(4)
            length = sum(1 for _ in record.deliveries(record.subscribers[subscriber]))
            fault_kind = rng.randrange(5)
            if fault_kind == 0 and length:
                drop(record, subscriber, rng.randrange(length))
            elif fault_kind == 1 and length:
                double(record, subscriber, rng.randrange(length))
            elif fault_kind == 2 and length > 1:
                swap(record, subscriber, rng.randrange(length - 1))
            elif fault_kind == 3:
                extra = DeliveryRecord(Position(1, 20 + fault), rng.choice(["open/0", "open/1", "never"]))
                rewrite(record, subscriber, lambda entries, extra=extra: [*entries, extra])  # type: ignore[misc]
            else:
                record.subscribers[subscriber].start = Position(1, rng.randrange(4))
    path = tmp_path_factory.mktemp("account") / "account.jsonl"
    write_records(path, records)
    verification = verify(read_records(path))
    counts = {name: getattr(verification, name) for name in recount(path)}
    assert counts == recount(path)
    assert verification.lost == verification.expected - verification.delivered
