"""All users of one server."""

import json
import logging
import os
from pathlib import Path

import pytest

from mailboat.config.security import SecurityConfig
from mailboat.disk.real import RealDisk
from mailboat.errors import ConfigError, DamagedStoreError
from mailboat.security.configured_users import inner_credentials
from mailboat.security.directory import Directory
from mailboat.security.quotas import Quotas
from mailboat.security.user_records import PreviousPassword, UserRecord
from mailboat.testing.faulty_disk import Fault, FaultyDisk
from mailboat.testing.simulated_disk import SimulatedDisk

SECRET = "planted-secret"
INITIAL = json.dumps({"username": "first", "password": SECRET})
INNER = json.dumps({"accessKey": "inner", "secretKey": SECRET})


def directory(
    tmp_path: Path, *, initial: str = INITIAL, inner: str = "", folder: str = "", acl: str = ""
) -> Directory:
    """Open the users of a server."""
    config = SecurityConfig(
        authentication_enabled=True,
        init_authentication_user=initial,
        inner_client_authentication_credentials=inner,
        auth_users_path=folder,
        acl_enable=bool(acl),
        plain_acl_file=acl,
    )
    opened = Directory(config, RealDisk(), f"{tmp_path}/store/mailboat/users.json")
    opened.load()
    return opened


def write(folder: Path, user: str, password: str = SECRET, **fields: str) -> None:
    """Write the file of one user."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({"username": user, "password": password, **fields})
    (folder / f"{user}.json").write_text(text)


def test_the_initial_user_is_made_once(tmp_path: Path) -> None:
    """What became of it later counts, whatever the setting says; a start writes nothing."""
    users = directory(tmp_path)
    assert list(tmp_path.iterdir()) == []
    first = users.get("first")
    assert first is not None
    assert first.is_super
    assert first.secrets == (SECRET.encode(),)
    changed = {"first": UserRecord("first", "another-one", is_super=True)}
    users.save(changed)
    users.put(changed)
    again = directory(tmp_path).get("first")
    assert again is not None
    assert again.secrets == (b"another-one",)


def test_nobody_else_can_read_the_file(tmp_path: Path) -> None:
    """From the first byte on, and after each change."""
    before = os.umask(0)
    try:
        users = directory(tmp_path)
        path = tmp_path / "store" / "mailboat" / "users.json"
        assert not path.exists()
        users.save(users.kept())
        assert path.stat().st_mode & 0o777 == 0o600
        users.save({"a": UserRecord("a", SECRET)})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["users.json"]


def test_a_name_counts_by_its_first_source(tmp_path: Path) -> None:
    """Files, then the server's own credentials, then requests; what does not count is told."""
    folder = tmp_path / "users"
    for user in ("folder", "both"):
        write(folder, user, "from-the-folder")
    write(folder, "inner", SECRET)
    acl = tmp_path / "plain_acl.yml"
    acl.write_text(
        "accounts:\n"
        "- {accessKey: account, secretKey: from-the-acl}\n"
        "- {accessKey: folder2, secretKey: from-the-acl}\n"
    )
    write(folder, "folder2", "from-the-folder")
    users = directory(tmp_path, inner=INNER, folder=str(folder), acl=str(acl))
    made = {name: UserRecord(name, "from-a-request") for name in ("both", "account", "request")}
    users.put(made)
    found = {name: record.password for name, record in users.records.items()}
    assert found == {
        "folder": "from-the-folder",
        "folder2": "from-the-folder",
        "inner": SECRET,
        "both": "from-the-folder",
        "account": "from-the-acl",
        "request": "from-a-request",
    }
    assert list(users.made) == ["request"]
    assert len(users.problems) == 2
    assert all("does not count" in problem for problem in users.problems)
    inner = users.get("inner")
    assert inner is not None
    assert not inner.is_super
    without = directory(tmp_path, inner=INNER)
    inner = without.get("inner")
    assert inner is not None
    assert inner.is_super


def test_no_file_takes_the_servers_own_name_from_them(tmp_path: Path) -> None:
    """Only one that takes their password, or that of before, as while it is changed."""
    folder = tmp_path / "users"
    write(folder, "inner", "another-secret")
    users = directory(tmp_path, inner=INNER, folder=str(folder))
    assert users.records["inner"].password == SECRET
    assert users.records["inner"].is_super
    (problem,) = users.problems
    assert problem.startswith("authUsersPath: user inner does not count, innerClientAuth")
    assert SECRET not in problem
    previous = {"password": SECRET}
    text = {"username": "inner", "password": "another-secret", "previousPassword": previous}
    (folder / "inner.json").write_text(json.dumps(text))
    users.look()
    users.refresh()
    assert users.records["inner"].password == "another-secret"
    assert users.problems == []


def test_files_are_read_again(tmp_path: Path) -> None:
    """Listeners are told once for each change, and who is gone is gone."""
    folder = tmp_path / "users"
    write(folder, "a")
    users = directory(tmp_path, folder=str(folder))
    told: list[int] = []
    users.on_changed.append(lambda: told.append(users.revision))
    users.look()
    users.refresh()
    assert told == []
    write(folder, "b", userType="Super")
    (folder / "a.json").unlink()
    users.look()
    assert users.get("a") is not None
    users.refresh()
    assert users.get("a") is None
    found = users.get("b")
    assert found is not None
    assert found.is_super
    assert told == [users.revision]


