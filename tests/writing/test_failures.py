"""A writer that fails or is killed leaves nothing that reads as a whole dataset, and can be continued."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker import MDSWriter, StreamingDataset, rebuild_index
from stoker.errors import EncodingError, ObjectNotFoundError, StorageError, StorageFullError
from stoker.storage.local import LocalStore
from stoker.storage.types import PutData
from stoker.writing.destination import Destination

COLUMNS = {"x": "int", "y": "bytes"}


def samples(count: int = 400) -> Any:
    return ({"x": i, "y": bytes([i % 256]) * (i % 57)} for i in range(count))


def fill(writer: MDSWriter, rows: Any, error: BaseException | None = None) -> None:
    for sample in rows:
        writer.write(sample)
    if error is not None:
        raise error


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.iterdir())}


def assert_unreadable(root: Path) -> None:
    assert not (root / "index.json").exists()
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(local=root)


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_in_the_block_passes_and_leaves_no_index(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, MDSWriter(COLUMNS, tmp_path, size_limit=2000) as writer:
        fill(writer, samples(), error)
    assert caught.value is error
    assert_unreadable(tmp_path)


def test_a_refused_sample_that_nobody_catches_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(EncodingError), MDSWriter(COLUMNS, tmp_path) as writer:
        writer.write({"x": "text", "y": b""})
    assert_unreadable(tmp_path)


@pytest.mark.parametrize("failing", [0, 3, "last", "index.json"])
def test_an_error_behind_the_caller_comes_out_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Any
) -> None:
    put = LocalStore.put
    asked: list[str] = []

    def fail(self: LocalStore, key: str, data: PutData) -> None:
        asked.append(key)
        if key == (f"shard.{failing:05}.mds" if isinstance(failing, int) else failing) or (
            failing == "last" and isinstance(data, list) and len(data[-1]) < 1500
        ):
            raise StorageError(f"no more: {key}")
        put(self, key, data)

    monkeypatch.setattr(LocalStore, "put", fail)
    with pytest.raises(StorageError, match="no more"), MDSWriter(COLUMNS, tmp_path, size_limit=2000) as writer:
        fill(writer, samples())
    assert_unreadable(tmp_path)
    assert failing == "index.json" or "index.json" not in asked
    monkeypatch.undo()
    with MDSWriter(COLUMNS, tmp_path, size_limit=2000, resume=True) as writer:
        for sample in islice(samples(), writer.samples_written, None):
            writer.write(sample)
    with MDSWriter(COLUMNS, tmp_path / "fresh", size_limit=2000) as writer:
        for sample in samples():
            writer.write(sample)
    whole = files(tmp_path / "fresh")
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == whole


def test_a_failed_writer_says_so_at_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Destination, key: str, data: PutData) -> None:
        raise StorageError("no more")

    monkeypatch.setattr(Destination, "put", fail)
    writer = MDSWriter(COLUMNS, tmp_path, size_limit=500)
    with pytest.raises(StorageError, match="no more"):
        fill(writer, samples(10000))
    with pytest.raises(StorageError, match="no more"):
        writer.write_batch({"x": [1], "y": [b""]})
    with pytest.raises(StorageError, match="no more"):
        writer.finish()
    writer.abort()
    assert_unreadable(tmp_path)


def run(code: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.processes
def test_a_full_disk_is_named_and_leaves_no_index(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from stoker import MDSWriter
        from stoker.errors import StorageFullError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # a file may grow no further, as on a full disk
        try:
            with MDSWriter({"y": "bytes"}, sys.argv[1], size_limit=150_000) as writer:
                for i in range(100):
                    writer.write({"y": bytes(10_000)})
        except StorageFullError as error:
            print(error)
    """
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert_unreadable(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_file_system_is_named_and_leaves_no_index(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        with (
            pytest.raises(StorageFullError, match=str(small)),
            MDSWriter({"y": "bytes"}, small, size_limit=60_000) as w,
        ):
            fill(w, [{"y": bytes(10_000)}] * 100)
        assert_unreadable(small)
        assert len(rebuild_index(small, skip_damaged=True).shards) >= 1  # what is there is whole
    finally:
        subprocess.run(["umount", str(small)], check=True)


_WRITER = """
    import sys
    from itertools import islice
    from stoker import MDSWriter
    sys.path.insert(0, sys.argv[2])
    from test_failures import COLUMNS, samples
    options = eval(sys.argv[3])
    with MDSWriter(COLUMNS, sys.argv[1], size_limit=2000, resume=True, **options) as writer:
        print("ready", flush=True)
        start = writer.samples_written
        for sample in islice(samples(4000), start, None):
            writer.write(sample)
"""


@pytest.mark.processes
@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "hashes": ["sha1"]}], ids=["raw", "zstd"])
def test_killed_at_any_moment_nothing_torn_is_readable_and_resuming_completes_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rng = random.Random(7)
    out, killed = tmp_path / "out", 0
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(out), str(Path(__file__).parent), repr(options)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        time.sleep(rng.random() * 0.04)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        killed += 1
        if (out / "index.json").exists():
            assert len(StreamingDataset(local=out)) == 4000
        else:
            assert_unreadable(out)
            present = {int(path.name.split(".")[1]) for path in out.glob("shard.*")}
            rebuilt = rebuild_index(out, skip_damaged=True) if present else None  # fails if any shard were torn
            assert rebuilt is None or len(rebuilt.shards) == len(present)
            (out / "index.json").unlink(missing_ok=True)
    assert killed
    with MDSWriter(COLUMNS, out, size_limit=2000, resume=True, **options) as writer:
        for sample in islice(samples(4000), writer.samples_written, None):
            writer.write(sample)
    with MDSWriter(COLUMNS, tmp_path / "fresh", size_limit=2000, **options) as writer:
        for sample in samples(4000):
            writer.write(sample)
    assert files(out) == files(tmp_path / "fresh")
