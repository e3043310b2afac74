"""The edge's scenarios: commands with expected transcripts in `edge/`. migratory_testing.edgescript has the syntax."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_testing.edgescript import EdgeScript
from migratory_testing.scenarios import check, play

FILES = sorted(Path(__file__).parent.joinpath("edge").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript_is_as_expected(path: Path, request: pytest.FixtureRequest) -> None:
    check(path, EdgeScript(), rewrite=request.config.getoption("--rewrite"))


def test_changed_transcript_fails_and_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("# a comment\n> config heartbeat=3\n\n> admission fenced\n  something else\n> open a\n")
    with pytest.raises(AssertionError, match="something else"):
        check(path, EdgeScript(), rewrite=False)
    check(path, EdgeScript(), rewrite=True)
    text = path.read_text()
    assert "something else" not in text
    assert "a < close frame 4004" in text
    assert text.startswith("# a comment\n> config heartbeat=3\n\n> admission fenced\n> open a\n")
    assert play(text, EdgeScript()) == text
    check(path, EdgeScript(), rewrite=False)
