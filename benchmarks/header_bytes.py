"""Bytes, requests and time that the first start of tar or TFRecord files without an index takes to read their headers.

    STOKER_TEST_S3_ENDPOINT=... STOKER_TEST_S3_KEY=... STOKER_TEST_S3_SECRET=... python benchmarks/header_bytes.py

For members of several sizes, the same files are opened as they are, and with the way by heads switched off, in turns. Bytes
and requests are those that the store was asked for. `--delay` adds so many milliseconds to each request, as a distant store
does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from stoker.catalog.unindexed import inspect_headers as stepping
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.storage import Store, open_store
from stoker_bench.generation import DatasetSpec, generate

MIB = 1 << 20


class Counted:
    """Counts what is asked of all stores, and delays it."""

    def __init__(self, delay: float) -> None:
        self._lock = threading.Lock()
        self._delay = delay
        self._get, self._range = Store.get_ranges, Store.download_range
        self._download = Store.download
        self.reset()

    def reset(self) -> None:
        self.requests = self.bytes = 0

    def _count(self, size: int) -> None:
        time.sleep(self._delay)
        with self._lock:
            self.requests += 1
            self.bytes += size

    def install(self) -> None:
        def get_ranges(store: Store, key: str, starts: Any, ends: Any, **more: Any) -> Any:
            self._count(sum(ends) - sum(starts))
            return self._get(store, key, starts, ends, **more)

        def download(store: Store, key: str, path: Path, **more: Any) -> int:
            size = self._download(store, key, path, **more)
            self._count(size)
            return size

        def download_range(store: Store, key: str, path: Path, start: int, end: int, **more: Any) -> None:
            self._count(end - start)
            self._range(store, key, path, start, end, **more)

        Store.get_ranges = get_ranges  # type: ignore[method-assign, assignment]
        Store.download = download  # type: ignore[method-assign, assignment]
        Store.download_range = download_range  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="16,128,256,1024,4096", help="KiB of a member")
    parser.add_argument("--formats", default="tar,tfrecord")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--file-mib", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.0, metavar="MS")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    options: dict[str, Any] = {
        "endpoint": os.environ["STOKER_TEST_S3_ENDPOINT"],
        "access_key_id": os.environ["STOKER_TEST_S3_KEY"],
        "secret_access_key": os.environ["STOKER_TEST_S3_SECRET"],
        "region": "us-east-1",
        "client_options": {"allow_http": True},
    }
    bucket = os.environ.get("STOKER_TEST_S3_BUCKET", "stoker-headers")
    root = f"s3://{bucket}/{uuid.uuid4().hex[:12]}"
    counted = Counted(chosen.delay / 1e3)
    counted.install()
    found: list[dict[str, Any]] = []
    try:
        for name in chosen.formats.split(","):
            for kib in map(int, chosen.sizes.split(",")):
                url = f"{root}/{name}-{kib}"
                samples = max(1, chosen.file_mib * 1024 // kib)
                spec = DatasetSpec(format=name, files=chosen.files, samples_per_file=samples, record_bytes=kib << 10)
                generate(spec, url, storage_options=options)
                runs: dict[str, list[tuple[float, int, int]]] = {"heads": [], "whole": []}
                for _ in range(chosen.rounds):
                    for way, taken in runs.items():
                        taken.append(_open_headers(url, name, options, counted, whole=way == "whole"))
                row = {"format": name, "member_kib": kib, "mib": chosen.files * chosen.file_mib}
                for way, taken in runs.items():
                    seconds = statistics.median(one[0] for one in taken)
                    row[way] = {"seconds": round(seconds, 3), "requests": taken[-1][1], "mib": taken[-1][2] / MIB}
                found.append(row)
                if not chosen.json:
                    heads, whole = row["heads"], row["whole"]
                    print(
                        f"{name:9} members of {kib:5} KiB, {row['mib']} MiB in {chosen.files} files: "
                        f"{heads['mib']:7.1f} MiB in {heads['requests']:5} requests, {heads['seconds']:.2f} s; "
                        f"whole {whole['mib']:7.1f} MiB, {whole['seconds']:.2f} s",
                        flush=True,
                    )
    finally:
        store = open_store(root, options)
        for item in list(store.list()):
            store.delete(item.key)
    if chosen.json:
        print(json.dumps(found, indent=2))


def _open_headers(
    url: str, name: str, options: dict[str, Any], counted: Counted, *, whole: bool
) -> tuple[float, int, int]:
    """Seconds, requests and bytes of one first start with an empty cache."""
    usual = stepping.HeaderWalk.worth_trying
    if whole:
        stepping.HeaderWalk.worth_trying = lambda *_: False  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory(prefix="stoker-headers-") as cache:
            counted.reset()
            begun = time.perf_counter()
            open_unindexed(url, name, cache, storage_options=options)
            return time.perf_counter() - begun, counted.requests, counted.bytes
    finally:
        stepping.HeaderWalk.worth_trying = usual  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
