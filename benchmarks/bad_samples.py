"""Measure the cost of on_bad_sample="skip" and "replace" on data without bad samples, against "raise".

    python benchmarks/bad_samples.py
    python benchmarks/bad_samples.py --rounds 41 --cases "token batches" "single samples"

All three read the same shards of a local directory, in alternation, one after the other in each round, in an order that
changes from round to round. A round's figure is the processor time of one to all of an epoch; the table has the median of the
ratios to "raise" of the same round, and the quartiles of these ratios. ``raise again`` is a second dataset that raises: the
ratio of two that are the same, which says how exact the others are.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import stoker
from stoker import BadSamples, MDSWriter, StreamingDataset
from stoker.writers import ParquetWriter

KINDS: Final = ("raise", "raise again", "skip", "replace")


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        data: which data set.
        read: reads about an epoch.
        settings: of the dataset.
        epochs: how often, so that a measurement takes a tenth of a second.
    """

    data: str
    read: Callable[[StreamingDataset], object]
    settings: dict[str, Any]
    epochs: int = 8


def samples_of(dataset: StreamingDataset) -> None:
    for _ in dataset:
        pass


def batches_of(dataset: StreamingDataset) -> None:
    for _ in dataset.batches():
        pass


def pictures_of(dataset: StreamingDataset) -> None:
    for sample in dataset:
        sample["image"].load()  # which on_bad_sample= has done already


def single(dataset: StreamingDataset) -> None:
    for number in random.Random(1).sample(range(dataset.size), 5000):
        dataset[number]


def length_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "length": len(sample["text"])}


CASES: Final = {
    "token batches": Case("tokens", batches_of, {"shuffle": True}),
    "token samples": Case("tokens", samples_of, {"shuffle": True}),
    "text samples, transform": Case(
        "texts", samples_of, {"shuffle": True, "transform": length_of, "read": stoker.ReadOptions(read_threads=0)}
    ),
    "text batches": Case("texts", batches_of, {"shuffle": True}),
    "single samples": Case("tokens", single, {}),
    "Parquet batches": Case("parquet", batches_of, {"format": "parquet", "shuffle": True}),
    "Parquet samples": Case("parquet", samples_of, {"format": "parquet", "shuffle": True}),
    # Last: a process that has read images looks for some in all samples.
    "image and text samples": Case("images", pictures_of, {"shuffle": True}, 1),
    "text samples, after images": Case("texts", samples_of, {"shuffle": True}),
}


def picture(number: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    pixels = np.random.default_rng(number % 16).integers(0, 255, (12, 16, 3), np.uint8)
    Image.fromarray(pixels).resize((256, 192)).save(out, "jpeg")
    return out.getvalue()


def write(folder: Path) -> None:
    """Write the data sets."""
    chance = np.random.default_rng(0)
    tokens = chance.integers(0, 50_000, (4000, 1024), np.uint16)
    with MDSWriter({"tokens": "ndarray:uint16:1024"}, folder / "tokens", size_limit="4MB") as out:
        for _ in range(5):
            out.write_batch({"tokens": tokens})
    texts = ["some words of a text " * int(number) for number in chance.integers(1, 40, 20_000)]
    with MDSWriter({"id": "int", "text": "str"}, folder / "texts", size_limit="4MB") as out:
        out.write_batch({"id": np.arange(len(texts)), "text": texts})
    with ParquetWriter({"id": "int", "text": "str"}, folder / "parquet") as table:
        table.write_batch({"id": np.arange(len(texts)), "text": texts})
    images = [picture(number) for number in range(16)]
    with MDSWriter({"image": "jpeg", "text": "str"}, folder / "images", size_limit="4MB") as out:
        for number in range(1200):
            out.write({"image": images[number % 16], "text": texts[number]})


def rounds(case: Case, folder: Path, count: int) -> Iterator[dict[str, float]]:
    """Processor seconds of each kind, round by round."""
    datasets = {}
    for kind in KINDS:
        treatment: Any = "raise" if kind.startswith("raise") else BadSamples(kind)  # type: ignore[arg-type]
        datasets[kind] = StreamingDataset(folder / case.data, batch_size=64, on_bad_sample=treatment, **case.settings)
    for number in range(count + 1):
        found = {}
        for turn in range(len(KINDS)):
            kind = KINDS[(turn + number) % len(KINDS)]
            dataset = datasets[kind]
            dataset.set_epoch(0)
            begun = time.process_time()
            for _ in range(case.epochs):
                case.read(dataset)
            found[kind] = time.process_time() - begun
        if number:  # the first one opens the shards
            yield found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="default: 24")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES), metavar="CASE")
    chosen = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"stoker {stoker.__version__}, {time.strftime('%Y-%m-%d')}, {chosen.rounds} rounds"
    )
    print(f"{'case':28}{'ms':>8}" + "".join(f"{kind:>26}" for kind in KINDS[1:]))
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        for name in chosen.cases:
            found = list(rounds(CASES[name], Path(scratch), chosen.rounds))
            said = f"{name:28}{1000 * statistics.median(one['raise'] for one in found):8.1f}"
            for kind in KINDS[1:]:
                low, middle, high = statistics.quantiles([one[kind] / one["raise"] - 1 for one in found], n=4)
                said += f"{middle:+12.2%} ({low:+.1%} {high:+.1%})"
            print(said, flush=True)


if __name__ == "__main__":
    main()
