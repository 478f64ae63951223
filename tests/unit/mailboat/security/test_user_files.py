"""Users in files that others write."""

import json
import os
from pathlib import Path

import pytest

from mailboat.security import user_files
from mailboat.security.user_files import UserFile, UserFolder
from mailboat.security.user_records import USER_FILE_MAX_BYTES, decode_user


@pytest.fixture(autouse=True)
def _everything_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stamps be trusted at once, so that what is not read again is seen."""
    monkeypatch.setattr(user_files, "_SETTLED_AFTER_NS", -(10**18))


def write(path: Path, user: str, password: str = "12345678") -> None:
    """Write the file of one user, as a whole."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"username": user, "password": password}))
    temporary.rename(path)


def passwords(source: UserFolder | UserFile) -> dict[str, str]:
    """Return what was read."""
    return {name: record.password for name, record in source.records.items()}


def test_a_folder_of_users(tmp_path: Path) -> None:
    """One file each; others and hidden ones are not looked at."""
    write(tmp_path / "a.json", "a")
    write(tmp_path / "b.json", "b", "other")
    (tmp_path / "ca.crt").write_text("no user")
    (tmp_path / ".hidden.json").write_text("no user")
    folder = UserFolder(str(tmp_path))
    assert folder.look()
    assert passwords(folder) == {"a": "12345678", "b": "other"}
    assert folder.problems == []
    assert not folder.look()


def test_changes_are_seen(tmp_path: Path) -> None:
    """A new password, a new user, and one that is gone."""
    write(tmp_path / "a.json", "a")
    folder = UserFolder(str(tmp_path))
    folder.look()
    write(tmp_path / "a.json", "a", "87654321")
    write(tmp_path / "b.json", "b")
    assert folder.look()
    assert passwords(folder) == {"a": "87654321", "b": "12345678"}
    (tmp_path / "a.json").unlink()
    assert folder.look()
    assert passwords(folder) == {"b": "12345678"}


def test_a_bad_file_keeps_its_user_and_hinders_no_other(tmp_path: Path) -> None:
    """Who is removed meanwhile is removed; once the file is good again it counts."""
    write(tmp_path / "a.json", "a")
    write(tmp_path / "b.json", "b")
    folder = UserFolder(str(tmp_path))
    folder.look()
    (tmp_path / "a.json").write_text('{"username":"a","password":')
    (tmp_path / "b.json").unlink()
    assert folder.look()
    assert passwords(folder) == {"a": "12345678"}
    [problem] = folder.problems
    assert problem.startswith(f"{tmp_path}/a.json: it is not such a file")
    assert not folder.look()
    write(tmp_path / "a.json", "a")
    assert folder.look()
    assert folder.problems == []


def test_a_folder_that_is_gone_keeps_all(tmp_path: Path) -> None:
    """An empty one has no users."""
    path = tmp_path / "users"
    write(path / "a.json", "a")
    folder = UserFolder(str(path))
    folder.look()
    path.rename(tmp_path / "elsewhere")
    assert folder.look()
    assert passwords(folder) == {"a": "12345678"}
    assert folder.problems == [f"{path}: No such file or directory"]
    path.mkdir()
    assert folder.look()
    assert passwords(folder) == {}
    assert folder.problems == []


def test_two_files_of_one_user(tmp_path: Path) -> None:
    """The first by name counts, and the other is told."""
    write(tmp_path / "a.json", "user", "first-one")
    write(tmp_path / "b.json", "user", "second-one")
    folder = UserFolder(str(tmp_path))
    folder.look()
    assert passwords(folder) == {"user": "first-one"}
    assert folder.problems == [f"{tmp_path}/b.json: user user is that of a.json already"]


def test_a_copy_takes_no_user_from_the_file_that_has_it(tmp_path: Path) -> None:
    """Also where its name comes first; it counts once the other names that user no more."""
    write(tmp_path / "b.json", "user", "of-before")
    folder = UserFolder(str(tmp_path))
    folder.look()
    write(tmp_path / "a.json", "user", "of-the-copy")
    assert folder.look()
    assert passwords(folder) == {"user": "of-before"}
    assert folder.problems == [f"{tmp_path}/a.json: user user is that of b.json already"]
    (tmp_path / "b.json").unlink()
    assert folder.look()
    assert passwords(folder) == {"user": "of-the-copy"}
    assert folder.problems == []


def test_a_mounted_secret(tmp_path: Path) -> None:
    """What Kubernetes exchanges by its link is of one generation."""
    for generation, password in (("..1", "first-one"), ("..2", "second-one")):
        for user in ("a", "b"):
            write(tmp_path / generation / f"{user}.json", user, password)
    (tmp_path / "..data").symlink_to("..1")
    for user in ("a", "b"):
        (tmp_path / f"{user}.json").symlink_to(f"..data/{user}.json")
    folder = UserFolder(str(tmp_path))
    folder.look()
    assert passwords(folder) == {"a": "first-one", "b": "first-one"}
    (tmp_path / "..data_tmp").symlink_to("..2")
    os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
    (tmp_path / "..1" / "a.json").unlink()
    assert folder.look()
    assert passwords(folder) == {"a": "second-one", "b": "second-one"}
    assert folder.problems == []


def test_links_of_before_are_not_followed(tmp_path: Path) -> None:
    """A file that only the folder around has belongs to no generation."""
    write(tmp_path / "..1" / "a.json", "a")
    (tmp_path / "..data").symlink_to("..1")
    write(tmp_path / "b.json", "b")
    folder = UserFolder(str(tmp_path))
    folder.look()
    assert passwords(folder) == {"a": "12345678"}


@pytest.mark.parametrize("kind", ["folder", "pipe", "large", "broken link", "unreadable"])
def test_what_is_no_file_of_a_user(tmp_path: Path, kind: str) -> None:
    """It is a problem at once, and nothing that is waited for."""
    path = tmp_path / "a.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b" " * (USER_FILE_MAX_BYTES + 1))
    elif kind == "broken link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"\xff\xfe")
    folder = UserFolder(str(tmp_path))
    assert folder.look()
    assert len(folder.problems) == 1
    assert folder.problems[0].startswith(f"{path}: ")


def test_what_was_written_just_now_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write in the same tick of the file system's clock would have the same stamp."""
    monkeypatch.undo()
    path = tmp_path / "a.json"
    write(path, "a", "first-one")
    file = UserFile(str(path), lambda text: {"a": decode_user(text)}, USER_FILE_MAX_BYTES)
    file.look()
    with monkeypatch.context() as same_tick:
        found = path.stat()
        path.write_text(path.read_text().replace("first-one", "other-one"))
        same_tick.setattr(user_files.os, "fstat", lambda _: found)
        assert file.look()
    assert passwords(file) == {"a": "other-one"}
    assert not file.look()
