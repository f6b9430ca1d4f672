"""All public workload files of DLIO and MLPerf Storage, as facts: each loads, and generates and trains scaled down.

``public_workloads.jsonl`` has a line for each set of values: where it is published (repository; tags and branches), the
file's name, and keys with their values. ``python packages/stoker-bench/tests/bench/public_workloads.py``
runs all of them, which takes about ten minutes, and prints a table; with ``--write`` it becomes that of
``docs/bench/dlio_files.md``.
``test_bench_public_workloads.py`` loads all of them, and runs one of each shape.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import Resolved, read_workload

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent.parent / "docs" / "bench" / "dlio_files.md"
_MARK: Final = "<!-- made by packages/stoker-bench/tests/bench/public_workloads.py -->\n"
_LARGE: Final = 1 << 20


@dataclass(frozen=True)
class PublicWorkload:
    """A published workload file: its values, and where they are from."""

    source: str
    refs: tuple[str, ...]
    name: str
    keys: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.source.partition('/')[2]} {self.refs[0]} {self.name}"

    def nested(self) -> dict[str, Any]:
        """The keys as the sections of a file."""
        made: dict[str, Any] = {}
        for path, value in self.keys.items():
            *sections, last = path.split(".")
            inner = made
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = value
        return made

    def read(self, folder: Path, *arguments: str) -> Resolved:
        path = folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(self.nested()))
        return read_workload(path, arguments, environ={}, dotenv=None)

    @property
    def record_bytes(self) -> int:
        """The size of a record, as the version of DLIO that the file is for has it."""
        return int(self.keys.get("dataset.record_length_bytes", self.keys.get("dataset.record_length", 65536)))

    @property
    def shape(self) -> tuple[Any, ...]:
        """What decides which code runs it: one of each shape is run by the tests."""
        keys = self.keys
        return (
            keys.get("dataset.format"),
            keys.get("dataset.num_samples_per_file", 1) > 1,
            bool(keys.get("dataset.record_length_bytes_resize")),
            keys.get("workflow.train", True),
            bool(keys.get("workflow.checkpoint")),
            bool(keys.get("workflow.evaluation")),
            self.name.startswith("llama"),
        )


def all_workloads() -> list[PublicWorkload]:
    rows = (json.loads(line) for line in (HERE / "public_workloads.jsonl").read_text().splitlines())
    return [PublicWorkload(row["source"], tuple(row["refs"]), row["name"], row["keys"]) for row in rows]


def one_of_each_shape() -> list[PublicWorkload]:
    return list({one.shape: one for one in all_workloads()}.values())


def small(found: PublicWorkload, folder: Path) -> list[str]:
    """Settings that make it small: a few files, samples above 1 MiB and models cut; formats, stages and keys stay."""
    workload = found.read(folder).workload
    dataset, model = workload.dataset, workload.model
    cut = max(1, dataset.record_bytes // _LARGE + 1)
    settings = [
        *("dataset.files=6", f"dataset.samples_per_file={min(4, dataset.samples_per_file)}", "reader.threads=1"),
        *("reader.batch_size=1", "train.epochs=1", "compute.seconds=0.001", "checkpoint.pause_seconds=0"),
        f"dataset.record_bytes={dataset.record_bytes // cut}",
        f"dataset.record_bytes_stdev={dataset.record_bytes_stdev // cut}",
        f"dataset.resize_bytes={dataset.resize_bytes // cut}",
        *(
            "checkpoint.after_epoch=1",
            "checkpoint.every_epochs=1",
            f"model.size_bytes={min(1 << 20, model.size_bytes)}",
        ),
        *(f"checkpoint.{kind}={min(1, getattr(workload.checkpoint, kind))}" for kind in ("writes", "reads")),
    ]
    if dataset.files_eval:
        settings.append("dataset.files_eval=2")
    if workload.train.steps is not None:
        settings.append("train.steps=4")
    if workload.checkpoint.every_steps is not None:
        settings.append("checkpoint.every_steps=3")
    if model.layers:
        whole = max(1, 8192 // model.attention_heads // 64)
        width = model.attention_heads * whole
        settings += [f"model.layers={model.pipeline}", "model.vocab_size=1000", "model.data=1"]
        settings += [f"model.hidden_size={width}", f"model.ffn_hidden_size={2 * width}"]
    if model.optimization_groups:
        settings.append("model.optimization_groups=[1000, 500, 10]")
    if model.layer_parameters:
        settings.append("model.layer_parameters=[2000, 300]")
    return settings


def run(found: PublicWorkload, folder: Path) -> dict[str, Any]:
    """Generate and train it scaled down, on one accelerator; its results."""
    resolved = found.read(folder, *small(found, folder), f"checkpoint.url={folder / 'c'}")
    stages = resolved.workload.stages
    if {"train"}.intersection(stages) or "generate" in stages:
        stages = ("generate", "train", *(one for one in stages if one in {"evaluate", "checkpoint"}))
    return run_benchmark(resolved, results=folder / "r", url=str(folder / "d"), stages=stages)


def row(found: PublicWorkload, result: dict[str, Any]) -> str:
    """What came of it, as a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        whole = found.read(Path(folder)).workload
    listed = result["listing"].get("train")
    epochs = [one for one in result["epochs"] if one["kind"] == "train"]
    saves = len((result["checkpoint"] or {}).get("saves", ()))
    trained = "dataset.format" in found.keys or "dataset.record_length" in found.keys
    cells = (
        found.source,
        ", ".join(found.refs),
        found.name,
        f"{whole.dataset.format}, {whole.dataset.files:,} of {whole.dataset.samples_per_file:,}" if trained else "-",
        f"{whole.dataset.sample_bytes:,}" if trained else "-",
        f"{listed['bytes'] / (listed['files'] * result['plan']['workload']['dataset']['samples_per_file']):,.0f}"
        f" of {result['plan']['workload']['dataset']['record_bytes']:,}"
        if listed
        else "-",
        str(sum(int(one["samples"]) for one in epochs)) if epochs else "-",
        str(saves) if saves else "-",
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    head = (
        "| repository | tags and branches | file | format, files of so many samples | record, bytes |"
        " scaled down, bytes a sample on disk | samples trained | checkpoints |\n|---|---|---|---|---|---|---|---|"
    )
    rows = [head]
    for found in all_workloads():
        with tempfile.TemporaryDirectory(prefix="stoker-public-") as folder:
            rows.append(row(found, run(found, Path(folder))))
        sys.stderr.write(f"{rows[-1]}\n")
    table = "\n".join(rows) + "\n"
    sys.stdout.write(table)
    if "--write" in arguments:
        before, mark, _ = PAGE.read_text().partition(_MARK)
        PAGE.write_text(before + mark + table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
