"""The verifier on histories that were broken on purpose: each single fault is found and named."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_loadtest.account import Entry, Notice, Sent, SubscriberAccount, TopicAccount, read, write
from migratory_loadtest.result import Problem
from migratory_loadtest.verifier import Verdict, verify
from migratory_protocol.positions import Position
from migratory_testing.accounts import double, drop, perfect, recount, rewrite, swap

Break = Callable[[TopicAccount, int, int], Position]


def only_problem(verdict: Verdict) -> Problem:
    assert not verdict.clean
    (problem,) = verdict.problems
    return problem


def test_a_perfect_history_is_clean_and_its_sums_are_right() -> None:
    verdict = verify(
        [perfect("bench/0", subscribers=3, publications=6), perfect("bench/1", subscribers=2, publications=4)]
    )
    assert verdict.clean
    assert verdict.problems == []
    assert (verdict.acknowledged, verdict.expected, verdict.delivered, verdict.received) == (10, 26, 26, 26)


@pytest.mark.parametrize(("breaking", "kind"), [(drop, "lost"), (double, "duplicate"), (swap, "reordered")])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("delivery", [0, 2, 4])
def test_one_broken_delivery_is_found_and_named(breaking: Break, kind: str, place: int, delivery: int) -> None:
    account = perfect("bench/7")
    position = breaking(account, place, delivery)
    problem = only_problem(verify([perfect("bench/6"), account]))
    assert (problem.kind, problem.topic, problem.subscriber) == (kind, "bench/7", place)
    assert (problem.count, problem.positions) == (1, [str(position)])


def test_the_last_delivery_lost_is_found_too() -> None:
    account = perfect()
    position = drop(account, 1, 5)
    assert only_problem(verify([account])).positions == [str(position)]


def test_a_loss_is_put_down_to_the_last_broker() -> None:
    account = perfect()
    drop(account, 1, 2)
    assert verify([account]).lost_by_broker == {"broker-0": 1}


def test_a_subscriber_that_got_nothing_lost_everything() -> None:
    account = perfect(publications=30)
    account.subscribers[0].runs = []
    problem = only_problem(verify([account]))
    assert (problem.count, len(problem.positions)) == (30, 20)


def test_what_was_never_answered_may_come_or_not() -> None:
    account = perfect()
    account.unanswered = [Sent("late", 0, 7), Sent("later", 0, 8)]
    rewrite(account, 0, lambda entries: [*entries, Entry(Position(2, 7), "late")])
    verdict = verify([account])
    assert verdict.clean
    assert (verdict.unknown, verdict.unanswered, verdict.received, verdict.delivered) == (1, 2, 19, 18)


@pytest.mark.parametrize("known_as_failed", [True, False])
def test_what_was_never_published_or_was_refused_must_not_come(known_as_failed: bool) -> None:
    account = perfect()
    if known_as_failed:
        account.failed = [Sent("refused", 0, 7)]
    rewrite(account, 2, lambda entries: [*entries, Entry(Position(1, 7), "refused")])
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions, problem.subscriber) == ("unexpected", ["1:7"], 2)


def test_what_came_before_the_subscription_is_neither_owed_nor_allowed() -> None:
    account = perfect()
    account.subscribers[0].start = Position(1, 2)
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions) == ("unexpected", ["1:1", "1:2"])
    account.subscribers[0].runs = [(2, 6)]
    verdict = verify([account])
    assert verdict.clean
    assert verdict.expected == 4 + 6 + 6


def test_two_contents_at_one_position_are_a_conflict_even_among_unanswered_ones() -> None:
    account = perfect(subscribers=2)
    account.unanswered = [Sent("one", 0, 7), Sent("two", 0, 8)]
    rewrite(account, 0, lambda entries: [*entries, Entry(Position(1, 7), "one")])
    rewrite(account, 1, lambda entries: [*entries, Entry(Position(1, 7), "two")])
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions) == ("conflict", ["1:7"])


def test_an_acknowledged_content_at_another_position_is_a_conflict() -> None:
    account = perfect(subscribers=1)
    rewrite(account, 0, lambda entries: [*entries[:5], Entry(Position(2, 6), entries[5].digest)])
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions) == ("conflict", ["2:6"])


def test_a_content_numbered_twice_is_a_duplicate_to_its_subscriber() -> None:
    account = perfect(subscribers=1)
    account.unanswered = [Sent("again", 0, 7)]
    rewrite(account, 0, lambda e: [*e, Entry(Position(1, 7), "again"), Entry(Position(2, 8), "again")])
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions) == ("duplicate", ["2:8"])


def test_a_publisher_whose_order_was_turned_is_reordered() -> None:
    account = perfect()
    first, second = account.acknowledged[1:3]
    account.acknowledged[1:3] = [
        Sent(first.digest, 0, second.number, first.position),
        Sent(second.digest, 0, first.number, second.position),
    ]
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.subscriber, problem.positions) == ("reordered", None, ["1:2"])


def test_an_acknowledgement_without_position_is_owed_by_content() -> None:
    account = perfect()
    sent = account.acknowledged[2]
    account.acknowledged[2] = Sent(sent.digest, sent.publisher, sent.number, None)
    assert verify([account]).clean
    drop(account, 0, 2)
    problem = only_problem(verify([account]))
    assert (problem.kind, problem.positions) == ("lost", ["unknown"])


@pytest.mark.parametrize(
    ("notice", "told"),
    [
        (Notice("truncated", Position(1, 6), 2, 3), 2),
        (Notice("truncated", Position(1, 6), 3, 9), 1),
        (Notice("reset", Position(2, 0)), 2),
        (Notice("complete", Position(1, 6)), 0),
    ],
)
def test_a_loss_that_a_receipt_told_of_is_a_loss_and_a_gap(notice: Notice, told: int) -> None:
    account = perfect(subscribers=1)
    rewrite(account, 0, lambda entries: [entries[0], *entries[3:]])
    account.subscribers[0].notices = [notice]
    verdict = verify([account])
    assert (verdict.lost, verdict.gaps, verdict.clean) == (2, told, False)


def test_a_subscriber_without_a_receipt_is_owed_nothing() -> None:
    account = perfect(subscribers=1)
    account.subscribers.append(SubscriberAccount(9, None))
    verdict = verify([account])
    assert verdict.clean
    assert verdict.expected == 6


def test_accounts_of_two_workers_add_up() -> None:
    one, two = perfect(subscribers=2), perfect(subscribers=3)
    two.acknowledged = []
    one.add(two)
    assert [subscriber.transcript for subscriber in one.subscribers] == [0, 0, 1, 1, 1]
    verdict = verify([one])
    assert verdict.clean
    assert verdict.expected == 30


def test_a_file_that_is_no_account_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "account.jsonl"
    write(path, [perfect()])
    with path.open("a") as file:
        file.write('{"topic": 1}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read(path))


@given(st.integers(0, 2**32), st.integers(0, 6))
def test_totals_equal_an_independent_count_of_arbitrarily_broken_histories(
    tmp_path_factory: pytest.TempPathFactory, seed: int, faults: int
) -> None:
    chance = random.Random(seed)
    accounts = [perfect(f"bench/{number}", subscribers=4, publications=8) for number in range(2)]
    for account in accounts:
        account.unanswered = [Sent(f"open/{number}", 0, 9 + number) for number in range(2)]
        for fault in range(faults):
            place = chance.randrange(4)
            length = sum(1 for _ in account.deliveries(account.subscribers[place]))
            what = chance.randrange(5)
            if what == 0 and length:
                drop(account, place, chance.randrange(length))
            elif what == 1 and length:
                double(account, place, chance.randrange(length))
            elif what == 2 and length > 1:
                swap(account, place, chance.randrange(length - 1))
            elif what == 3:
                extra = Entry(Position(1, 20 + fault), chance.choice(["open/0", "open/1", "never"]))
                rewrite(account, place, lambda entries, extra=extra: [*entries, extra])  # type: ignore[misc]
            else:
                account.subscribers[place].start = Position(1, chance.randrange(4))
    path = tmp_path_factory.mktemp("account") / "account.jsonl"
    write(path, accounts)
    verdict = verify(read(path))
    found = {name: getattr(verdict, name) for name in recount(path)}
    assert found == recount(path)
    assert verdict.lost == verdict.expected - verdict.delivered
