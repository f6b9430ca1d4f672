"""The same YAML through DLIO and through stoker, over the same files, which DLIO has generated.

    python3 tools/environments.py dlio
    python benchmarks/dlio.py --rounds 3 --json dlio.json
    python benchmarks/dlio.py --case many               # files of several samples alone

Two questions, each over files on the local disk that stay in the page cache, one accelerator, alternating in one run:

* ``compute``: steps take 323 ms, as unet3d's on an H100, far more than reading does. DLIO's torch loader against stoker's
  ``torch``, which is of the same kind: is the utilization, and are the samples a second, the same?
* ``loader``: steps take no time. DLIO's loader against stoker's own pipeline: how many samples a second come?

Once with npz files of one sample; then, as ``many-npz``, ``many-hdf5`` and ``many-tfrecord``, with 16 samples a file, and
steps of 100 ms in ``compute``. Of npz and HDF5 DLIO's torch loader opens the file anew for each sample, which is its default
(``read_type: on_demand``), and of npz it then reads all of it. TFRecord it reads by TensorFlow, as it has no torch reader for
it. Whatever it has read, it hands over one array that it made at the start.

Both are counted alike, from each step's time without the first step of an epoch, over all epochs but the first, in which
worker processes start: samples a second from the steps' durations, utilization as the nominal computing time in them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DLIO = HERE.parent / ".venvs" / "dlio" / "bin"

# DLIO 2.0.0 calls a sample's size record_length; later versions, and stoker, record_length_bytes.
YAML = """\
model: {{name: same, type: cnn}}
framework: {framework}
workflow: {{generate_data: False, train: True, checkpoint: False}}
dataset:
  data_folder: {data}
  format: {format}
  num_files_train: {files}
  num_samples_per_file: {samples}
  record_length: {size}
  record_length_bytes: {size}
  record_length_resize: {resized}
  record_length_bytes_resize: {resized}
  generation_buffer_size: 4000000
reader: {{data_loader: {framework}, batch_size: {batch}, read_threads: {threads}, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: {epochs}, computation_time: {seconds}}}
metric: {{au: 0.9}}
"""


@dataclass(frozen=True)
class Case:
    """What is read, and how long a step takes."""

    name: str
    loader: str
    files: int
    samples: int
    size: int
    resized: int
    batch: int
    seconds: float
    epochs: int = 3
    threads: int = 1
    format: str = "npz"

    def yaml(self, data: Path) -> str:
        framework = "tensorflow" if self.format == "tfrecord" else "pytorch"
        return YAML.format(**{**self.__dict__, "data": data, "framework": framework})


CASES = (
    Case("compute", "torch", 140, 1, 1 << 20, 150_000, 7, 0.323),
    Case("loader", "stoker", 2048, 1, 150_528, 150_528, 32, 0.0),
    *(
        case
        for kind in ("npz", "hdf5", "tfrecord")
        for case in (
            Case(f"many-{kind}-compute", "torch", 16, 16, 150_528, 150_528, 8, 0.1, format=kind),
            Case(f"many-{kind}-loader", "stoker", 128, 16, 150_528, 150_528, 32, 0.0, format=kind),
        )
    ),
)


def run_dlio(case: Case, work: Path, *, generate: bool) -> dict[str, float]:
    """Its steps, from the record that it leaves of them."""
    out = Path(tempfile.mkdtemp(dir=work))
    configs = out / "configs" / "workload"
    configs.mkdir(parents=True)
    (configs / "same.yaml").write_text(case.yaml(work / "data"))
    command = [
        str(DLIO / "dlio_benchmark"),
        f"--config-dir={out / 'configs'}",
        "workload=same",
        f"hydra.run.dir={out / 'run'}",
    ]
    if generate:
        command += ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
    if generate and case.format == "tfrecord":
        # A script of DALI's makes an index, which is for DALI's own reader: the one that is measured never looks at it.
        script = out / "bin" / "tfrecord2idx"
        script.parent.mkdir()
        script.write_text('#!/bin/sh\n: > "$2"\n')
        script.chmod(0o755)
    environ = {**os.environ, "PATH": f"{out / 'bin'}:{DLIO}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=out, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"DLIO ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    if generate:
        return {}
    epochs = json.loads(next(out.rglob("0_output.json")).read_text())
    durations = [
        np.array(block[1:], float)
        for epoch in sorted(key for key in epochs if key.isdigit() and int(key) > 1)
        for block in epochs[epoch]["proc"].values()
    ]
    shutil.rmtree(out)
    return measures(np.concatenate(durations), case)


def run_stoker(case: Case, work: Path, loader: str) -> dict[str, float]:
    """The same file, read by stoker."""
    from stoker_bench.run import run_benchmark
    from stoker_bench.settings.sources import read_workload

    out = Path(tempfile.mkdtemp(dir=work))
    path = out / "same.yaml"
    path.write_text(case.yaml(work / "data"))
    resolved = read_workload(str(path), [f"reader.loader={loader}", "storage.cache=keep"], environ={}, dotenv=None)
    run_benchmark(resolved, results=out / "results", url=str(work / "data"), accelerators=1, stages=("train",))
    durations = []
    for epoch in range(1, case.epochs):
        with np.load(out / "results" / "steps" / f"rank00000-train-0-{epoch}.npz") as steps:
            durations.append(
                np.diff(steps["asked"], append=steps["asked"][-1] + steps["wait"][-1] + steps["compute"][-1])[1:]
            )
    shutil.rmtree(out)
    return measures(np.concatenate(durations) * 1e-9, case)


def measures(durations: np.ndarray, case: Case) -> dict[str, float]:
    total = float(durations.sum())
    return {"samples_per_second": len(durations) * case.batch / total, "au": len(durations) * case.seconds / total}


def measure(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder, prefix="dlio-") as made:
        work = Path(made)
        run_dlio(case, work, generate=True)
        names = ["dlio", case.loader]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names if turn % 2 == 0 else names[::-1]:
                one = run_dlio(case, work, generate=False) if name == "dlio" else run_stoker(case, work, name)
                found[name].append(one)
                print(
                    f"{case.name:28} {name:8} {one['samples_per_second']:10.1f} samples/s   AU {one['au']:.2%}",
                    flush=True,
                )
    middle = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    ours, theirs = middle[case.loader], middle["dlio"]
    return {
        "case": case.__dict__,
        "runs": found,
        "samples_per_second_ratio": ours["samples_per_second"] / theirs["samples_per_second"],
        "au_difference": ours["au"] - theirs["au"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", help="only those whose name has this in it")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files are made")
    parser.add_argument("--json", type=Path, help="write all that was measured")
    options = parser.parse_args()
    if not (DLIO / "dlio_benchmark").exists():
        parser.error("DLIO is not there: python3 tools/environments.py dlio")
    cases = [case for case in CASES if not options.case or options.case in case.name]
    results = [measure(case, options.rounds, options.folder) for case in cases]
    for one in results:
        ratio, points = one["samples_per_second_ratio"], 100 * one["au_difference"]
        print(
            f"{one['case']['name']}: {one['case']['loader']} has {ratio:.3f} x DLIO's samples/s, AU {points:+.2f} points"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
