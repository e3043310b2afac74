"""The ledger names each kind of broken history. A checker that can't fail checks nothing."""

from __future__ import annotations

import pytest
from migratory_protocol.positions import Position
from migratory_simulation.coverage import Coverage
from migratory_simulation.ledger import Key, Ledger, Violation

M = [Key("p", "t", number) for number in range(10)]
N = [Key("r", "t", number) for number in range(10)]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(Coverage())
    ledger.group_of["t"] = 0
    ledger.history_begins(0, 100)
    return ledger


def show(ledger: Ledger, position: tuple[int, int], key: Key) -> bool:
    return ledger.shown("b", "t", Position(*position), key.payload)


def deliver(ledger: Ledger, position: tuple[int, int], key: Key) -> None:
    ledger.received("s", "t", Position(*position), key.payload, False)


def broken(number: int) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, match=f"invariant {number}")


def test_a_good_history_passes(ledger: Ledger) -> None:
    ledger.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    assert show(ledger, (100, 1), M[1])
    assert not show(ledger, (100, 1), M[1])
    deliver(ledger, (100, 1), M[1])
    deliver(ledger, (101, 2), M[2])
    ledger.receipt("s", "t", "truncated", Position(101, 4), 3, 4)
    deliver(ledger, (101, 5), M[5])
    ledger.acknowledges(M[5], Position(101, 5), True)
    assert ledger.behind() == []


def test_two_publications_at_one_position(ledger: Ledger) -> None:
    show(ledger, (100, 1), M[1])
    with broken(3):
        show(ledger, (100, 1), N[1])
    with broken(3):
        show(ledger, (101, 1), N[1])


def test_one_publication_at_two_positions(ledger: Ledger) -> None:
    show(ledger, (100, 1), M[1])
    with broken(4):
        show(ledger, (100, 2), M[1])


def test_a_publishers_order(ledger: Ledger) -> None:
    show(ledger, (100, 2), M[2])
    with broken(6):
        show(ledger, (100, 3), M[1])
    with broken(6):
        show(ledger, (100, 1), M[3])
    show(ledger, (100, 1), N[3])


def test_epochs_that_fall(ledger: Ledger) -> None:
    show(ledger, (101, 2), M[1])
    with broken(2):
        show(ledger, (100, 3), M[2])


def test_an_epoch_of_no_history(ledger: Ledger) -> None:
    with broken(5):
        show(ledger, (99, 1), M[1])


def test_a_position_named_current_that_was_not_committed(ledger: Ledger) -> None:
    ledger.told("b", "t", Position(100, 3))
    with broken(1):
        show(ledger, (101, 3), M[1])


def test_holes_repeats_and_other_histories(ledger: Ledger) -> None:
    with broken(2):
        deliver(ledger, (100, 1), M[1])
    ledger.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    deliver(ledger, (100, 1), M[1])
    with broken(2):
        deliver(ledger, (100, 1), M[1])
    with broken(2):
        deliver(ledger, (100, 3), M[3])
    with broken(2):
        ledger.receipt("s", "t", "truncated", Position(100, 4), 3, 4)
    ledger.history_begins(0, 200)
    with broken(2):
        deliver(ledger, (200, 2), M[2])
    assert ledger.behind() == ["s t: still at 100:1 of an older history"]
    ledger.receipt("s", "t", "reset", Position(200, 0), 0, 0)
    deliver(ledger, (200, 1), M[1])  # a new history knows nothing of the old one's publishers
    assert ledger.behind() == []


def test_acknowledgements(ledger: Ledger) -> None:
    with broken(1):
        ledger.acknowledges(M[1], Position(100, 1), False)
    show(ledger, (100, 1), N[1])
    with broken(3):
        ledger.acknowledges(M[1], Position(100, 1), True)


def test_who_is_behind(ledger: Ledger) -> None:
    ledger.receipt("s", "t", "complete", Position(100, 0), 0, 0)
    show(ledger, (100, 1), M[1])
    assert ledger.behind() == ["s t: at 100:0, shown up to 100:1"]
