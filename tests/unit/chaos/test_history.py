"""Files of histories are read as they were written, and a file that was cut off or altered is rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from migratory_chaos.processes.history import (
    Acknowledged,
    BadHistory,
    Began,
    Delivered,
    Failed,
    Gap,
    HistoryFile,
    Sent,
    Stream,
    Submitted,
    read,
)
from migratory_testing.histories import TOPIC, content

PUBLISHED = (
    Submitted(1, content(1), 10), Acknowledged(1, (1, 1), 12), Submitted(2, content(2), 13), Acknowledged(2, None, 14),
    Submitted(3, content(3), 15), Failed(3, "timeout", 16), Submitted(4, content(4), 17),
)  # fmt: skip
RECEIVED = (Began((1, 0)), Delivered((1, 1), content(1)), Gap("truncated", (1, 2), 2, 2))


def write(folder: Path) -> None:
    for name, events in (("p-p", PUBLISHED), ("s-s", RECEIVED)):
        file = HistoryFile(folder, TOPIC, name)
        for event in events:
            file.add(event)
        file.close()


def test_history_is_read_as_written(tmp_path: Path) -> None:
    write(tmp_path)
    (history,) = read(tmp_path)
    assert history.topic == TOPIC
    assert history.publishers["p"] == [
        Sent(1, content(1), 10, True, (1, 1), "", 12),
        Sent(2, content(2), 13, True, None, "", 14),
        Sent(3, content(3), 15, False, None, "timeout", 16),
        Sent(4, content(4), 17),
    ]
    assert history.subscribers["s"] == Stream((1, 0), [Delivered((1, 1), content(1)), Gap("truncated", (1, 2), 2, 2)])


def break_line(path: Path, number: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_text("".join(lines))


@pytest.mark.parametrize(
    ("file", "number", "line"),
    [
        ("p-p", 2, '["a",9,[1,1],12]\n'),
        ("p-p", 2, '["a",1,["x",1],12]\n'),
        ("p-p", 3, '["s",1,"00",13]\n'),
        ("p-p", 4, '["a",1,[1,1],14]\n'),
        ("p-p", 1, '["s",1]\n'),
        ("s-s", 1, '["d",[1,1]]\n'),
        ("s-s", 2, '["b",[1,0]]\n'),
        ("s-s", 2, '["s",1,"00",13]\n'),
        ("s-s", 2, '["e",1]\n'),
        ("s-s", 2, "x\n"),
    ],
)
def test_history_names_an_invalid_line(tmp_path: Path, file: str, number: int, line: str) -> None:
    write(tmp_path)
    break_line(tmp_path / TOPIC / file, number, lambda _: line)
    with pytest.raises(BadHistory, match=f"{file}, line {number}"):
        list(read(tmp_path))


@pytest.mark.parametrize("file", ["p-p", "s-s"])
def test_history_rejects_a_file_that_lacks_lines(tmp_path: Path, file: str) -> None:
    write(tmp_path)
    path = tmp_path / TOPIC / file
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        with pytest.raises(BadHistory, match=f"{file}, line {max(count, 1)}: .* is no end"):
            list(read(tmp_path))
    path.write_text(text[:-1])  # not even its last line is complete
    with pytest.raises(BadHistory, match=f"{file}, line {len(lines)}: .* is no end"):
        list(read(tmp_path))
    path.write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(BadHistory, match=f"no end after {len(lines) - 2} lines"):
        list(read(tmp_path))
    path.write_text(text + lines[0])
    with pytest.raises(BadHistory, match="is no end"):
        list(read(tmp_path))


def test_history_rejects_a_clock_that_goes_back(tmp_path: Path) -> None:
    write(tmp_path)
    break_line(tmp_path / TOPIC / "p-p", 4, lambda line: line.replace(",14]", ",11]"))
    with pytest.raises(BadHistory, match=r"p-p, line 4: .* the clock went back, from 13"):
        list(read(tmp_path))


def test_history_rejects_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="no histories"):
        list(read(tmp_path / "none"))
    (tmp_path / TOPIC).mkdir()
    (tmp_path / TOPIC / "strange").write_text("")
    with pytest.raises(BadHistory, match="strange"):
        list(read(tmp_path))
