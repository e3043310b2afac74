"""A result that can't be written is an error with the option and the file, not a traceback after a long run."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_cli.results import NotWritten, check_result_file, writing


def test_a_file_that_cannot_be_opened_is_named_before_the_work(tmp_path: Path) -> None:
    check_result_file("--json", None)
    check_result_file("--json", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "old.json").write_text("kept until there is a new one")
    check_result_file("--json", tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept until there is a new one"
    with pytest.raises(NotWritten, match=r"--json: .*/none/x: No such file or directory"):
        check_result_file("--json", tmp_path / "none" / "x")
    with pytest.raises(NotWritten, match=r"--json: .*: Is a directory"):
        check_result_file("--json", tmp_path)


def test_a_full_disk_is_named_afterwards() -> None:
    with (
        pytest.raises(NotWritten, match="--account: /dev/full: No space left on device") as raised,
        writing("--account", Path("/dev/full")),
    ):
        Path("/dev/full").write_text("x")
    assert raised.value.exit_code == 2


def test_what_is_no_error_of_a_file_is_not_hidden() -> None:
    with pytest.raises(KeyError), writing("--json", Path("x")):
        raise KeyError
