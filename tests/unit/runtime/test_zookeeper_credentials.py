"""The brokers' password in ZooKeeper: what a file may hold, and that nothing prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.security import OPEN_ACL_UNSAFE
from migratory_broker.runtime.config import CredentialsSection
from migratory_broker.runtime.errors import ZooKeeperError
from migratory_broker.runtime.zookeeper import MAX_PASSWORD, ZooKeeperCredentials


def load(file: Path, content: bytes | None, *, protect: bool = True) -> ZooKeeperCredentials:
    if content is not None:
        file.write_bytes(content)
    return ZooKeeperCredentials.load(CredentialsSection(user="market", password_file=str(file), protect=protect))


@pytest.mark.parametrize("content", [b"a: b", b"a: b\n", b"a: b\r\n"])
def test_password_is_the_line_without_its_end(tmp_path: Path, content: bytes) -> None:
    credentials = load(tmp_path / "password", content)
    assert credentials.password == "a: b"
    assert "a: b" not in repr(credentials)


def test_acl_is_for_the_user_alone_unless_nodes_stay_open(tmp_path: Path) -> None:
    (acl,) = load(tmp_path / "password", b"secret").acl
    assert (acl.perms, acl.id.scheme) == (31, "digest")
    assert acl.id.id.startswith("market:")
    assert "secret" not in acl.id.id
    assert load(tmp_path / "password", b"secret", protect=False).acl == OPEN_ACL_UNSAFE


@pytest.mark.parametrize("content", [None, b"", b"\n", b"a\nb", "é".encode(), b"a" * (MAX_PASSWORD + 1)])
def test_file_without_a_password_is_refused_without_being_printed(tmp_path: Path, content: bytes | None) -> None:
    with pytest.raises(
        ZooKeeperError, match=r"zookeeper.credentials.passwordFile: .*/password (cannot|has no)"
    ) as raised:
        load(tmp_path / "password", content)
    assert raised.value.code == 4
    assert "aaa" not in str(raised.value)
