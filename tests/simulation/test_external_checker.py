"""The external checker detects each kind of broken history."""

from __future__ import annotations

import pytest
from migratory_protocol.positions import Position
from migratory_simulation.coverage import Coverage
from migratory_simulation.external_checker import ExternalChecker, Key, Violation

M = [Key("p", "t", number) for number in range(10)]
N = [Key("r", "t", number) for number in range(10)]


@pytest.fixture
def external() -> ExternalChecker:
    external = ExternalChecker(Coverage())
    external.group_of["t"] = 0
    external.history_begins(0, 100)
    return external


def show(external: ExternalChecker, position: tuple[int, int], key: Key) -> bool:
    return external.shown("b", "t", Position(*position), key.payload)


def deliver(external: ExternalChecker, position: tuple[int, int], key: Key) -> None:
    external.received("s", "t", Position(*position), key.payload, False)


def broken(number: int) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, match=f"invariant {number}")


def test_correct_history_passes(external: ExternalChecker) -> None:
    external.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    assert show(external, (100, 1), M[1])
    assert not show(external, (100, 1), M[1])
    deliver(external, (100, 1), M[1])
    deliver(external, (101, 2), M[2])
    external.receipt("s", "t", "truncated", Position(101, 4), 3, 4)
    deliver(external, (101, 5), M[5])
    external.acknowledges(M[5], Position(101, 5), True)
    assert external.behind() == []


def test_two_publications_at_one_position_are_a_violation(external: ExternalChecker) -> None:
    show(external, (100, 1), M[1])
    with broken(3):
        show(external, (100, 1), N[1])
    with broken(3):
        show(external, (101, 1), N[1])


def test_one_publication_at_two_positions_is_a_violation(external: ExternalChecker) -> None:
    show(external, (100, 1), M[1])
    with broken(4):
        show(external, (100, 2), M[1])


def test_publications_out_of_their_publishers_order_are_a_violation(external: ExternalChecker) -> None:
    show(external, (100, 2), M[2])
    with broken(6):
        show(external, (100, 3), M[1])
    with broken(6):
        show(external, (100, 1), M[3])
    show(external, (100, 1), N[3])


def test_falling_epochs_are_a_violation(external: ExternalChecker) -> None:
    show(external, (101, 2), M[1])
    with broken(2):
        show(external, (100, 3), M[2])


def test_epoch_outside_every_history_is_a_violation(external: ExternalChecker) -> None:
    with broken(5):
        show(external, (99, 1), M[1])


def test_current_position_that_is_not_committed_is_a_violation(external: ExternalChecker) -> None:
    external.named_current("b", "t", Position(100, 3))
    with broken(1):
        show(external, (101, 3), M[1])


def test_unreported_gaps_repeats_and_other_histories_are_violations(external: ExternalChecker) -> None:
    with broken(2):
        deliver(external, (100, 1), M[1])
    external.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    deliver(external, (100, 1), M[1])
    with broken(2):
        deliver(external, (100, 1), M[1])
    with broken(2):
        deliver(external, (100, 3), M[3])
    with broken(2):
        external.receipt("s", "t", "truncated", Position(100, 4), 3, 4)
    external.history_begins(0, 200)
    with broken(2):
        deliver(external, (200, 2), M[2])
    assert external.behind() == ["s t: still at 100:1 of an older history"]
    external.receipt("s", "t", "reset", Position(200, 0), 0, 0)
    deliver(external, (200, 1), M[1])  # a new history knows nothing of the old one's publishers
    assert external.behind() == []


def test_acknowledgement_of_an_uncommitted_publication_is_a_violation(external: ExternalChecker) -> None:
    with broken(1):
        external.acknowledges(M[1], Position(100, 1), False)
    show(external, (100, 1), N[1])
    with broken(3):
        external.acknowledges(M[1], Position(100, 1), True)


def test_subscriptions_that_lag_are_reported(external: ExternalChecker) -> None:
    external.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    show(external, (100, 1), M[1])
    assert external.behind() == ["s t: at 100:0, shown up to 100:1"]
