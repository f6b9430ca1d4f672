"""Local files: puts are whole or absent, whatever happens."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, StorageFullError
from stoker.storage import local, open_store
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.staged_file import StagedFile

_KILLED = """
import os, sys
from stoker.storage import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
while True:
    store.put("object", [b"x" * (1 << 20)] * 64)
"""


def test_a_put_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.put("a", b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    for unnamed in (True, False):
        if not unnamed:
            monkeypatch.setattr(local, "_unnamed", lambda folder: None)
        with pytest.raises(StorageFullError, match=str(tmp_path / "a")):
            store.put("a", b"new")
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert store.get("a", max_bytes=1 << 30) == b"old"


@pytest.mark.parametrize("unnamed", [True, False])
def test_puts_work_where_files_must_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    if not unnamed:
        monkeypatch.setattr(local, "_unnamed", lambda folder: None)
    old = os.umask(0o027)
    try:
        store = open_store(tmp_path)
        store.put("a/b", b"x")
        store.put("a/b", b"y")
    finally:
        os.umask(old)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o640
    assert store.get("a/b", max_bytes=1 << 30) == b"y"


@pytest.mark.processes
def test_a_killed_put_leaves_whole_objects_only(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(8):
        process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert {info.size for info in store.list()} <= {64 << 20}
        assert {info.key for info in store.list()} <= {"object"}


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, ObjectNotFoundError),
        (errno.ENOTDIR, ObjectNotFoundError),
        (errno.EACCES, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EIO, StorageError),
    ],
)
def test_faults_of_files_have_their_names(number: int, kind: type[StorageError]) -> None:
    with pytest.raises(StorageError, match="/x/y") as caught, file_errors("/x/y"):
        raise OSError(number, "text")
    assert type(caught.value) is kind
    assert caught.value.url == "/x/y"


def test_a_pipe_is_not_an_object_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = open_store(tmp_path)
    with pytest.raises(ObjectNotFoundError, match="not a file"):
        store.get("pipe", max_bytes=1 << 30)
    assert list(store.list()) == []


def test_a_put_onto_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="directory"):
        open_store(tmp_path).put("a", b"x")


def test_files_copy_where_the_kernel_can_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EXDEV, "not across file systems")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    data = os.urandom(300_000)
    (tmp_path / "source").write_bytes(data)
    store = open_store(tmp_path / "root")
    store.put_file("a", tmp_path / "source")
    assert store.get("a", max_bytes=1 << 30) == data
    assert store.download("a", tmp_path / "target").size == len(data)
    assert (tmp_path / "target").read_bytes() == data


def test_a_listing_refuses_links_to_directories_elsewhere(tmp_path: Path) -> None:
    """What one leads to may be all of the machine, and must not be left out without a word."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"data")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    store = open_store(tmp_path / "root")
    assert store.get("link/x", max_bytes=1 << 30) == b"data"
    with pytest.raises(StorageError, match=r"root/link is a symbolic link to .*elsewhere, which is not below"):
        list(store.list())
    (tmp_path / "root" / "link").unlink()
    (tmp_path / "root" / "all").symlink_to("/")
    with pytest.raises(StorageError, match="root/all is a symbolic link to /, which is not below"):
        list(store.list())


def test_a_listing_follows_links_to_files_and_inside_of_the_directory_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blob").write_bytes(b"12345")
    root = tmp_path / "root"
    (root / ".versions" / "1").mkdir(parents=True)
    (root / ".versions" / "1" / "x").write_bytes(b"data")
    (root / ".versions" / "1" / "up").symlink_to(root)
    (root / "train").symlink_to(root / ".versions" / "1")
    (root / "blob").symlink_to(tmp_path / "blob")
    (root / "dead").symlink_to(tmp_path / "nothing")
    (root / "itself").symlink_to(root / "itself")
    os.mkfifo(root / "pipe")
    (tmp_path / "link").symlink_to(root)
    for place in (root, tmp_path / "link"):
        found = {info.key: info.size for info in open_store(place).list()}
        assert found == {"blob": 5, ".versions/1/x": 4, "train/x": 4}
    assert "root/pipe is passed over: it is not a file but a named pipe" in caplog.text


def test_options_of_object_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="region"):
        open_store(tmp_path, {"region": "x"}).exists("a")


def test_readers_see_one_version_or_the_other(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    versions = [bytes([number]) * 100_000 for number in range(4)]
    store.put("a", versions[0])
    done = threading.Event()

    def write() -> None:
        for round_ in range(100):
            store.put("a", versions[round_ % 4])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.get("a", max_bytes=1 << 30) in versions
    writer.join()


@pytest.mark.parametrize("url", ["{}", "memory://staged"])
def test_a_disk_that_is_full_at_the_last_flush_of_a_staged_file(url: str, tmp_path: Path) -> None:
    """What Python held back is written when the file is stored, also where it is only staged for an upload."""
    store = open_store(url.format(tmp_path))
    staged = StagedFile(store, "a")
    staged.file.close()
    staged.file = open("/dev/full", "wb")  # noqa: SIM115
    staged.file.write(b"x")
    with pytest.raises(StorageFullError, match="No space left on device"):
        staged.store(store, "a")
    staged.discard()
    assert list(store.list()) == []
