"""Preflight checks: platform, disk space and file descriptors."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from migratory_local import LocalError
from migratory_local.processes.preflight import check_disk_space, check_platform, raise_descriptor_limit

Usage = namedtuple("Usage", "total used free")


def test_other_platform_than_linux_is_an_error() -> None:
    check_platform("linux")
    with pytest.raises(LocalError, match=r"needs Linux .* not darwin"):
        check_platform("darwin")


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_disk_space(tmp_path / "not" / "yet", 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 99, 2**20))
    with pytest.raises(LocalError, match=r"1 MiB are free, but 72 MiB are needed; free some space or choose --workdir"):
        check_disk_space(tmp_path, 3)


def test_descriptor_limit_is_raised_within_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 5000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    raise_descriptor_limit(100)
    assert limits == [1024, 5000]
    raise_descriptor_limit(4000)
    assert limits == [4300, 5000]
    with pytest.raises(
        LocalError, match=r"may open 5,000 files .* 5,301 may be needed for 5,001 .*\(at most 4,700 per broker\)"
    ):
        raise_descriptor_limit(5001)
    limits[1] = resource.RLIM_INFINITY
    raise_descriptor_limit(1_000_000)
    assert limits[0] == 1_000_300
