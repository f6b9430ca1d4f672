"""Files that are a sample each are read in groups, as they are read one by one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import ReadOptions, StreamingDataset
from stoker.catalog.unindexed import open_files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import StokerError
from stoker.index.file_index import FileShards
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool

JPEG = b"\xff\xd8 jpeg"
SIZES = (0, 1, 7, 200, (16 << 10) + 1, 1 << 16, (1 << 16) + 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(70):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((JPEG + bytes([number]) * SIZES[number % len(SIZES)])[: SIZES[number % len(SIZES)] or None])
    return tmp_path / "data"


def outcome(root: Path, name: str, change: Callable[[Path], object], options: ReadOptions, ahead: bool) -> Any:
    """Columns of all files in some order, or the error of each; and what was counted."""
    location = open_unindexed(root, name, options={} if name == "files" else {"decode": False})
    change(root)
    pool = ShardPool(location.index, location.cache, options=options)
    order = np.random.default_rng(3).permutation(len(location.index))
    pool.expect(order.tolist())
    if ahead:
        pool.prefetch(order.tolist())
    found: list[Any] = []
    for shard in order.tolist():
        try:
            one = read_samples(pool, np.array([shard]), np.zeros(1, np.int64))
            found.append(
                {key: [bytes(v) if isinstance(v, memoryview) else v for v in column] for key, column in one.items()}
            )
        except StokerError as error:
            found.append((type(error), str(error)))
        pool.done_with(shard)
    pool.close()
    assert not pool.ready(order.tolist())
    return found


def put_folder(root: Path) -> None:
    (root / "class1/004.jpg").unlink()
    (root / "class1/004.jpg").mkdir()


def link(root: Path) -> None:
    (root.parent / "link").unlink(missing_ok=True)
    os.link(root / "class1/004.jpg", root.parent / "link")


CHANGES: dict[str, Callable[[Path], object]] = {
    "none": lambda root: None,
    "written over": lambda root: (root / "class0/003.jpg").write_bytes(JPEG),
    "longer": lambda root: (root / "class0/003.jpg").open("ab").write(b"more"),
    "cut": lambda root: (root / "class0/003.jpg").write_bytes(b""),
    "removed": lambda root: (root / "class1/004.jpg").unlink(),
    "a folder instead": put_folder,
    "touched": lambda root: (root / "class1/004.jpg").touch(),
    "mode": lambda root: (root / "class1/004.jpg").chmod(0o600),
    "linked": link,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["files", "jpeg"])
def test_groups_give_what_single_files_give(
    root: Path, name: str, change: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"

    def undo() -> None:
        for path in root.rglob("*.jpg"):
            path.rmdir() if path.is_dir() else path.unlink()
        for path in kept.rglob("*.jpg"):
            (root / path.relative_to(kept)).write_bytes(path.read_bytes())

    shutil.copytree(root, kept)
    assert isinstance(open_unindexed(root, "files").index.shards, FileShards)
    for options in (ReadOptions(), ReadOptions(views=True), ReadOptions(checksums=True)):
        groups = outcome(root, name, change, options, ahead=True)
        undo()
        alone = outcome(root, name, change, options, ahead=False)
        undo()
        with monkeypatch.context() as patch:
            patch.setattr(open_files, "are_plain", lambda _: False)
            slow = outcome(root, name, change, options, ahead=False)
        undo()
        assert groups == slow
        assert alone == slow
    odd = 0 if name == "files" else sum(path.read_bytes()[:2] != JPEG[:2] for path in root.rglob("*.jpg"))
    changed = change not in (CHANGES["none"], CHANGES["mode"], CHANGES["linked"])
    assert sum(isinstance(one, tuple) for one in slow) == odd + changed


def test_an_epoch_holds_no_more_than_is_read_soon_and_counts_all(root: Path) -> None:
    dataset = StreamingDataset(root, format="files", shuffle=True, batch_size=8)
    for _ in range(2):
        seen = [path for batch in dataset.batches() for path in batch["path"]]
        assert sorted(seen) == sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    assert dataset.stats().cache_hits >= 140