def test_a_bad_file_keeps_the_users_of_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, without its secrets."""
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- {accessKey: account, secretKey: planted-secret}\n")
    users = directory(tmp_path, acl=str(acl))
    acl.write_text("accounts:\n- {accessKey: account, secretKey: planted-secret")
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            users.look()
            users.refresh()
    assert users.get("account") is not None
    assert len(users.problems) == 1
    assert len(caplog.records) == 1
    assert str(acl) in caplog.text
    assert SECRET not in caplog.text
    acl.write_text("accounts: []\n")
    users.look()
    users.refresh()
    assert users.get("account") is None
    assert users.problems == []


def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    """The error names the setting and the file, and shows no secret."""
    folder = tmp_path / "users"
    write(folder, "a", userType="Admin")
    with pytest.raises(ConfigError, match=r"authUsersPath=.*a\.json: user a: The user type"):
        directory(tmp_path, folder=str(folder))
    with pytest.raises(ConfigError, match=r"plainAclFile=.*No such file"):
        directory(tmp_path, acl=str(tmp_path / "plain_acl.yml"))
    with pytest.raises(ConfigError, match=r"authUsersPath=.*No such file"):
        directory(tmp_path, folder=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="needs plainAclFile"):
        Directory(SecurityConfig(acl_enable=True), RealDisk(), None)


def test_a_damaged_table_stops_the_start(tmp_path: Path) -> None:
    """Deleted users must not come back from a copy of before."""
    users = directory(tmp_path)
    users.save(users.kept())
    path = tmp_path / "store" / "mailboat" / "users.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DamagedStoreError, match=r"users\.json cannot be read") as caught:
        directory(tmp_path)
    assert SECRET not in str(caught.value)


def test_without_any_user_nobody_could_do_anything(tmp_path: Path) -> None:
    """The start says what to set."""
    with pytest.raises(ConfigError, match="set initAuthenticationUser"):
        directory(tmp_path, initial="")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"username":"first"}',
        '{"username":"first","password":""}',
        '{"username":"a b","password":"planted-secret"}',
        '{"username":"first","password":"planted-secret","planted":1}',
        '{"username":"first","password":"planted-secret"',
    ],
)
def test_bad_settings(tmp_path: Path, text: str) -> None:
    """The value is hidden: it has a password in it."""
    with pytest.raises(ConfigError, match="initAuthenticationUser=<hidden>") as caught:
        directory(tmp_path, initial=text)
    assert SECRET not in str(caught.value)
    inner = text.replace("username", "accessKey").replace("password", "secretKey")
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials=<hidden>"):
        inner_credentials(SecurityConfig(inner_client_authentication_credentials=inner))


def test_inner_credentials() -> None:
    """What own requests are signed with."""
    found = inner_credentials(SecurityConfig(inner_client_authentication_credentials=INNER))
    assert found is not None
    assert (found.access_key, found.secret_key) == ("inner", SECRET)
    assert inner_credentials(SecurityConfig()) is None


def test_a_password_of_before_ends_by_the_clock() -> None:
    """Without anything else having changed; a name server has no file for users."""
    disk = SimulatedDisk()
    disk.time.set_wall(1_000)
    config = SecurityConfig(authentication_enabled=True, init_authentication_user=INITIAL)
    users = Directory(config, disk, None)
    users.load()
    previous = PreviousPassword("before", valid_until_ms=2_000)
    users.put({"a": UserRecord("a", SECRET, previous)})
    told: list[None] = []
    users.on_changed.append(lambda: told.append(None))
    for now_ms, secrets in ((1_999, 2), (2_000, 1), (2_001, 1)):
        disk.time.set_wall(now_ms)
        users.refresh()
        found = users.get("a")
        assert found is not None
        assert len(found.secrets) == secrets
    assert len(told) == 1
    assert disk.walk("/") == []


@pytest.mark.parametrize("call", ["create", "pwrite", "fdatasync", "rename"])
def test_what_the_disk_refuses_leaves_what_was_there(call: str) -> None:
    """The file of before is there whole."""
    disk = FaultyDisk(SimulatedDisk())
    config = SecurityConfig(authentication_enabled=True, init_authentication_user=INITIAL)
    users = Directory(config, disk, "/store/mailboat/users.json")
    users.load()
    disk.inject(Fault((call,), 1, 28))
    with pytest.raises(OSError, match=r"."):
        users.save({"a": UserRecord("a", SECRET)})
    disk.heal()
    again = Directory(config, disk, "/store/mailboat/users.json")
    again.load()
    assert list(again.records) == ["first"]


def test_an_unknown_quota_is_told_and_stops_no_start(tmp_path: Path) -> None:
    """A newer operator may write one; the known ones beside it count."""
    folder = tmp_path / "users"
    folder.mkdir()
    quotas = {"connections": 3, "zebras\n": 1}
    text = json.dumps({"username": "orders", "password": SECRET, "quotas": quotas})
    (folder / "orders.json").write_text(text)
    users = directory(tmp_path, folder=str(folder))
    user = users.get("orders")
    assert user is not None
    assert user.quotas == Quotas(connections=3)
    expected = "user orders: quotas that this version does not know do not hold: 'zebras\\n'"
    assert users.problems == [expected]
    (folder / "orders.json").write_text(text.replace('"connections": 3', '"connections": 4'))
    users.look()
    users.refresh()
    user = users.get("orders")
    assert user is not None
    assert user.quotas == Quotas(connections=4)
