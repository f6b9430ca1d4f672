"""Each sample's bytes come from storage, whatever of them is handed over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from bench_faults import small_disk
from bench_threads import run_in_threads

from patience import PATIENCE
from stoker.cluster import World
from stoker.errors import ConfigError, StokerError
from stoker.storage.files.mapped import map_file
from stoker.storage.files.mounts import mount_of
from stoker_bench.loaders import LoaderJob, get_loader
from stoker_bench.loaders.decode import read_whole
from stoker_bench.measure.fingerprint import fingerprint
from stoker_bench.measure.generation import make_data
from stoker_bench.measure.page_cache import cached_files, counts_device_reads, file_system, resident_pages
from stoker_bench.results.bytes_read import bytes_findings
from stoker_bench.results.epochs import _residue
from stoker_bench.settings.sources import read_workload

SIZE, FILES = 24_000_000, 2


def resident(folder: Path) -> float:
    """The part of files' pages that is in the page cache."""
    held = pages = 0
    for path in (one for one in folder.rglob("*") if one.is_file() and one.stat().st_size > SIZE // 100):
        descriptor = os.open(path, os.O_RDWR)
        try:
            found = resident_pages(descriptor, path.stat().st_size)
        finally:
            os.close(descriptor)
        assert found is not None
        held, pages = held + found[0], pages + found[1]
    return held / pages


def dropped(folder: Path) -> None:
    """Empty the page cache of a folder, where there is one to empty."""
    left = cached_files(folder, drop=True).resident
    if left is None or left > 0.01:
        pytest.skip("the files of this file system do not leave the page cache")


KINDS = ("npz", "npy", "hdf5", "tfrecord", "mds", "parquet", "tar", "undecoded")


@pytest.mark.parametrize("loader", ["stoker", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_are_cut_to_a_size_are_read_whole(kind: str, loader: str, tmp_path: Path) -> None:
    if loader == "torch" and kind in {"mds", "tar"}:
        pytest.skip("a format that this loader does not read")
    each = 3 if kind in {"tfrecord", "mds", "parquet", "tar"} else 1
    settings = (
        *(f"dataset.format={kind.replace('undecoded', 'npy')}", f"reader.decode={kind != 'undecoded'}"),
        *(f"dataset.files={FILES}", f"dataset.record_bytes={SIZE // each}", f"dataset.samples_per_file={each}"),
        *("dataset.resize_bytes=1000", "reader.shuffle=false", f"reader.loader={loader}"),
        *(("storage.client=mmap",) if loader == "torch" else ()),
    )
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    make_data(workload, str(tmp_path))
    dropped(tmp_path)
    opened = get_loader(loader).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 1))
    try:
        batches = list(opened.epoch(0))
        assert [(batch.samples, batch.bytes) for batch in batches] == [(1, 1000)] * FILES * each
        assert resident(tmp_path / "train") > 0.99
    finally:
        opened.close()


CHECKED = [
    *(("npz", loader, more) for loader in ("stoker", "torch") for more in ((), ("dataset.resize_bytes=500",))),
    ("npz", "stoker", ("dataset.samples_per_file=4",)),
    ("png", "stoker", ()),
    ("png", "stoker", ("dataset.resize_bytes=500",)),
    ("png", "torch", ()),
    ("tfrecord", "stoker", ("dataset.samples_per_file=4",)),
    ("tfrecord", "torch", ("dataset.samples_per_file=4",)),
]


@pytest.mark.parametrize(("kind", "loader", "more"), CHECKED)
def test_changed_bytes_of_a_file_are_noticed_by_its_checksums(
    kind: str, loader: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Of a file that has the same size and can be decoded."""
    base = (f"dataset.format={kind}", "dataset.files=2", "dataset.record_bytes=30000", f"reader.loader={loader}", *more)
    workload = read_workload(None, [*base, "reader.checksums=true"], environ={}, dotenv=None).workload
    make_data(workload, str(tmp_path))

    def read() -> int:
        opened = get_loader(loader).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 1))
        try:
            return sum(batch.samples for batch in opened.epoch(0))
        finally:
            opened.close()

    assert read() == 2 * workload.dataset.samples_per_file
    path = sorted(one for one in (tmp_path / "train").iterdir() if one.suffix == f".{kind}")[1]
    data = bytearray(path.read_bytes())
    data[len(data) - 14 if kind == "png" else len(data) // 3] ^= 1  # of a PNG, its last chunk but one's checksum itself
    path.write_bytes(data)
    with pytest.raises(StokerError, match=rf"{path.name}.*(checksum|CRC-32)"):
        read()


@pytest.mark.parametrize("loader", [pytest.param("stoker", marks=pytest.mark.processes), "torch"])
@pytest.mark.parametrize("kind", ["npz", "parquet", "tfrecord", "mds"])
def test_direct_reads_deliver_the_samples_and_leave_the_page_cache_alone(
    kind: str, loader: str, tmp_path: Path
) -> None:
    if (loader, kind) == ("torch", "mds"):
        pytest.skip("a format that this loader does not read")
    settings = (
        *(f"dataset.format={kind}", "dataset.files=3", "dataset.samples_per_file=1", "dataset.record_bytes=3000001"),
        *("reader.shuffle=false", f"reader.loader={loader}", "storage.part_bytes=1MB", "storage.part_requests=3"),
    )
    found: dict[str, list[str | None]] = {}
    for how in ("mmap", "direct"):
        more = ("reader.odirect=true",) if how == "direct" else ("storage.client=mmap",)
        workload = read_workload(None, [*settings, *more], environ={}, dotenv=None).workload
        if how == "mmap":
            make_data(workload, str(tmp_path))
        else:
            dropped(tmp_path)
        opened = get_loader(loader).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 1))
        try:
            found[how] = [fingerprint(batch.data) for batch in opened.epoch(0)]
            notes = opened.report().notes
        except ConfigError as error:
            assert "refuses O_DIRECT" in str(error)  # noqa: PT017 - some file systems do
            return
        finally:
            opened.close()
        assert how == "mmap" or any("direct" in note for note in notes)
    assert len(set(found["mmap"])) == 3
    assert found["direct"] == found["mmap"]
    assert resident(tmp_path / "train") < 0.02  # a format's own index, and what is listed


def test_values_in_any_nesting_are_touched_to_their_last_byte(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(bytes(SIZE))
    dropped(tmp_path)
    maps = [map_file(path) for path in paths]
    columns = np.frombuffer(maps[2], np.float32).reshape(-1, 1000).T  # no two neighbours of a row are in one page
    read_whole({"a": [maps[0], (memoryview(maps[1]),)], "b": columns, "c": [1, "x", b"", np.zeros(0), None]})
    assert resident(tmp_path) == 1


def test_a_loader_that_reads_a_part_of_its_samples_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    data, found = str(tmp_path / "data"), {}
    for loader in ("stoker", "bench_loaders:Peeks"):
        settings = (
            *(f"dataset.files={FILES}", f"dataset.record_bytes={SIZE}", "dataset.resize_bytes=1000"),
            *("compute.seconds=0.001", f"reader.loader={loader}", "reader.threads=1"),
        )
        result = run_in_threads(
            read_workload(None, settings, environ={}, dotenv=None),
            results=tmp_path / loader.replace(":", "."),
            url=data,
            accelerators=1,
            stages=("generate", "train"),
        )
        if result["epochs"][0]["cache"]["resident"] or not result["epochs"][0]["device_bytes"]:
            pytest.skip("the files of this file system do not leave the page cache")
        found[loader] = {one["rule"]: one["reason"] for one in result["findings"] if one["invalid"]}
        epoch = result["epochs"][0]
        # Both are of this process, and read one after the other: a page of its own code may come between.
        assert epoch["storage_bytes"] == pytest.approx(epoch["device_bytes"], rel=0.01)
        if loader == "stoker":
            assert epoch["storage_bytes"] == pytest.approx(FILES * SIZE, rel=0.1)
            assert epoch["storage_bytes_per_second"] > 0
    assert not {"whole samples", "page cache"} & set(found["stoker"])
    assert (
        "were never read, neither from the device nor from the page cache"
        in found["bench_loaders:Peeks"]["whole samples"]
    )
    assert "page cache" not in found["bench_loaders:Peeks"]


def findings(
    *settings: str,
    kind: str = "ext4",
    device: int | None = 0,
    called: int = 0,
    resident: float | None = 0.0,
    fetched: int | None = None,
    url: str = "/d",
    samples: int = 10,
    delivered: int = 10_000,
    memory: int = 1 << 30,
    counted: int | None = 80_000_000,
    files: int = 10,
    stored: int = 100_000_000,
    remarks: bool = False,
) -> dict[str, str]:
    """The rules that an epoch of ten samples of 10 MB breaks, or its remarks."""
    base = ("dataset.files=10", "dataset.record_bytes=10_000_000", "dataset.resize_bytes=1000")
    epoch: dict[str, Any] = {
        "kind": "train",
        "epoch": 0,
        "repeat": 0,
        "samples": samples,
        "bytes": delivered,
        "device_bytes": device,
        "read_bytes": called,
        "fetched_bytes": fetched,
        "storage_bytes": device if url == "/d" else fetched,
        "counted_read_bytes": counted,
        "ranks": [{"blocks": [{"samples": 3}, {"samples": 2}]}, {"blocks": [{"samples": 3}]}],
        "cache": {"files": 10, "bytes": 100_000_000, "resident": resident} if url == "/d" else None,
    }
    result = {
        "storage": {"url": url, "local": url == "/d", "kind": kind, "in_memory": False},
        "ranks": [{"memory_bytes": memory}],
        "listing": {"train": {"files": files, "used": files, "samples": None, "bytes": stored}},
        "epochs": [epoch],
    }
    workload = read_workload(None, [*base, *settings], environ={}, dotenv=None).workload
    return {rule: reason for rule, invalid, reason in bytes_findings(result, workload) if invalid is not remarks}


def test_bytes_that_were_not_read_are_told_from_those_of_the_page_cache() -> None:
    assert not findings(device=96_000_000)
    skipped = findings(device=9_000_000)
    assert list(skipped) == ["whole samples"]
    assert "91% of the bytes of the samples of epoch 0" in skipped["whole samples"]
    assert list(findings(device=9_000_000, called=100_000_000)) == ["page cache"]  # read calls got them
    assert list(findings(device=9_000_000, resident=None)) == ["page cache"]
    both = findings(device=10_000_000, resident=0.5)
    assert "40% of the bytes" in both["whole samples"]
    assert "50% of the bytes" in both["page cache"]
    assert not findings(url="s3://b/d", fetched=100_200_000)
    assert "91% of the bytes" in findings(url="s3://b/d", fetched=9_000_000)["whole samples"]
    assert not findings(url="s3://b/d", fetched=None)  # a remark


def test_steps_that_live_on_what_was_read_ahead_are_remarked() -> None:
    """Of ten samples of 10 MB eight count."""
    for url in ("s3://b/d", "/d"):
        whole = partial(findings, url=url, device=100_000_000, fetched=100_000_000, remarks=True)
        assert "read ahead" not in whole(counted=74_000_000)
        assert "read ahead" not in whole()
        said = whole(counted=62_000_000)["read ahead"]
        assert said.startswith("22% of the bytes of the counted steps of epoch 0 were read before these")
    assert "read ahead" not in findings(device=0, counted=0, remarks=True)  # the page cache's


def test_what_opening_read_counts_for_no_step(tmp_path: Path) -> None:
    """Lines are counted when text is opened, which reads all of it: the steps read it again, from the device."""
    settings = (
        *("dataset.format=csv", "dataset.files=4", "dataset.samples_per_file=20", "dataset.record_bytes=200000"),
        *("reader.batch_size=4", "compute.seconds=0.0001"),
    )
    run = partial(run_in_threads, read_workload(None, settings, environ={}, dotenv=None), accelerators=1)
    run(results=tmp_path / "g", url=str(tmp_path / "d"), stages=("generate",))
    dropped(tmp_path / "d")
    if not counts_device_reads(str(tmp_path)):
        pytest.skip("the kernel does not count what is read of this file system")
    size = sum(path.stat().st_size for path in (tmp_path / "d/train").glob("*.csv"))
    (epoch,) = run(results=tmp_path / "r", url=str(tmp_path / "d"), stages=("train",))["epochs"]
    assert epoch["cache"]["resident"] == pytest.approx(0, abs=0.02)
    assert size <= epoch["device_bytes"] < 1.2 * size
    assert epoch["storage_bytes"] >= 1.9 * size  # opening is the epoch's, too


@pytest.mark.parametrize("url", ["s3://b/d", "/d"])
def test_what_was_mostly_read_before_the_steps_is_no_measurement_of_storage(url: str) -> None:
    """By opening the data, or ahead: steps that wait for nothing say nothing of the storage."""
    broken = partial(findings, url=url, device=100_000_000, fetched=100_000_000)
    assert "50% of the bytes of the counted steps" in broken(counted=40_000_000)["read ahead"]
    assert "100% of the bytes of the counted steps" in broken(counted=0)["read ahead"]
    assert "too short to tell when its bytes came" in broken(counted=None)["read ahead"]
    assert not broken(counted=62_000_000)


def test_files_that_are_fetched_more_than_once_are_remarked() -> None:
    for url in ("s3://b/d", "/d"):
        again = findings(url=url, device=100_000_000, fetched=400_000_000, remarks=True)["fetched again"]
        assert "4 times the bytes of the samples of epoch 0 were fetched" in again
        assert f"MB/s from storage count {1 if url == '/d' else 4} times" in again
        assert "fetched again" not in findings(url=url, device=100_000_000, fetched=110_000_000, remarks=True)
    # As the kernel counts it, of a loader that does not count.
    assert "2 times" in findings(device=200_000_000, remarks=True)["fetched again"]


def test_what_is_fetched_beside_the_samples_is_not_called_fetched_twice() -> None:
    """Blocks of small files, and what is read ahead where train.steps ends an epoch: both once were said to be."""
    small = ("dataset.record_bytes=1000", "dataset.files=50000", "dataset.resize_bytes=0")
    blocks = findings(*small, device=206_000_000, samples=50_000, files=50_000, stored=50_000_000, remarks=True)
    assert "whole blocks of 4096 bytes, and the mean file has 1,000" in blocks["fetched again"]
    assert "more than once" not in blocks["fetched again"]
    twice = findings(*small, device=412_000_000, samples=50_000, files=50_000, stored=50_000_000, remarks=True)
    assert "fetches files, or parts of them, more than once" in twice["fetched again"]
    ahead = findings(device=90_000_000, samples=3, remarks=True)["fetched again"]
    assert "reads ahead samples before which the epoch ends" in ahead


def test_the_loader_torch_says_how_often_it_reads_a_file_of_several_samples(tmp_path: Path) -> None:
    """Shuffled, with a file kept at a time: more than once, and of one in order once."""
    for shuffle, least, most in ((True, 1.5, 4.0), (False, 1.0, 1.1)):
        settings = (
            *("dataset.files=6", "dataset.samples_per_file=4", "dataset.record_bytes=10000", "reader.loader=torch"),
            *(f"reader.shuffle={shuffle}", "reader.threads=0", "compute.seconds=0.0001"),
        )
        result = run_in_threads(
            read_workload(None, settings, environ={}, dotenv=None),
            results=tmp_path / f"r{shuffle}",
            url=str(tmp_path / "d"),
            accelerators=1,
            stages=("generate", "train"),
        )
        fetched = result["epochs"][0]["fetched_bytes"]
        assert least < fetched / (6 * 4 * 10_000) < most
        assert ("fetched again" in {one["rule"] for one in result["findings"]}) is shuffle


def test_a_little_from_the_page_cache_and_a_little_unread_are_too_much_together() -> None:
    """94 % came from the device, at most 3 % from the page cache: the other 3 % were not read."""
    assert list(findings(device=94_000_000, resident=0.03)) == ["whole samples", "page cache"]
    assert list(findings(device=94_000_000, resident=0.02)) == ["whole samples"]
    assert list(findings(device=94_000_000, resident=0.04)) == ["page cache"]


def test_where_the_kernel_does_not_count_the_verdict_says_that_it_is_not_known() -> None:
    def both(**given: Any) -> tuple[dict[str, str], dict[str, str]]:
        return findings(device=None, **given), findings(device=None, remarks=True, **given)

    # Network file systems of which this host keeps pages alone: by what they were when the epoch began.
    broken, remarks = both(kind="lustre", called=100_000_000)
    assert not broken
    assert list(remarks) == ["page cache"]
    assert "page cache had 0% of the files when epoch 0 began; what the servers of lustre" in remarks["page cache"]
    broken, _ = both(kind="lustre", called=100_000_000, resident=0.5)
    assert "50% of the files were in the page cache when epoch 0 began" in broken["page cache"]
    # Others have caches that nobody can look into: a small data set may be in them, one of five times the memory is not.
    for kind, resident in (("fuse", 0.0), ("zfs", 0.0), ("lustre", None)):
        broken, remarks = both(kind=kind, called=100_000_000, resident=resident)
        assert f"not known: the kernel does not count what is read of {kind}" in broken["page cache"]
        broken, remarks = both(kind=kind, called=100_000_000, resident=resident, memory=20_000_000)
        assert not broken
        assert "at least 5 times the memory" in remarks["page cache"]
    # What is mapped and not counted may be read in part.
    assert "read whole is not known: 0% of their bytes" in both(kind="lustre")[1]["whole samples"]
    # NFS is counted, its server is not.
    assert list(findings(kind="nfs4", device=100_000_000, remarks=True)) == ["page cache"]
    assert list(findings(kind="nfs4", device=9_000_000, called=100_000_000, resident=1.0)) == ["page cache"]
    # An epoch too small to tell, of a large data set, passed without a word.
    assert "too few to tell" in findings(samples=1, device=0, memory=1_000_000, remarks=True)["page cache"]


@pytest.mark.parametrize(
    ("mount", "release", "counted"),
    [
        (("/", "ext4", "/dev/vda1"), "6.18.1", True),
        (("/", "overlay", "overlay"), "6.18.1", True),
        (("/d", "nfs4", "server:/d"), "5.14.0-427.el9.x86_64", True),
        (("/d", "nfs", "server:/d"), "6.1.0-13-amd64", False),
        (("/d", "nfs4", "server:/d"), "6.8.0-31-generic", True),
        (("/d", "fuse.s3fs", "s3fs"), "6.18.1", False),
        (("/d", "fuseblk", "/dev/sdb1"), "6.18.1", False),
        (("/d", "lustre", "10.0.0.1@tcp:/fs"), "6.18.1", False),
        (("/d", "zfs", "pool/d"), "6.18.1", False),
        (("", "", ""), "6.18.1", False),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_which_file_systems_the_kernel_counts(
    mount: tuple[str, str, str], release: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker_bench.measure.page_cache.mount_of", lambda _: mount)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(release=release))
    assert counts_device_reads.__wrapped__("/d") is counted


PASSES_ON: Final = """
import os, sys
from fuse import FUSE, Operations

class PassesOn(Operations):
    def __init__(self, root):
        self.root = root
    def getattr(self, path, handle=None):
        found = os.lstat(self.root + path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("st_") and name[-2:] != "ns"}
    def readdir(self, path, handle):
        return [".", "..", *os.listdir(self.root + path)]
    def open(self, path, flags):
        return os.open(self.root + path, flags)
    def read(self, path, size, offset, handle):
        return os.pread(handle, size, offset)
    def release(self, path, handle):
        os.close(handle)

FUSE(PassesOn(sys.argv[1]), sys.argv[2], foreground=True)
"""


@pytest.mark.processes
def test_on_fuse_nothing_is_known_of_the_device_and_the_run_says_so(tmp_path: Path) -> None:
    pytest.importorskip("fuse", exc_type=ImportError)  # of the package fusepy
    data, mount = tmp_path / "data", tmp_path / "mount"
    settings = ["dataset.files=2", f"dataset.record_bytes={SIZE}", "compute.seconds=0.001", "reader.threads=1"]
    made = read_workload(None, settings, environ={}, dotenv=None)
    make_data(made.workload, str(data))
    mount.mkdir()
    served = subprocess.Popen([sys.executable, "-c", PASSES_ON, str(data), str(mount)], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + PATIENCE
        while not os.path.ismount(mount) and time.monotonic() < deadline:
            if served.poll() is not None:
                pytest.skip("this container may not mount FUSE")
            time.sleep(0.05)
        result = run_in_threads(made, results=tmp_path / "r", url=str(mount), accelerators=1, stages=("train",))
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)
        served.terminate()
        served.communicate(timeout=PATIENCE)
    (epoch,) = result["epochs"]
    assert (epoch["device_bytes"], epoch["storage_bytes"]) == (None, None)
    reasons = {one["rule"]: one["reason"] for one in result["findings"] if one["invalid"]}
    assert "not known: the kernel does not count what is read of fuse" in reasons["page cache"]


def test_a_loader_that_hands_over_a_part_of_each_sample_has_to_read_all_of_it() -> None:
    """Without ``dataset.resize_bytes``, too."""
    whole = "dataset.resize_bytes=0"
    assert list(findings(whole, device=9_000_000, delivered=9_000_000)) == ["whole samples"]
    assert not findings(whole, device=100_000_000, delivered=100_000_000)


def test_samples_of_an_epoch_that_leaves_some_out_may_be_the_smaller_ones() -> None:
    """Eight of ten, of 10 MB in the mean and a deviation of 1 MB: 80 MB, and within five deviations 73.7 MB."""
    varied = "dataset.record_bytes_stdev=1_000_000"
    assert not findings(varied, device=71_000_000, samples=8)
    assert findings(varied, device=69_000_000, samples=8)
    assert findings(device=75_000_000, samples=8)  # all have the same size
    assert findings(varied, device=94_000_000)  # none is left out


@pytest.mark.processes
def test_a_block_device_over_a_file_in_memory_is_memory(tmp_path: Path) -> None:
    with small_disk(tmp_path / "memory", "4m") as memory:
        image, mount = memory / "image", tmp_path / "mount"
        image.write_bytes(bytes(2 << 20))
        mount.mkdir()
        for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
            if shutil.which(command[0]) is None or subprocess.run(command, check=False, capture_output=True).returncode:
                pytest.skip(f"this container may not: {' '.join(command)}")
        try:
            assert file_system(mount / "train") == ("ext4 on tmpfs", True)
        finally:
            subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.processes
def test_a_block_device_over_a_cached_file_tells_nothing_of_a_device(tmp_path: Path) -> None:
    """What it reads may come from the page cache, which has the file."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    image.write_bytes(bytes(2 << 20))
    mount.mkdir()
    for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(mount)]):
        if (
            os.geteuid() != 0
            or shutil.which(command[0]) is None
            or subprocess.run(command, check=False, capture_output=True).returncode
        ):
            pytest.skip(f"this container may not: {' '.join(command)}")
    try:
        device = Path("/sys/class/block", Path(mount_of(mount)[2]).name)
        assert (device / "loop/dio").read_text().strip() == "0"
        assert not counts_device_reads(str(mount))
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize(
    ("clocks", "apart"), [((10.0, 10.0, 10.04), 0.0), ((5.0, 5.0, 10.0), 0.495), ((10.0, 5.0, 10.0), 0.495)]
)
def test_clocks_that_differ_are_told(clocks: tuple[float, ...], apart: float) -> None:
    """A process whose clock runs slow computes less than it says, and waits less."""
    block = {"residue": 0.0, "seconds": 9.0, "counted": 20}
    assert _residue([{"blocks": [block], "clocks": clocks}]) == pytest.approx(apart)


def test_files_that_nobody_wrote_leave_the_page_cache_without_a_sync_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes a millisecond a file: before each epoch of 50,000 files nothing happened for a minute and a half."""
    for number in range(20):
        (tmp_path / f"{number}").write_bytes(bytes(5000))
    dropped(tmp_path)  # just written: they have to reach the device before
    for path in tmp_path.iterdir():
        path.read_bytes()
    assert cached_files(tmp_path).resident == 1.0
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    assert cached_files(tmp_path, drop=True).resident == 0.0
    assert not synced
