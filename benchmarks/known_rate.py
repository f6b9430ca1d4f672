"""Compares what stoker bench says of storage of a known rate, MB/s and utilization, with arithmetic.

    python benchmarks/known_rate.py                            # as root, about 10 minutes
    python benchmarks/known_rate.py --kinds objects --json known_rate.json

``files`` are on a local disk that the kernel limits (blkio.throttle.read_bps_device, root only). ``objects`` are in the
tests' S3 server behind a proxy that limits what it sends. A step takes ``part`` of the time in which the storage delivers its
batch. Where that is below 1, the utilization is ``part``, and the storage's MB/s are the rate. Else the utilization is 1, and
MB/s are the rate / ``part``. Of two epochs the second counts: in the first, processes start. Its utilization
stands beside the second's: new data is measured as data that was read before.

A batch has 4 MB, so that a step takes 100 ms or more: torch's ``DataLoader`` itself takes 1 to 3 ms to hand over a batch,
also from memory. No storage explains that time: it is 3 % of a step of 60 ms, and 1 % of one of 250 ms. Loaders read two
batches ahead. What is read ahead at the begin of an epoch comes at the storage's rate, however long steps take, so it has
to be a small part of the epoch, and of the steps that are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from s3server import make_bucket, run_s3_server
from stoker_bench.measure.generation import make_data
from stoker_bench.settings.sources import read_workload
from throttle import throttled_device, throttled_server

BATCH, SIZE, WARM_UP = 4, 1_000_000, 10
WORKERS = 2
OPTIONS = {"stoker": {"predownload": 2 * BATCH}, "torch": {"prefetch_factor": 1}}  # of each worker


@dataclass(frozen=True)
class Place:
    """Where the data is, how it is read, and at which rate."""

    url: str
    options: dict[str, Any]
    group: Path | None
    rate: float


@contextlib.contextmanager
def place(kind: str, rate: float, settings: list[str], work: Path) -> Iterator[Place]:
    """Data that lies in storage of the rate; it is written without the limit."""
    if kind == "files":
        make_data(read_workload(None, settings, environ={}, dotenv=None).workload, str(work / "data"))
        with throttled_device(work, rate) as group:
            if group is None:
                raise SystemExit("files: only root may limit a disk, and only where blkio is a control group (v1)")
            yield Place(str(work / "data"), {}, group, rate)
        return
    with run_s3_server() as server, make_bucket(server) as bucket:
        whole = [*settings, f"storage.options={json.dumps(bucket.storage_options)}"]
        make_data(read_workload(None, whole, environ={}, dotenv=None).workload, f"{bucket.url}/data")
        with throttled_server(server.endpoint, rate) as endpoint:
            yield Place(f"{bucket.url}/data", {**bucket.storage_options, "endpoint": endpoint}, None, rate)


def measured(where: Place, settings: list[str], loader: str, seconds: float, results: Path) -> dict[str, Any]:
    """A run as a command, in the control group of the limit where there is one."""
    workload = results.with_suffix(".yaml")
    workload.write_text("name: known rate\n")
    more = [f"compute.seconds={seconds}", f"storage.options={json.dumps(where.options)}", f"reader.loader={loader}"]
    more.append(f"reader.options={json.dumps(OPTIONS.get(loader, {}))}")
    command = [sys.executable, "-m", "stoker", "bench", "run", str(workload), *settings, *more]
    command += ["--data", where.url, "--results", str(results), "--stages", "train"]

    def join() -> None:
        if where.group is not None:
            (where.group / "cgroup.procs").write_text(str(os.getpid()))

    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, preexec_fn=join, timeout=600)
    found: dict[str, Any] = json.loads((results / "results.json").read_text())
    return found


def main() -> None:
    """Print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="files,objects")
    parser.add_argument("--loaders", default="stoker,torch")
    parser.add_argument("--parts", default="0.5,1.25")
    parser.add_argument("--rate", type=float, default=20.0, help="MB/s")
    parser.add_argument("--seconds", type=float, default=24.0, help="of reading an epoch")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    rows = []
    print(
        "| storage | loader | MB/s known | MB/s said | | AU by arithmetic | AU, first epoch | AU | nominal AU "
        "| to the step MB/s | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind in chosen.kinds.split(","):
        rate = chosen.rate * 1e6
        steps = round(chosen.seconds * rate / (BATCH * SIZE))
        settings = [
            *(f"dataset.files={steps * BATCH}", f"dataset.record_bytes={SIZE}", "dataset.resize_bytes=100000"),
            *(
                f"reader.batch_size={BATCH}",
                f"reader.threads={WORKERS}",
                f"metric.exclude_start={WARM_UP}",
                "metric.au=0",
                "train.epochs=2",
            ),
        ]
        with tempfile.TemporaryDirectory() as folder, place(kind, rate, settings, Path(folder)) as where:
            for part in map(float, chosen.parts.split(",")):
                for loader in chosen.loaders.split(","):
                    results = Path(folder) / f"{loader}-{part}"
                    result = measured(where, settings, loader, part * BATCH * SIZE / rate, results)
                    epoch = result["epochs"][-1]
                    said, known = epoch["storage_bytes_per_second"], rate / max(1, part)
                    row = {
                        "storage": kind,
                        "loader": loader,
                        "known": known,
                        "said": said,
                        "expected_au": min(1, part),
                        "first_au": result["epochs"][0]["au"],
                        **{name: epoch[name] for name in ("au", "au_nominal")},
                        "delivered": epoch["delivered_bytes_per_second"],
                        "verdict": result["verdict"],
                        "invalid": [one["reason"] for one in result["findings"] if one["invalid"]],
                    }
                    rows.append(row)
                    print(
                        f"| {kind} | {loader} | {known / 1e6:.2f} | {said / 1e6:.2f} | {said / known - 1:+.1%} "
                        f"| {row['expected_au']:.1%} | {row['first_au']:.1%} | {row['au']:.1%} | {row['au_nominal']:.1%} "
                        f"| {row['delivered'] / 1e6:.2f} | {row['verdict']} |",
                        flush=True,
                    )
    about = {"machine": f"{os.cpu_count()} processors, {platform.platform()}", "python": platform.python_version()}
    about |= {name: version(name) for name in ("stoker", "torch", "obstore", "moto")}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
