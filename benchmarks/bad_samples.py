"""Measure the cost of on_bad_sample="skip" and "replace" on data without bad samples, against "raise", with each loader.

    python benchmarks/bad_samples.py
    python benchmarks/bad_samples.py --rounds 41 --cases "token batches" "single samples"
    python benchmarks/bad_samples.py --cases shard tokens --kinds skip

All read the same local files in one process: one epoch (or a part of one) of each, one after the other, in an order that is
drawn anew in each turn. A round is some such turns, of loaders of its own: where in memory they come to lie differs by up to
1 %. What is measured is processor time, of all threads; Python's collector of garbage runs in between.

How to read the table: each turn gives the ratio of a loader's time to that of "raise" in the same turn, milliseconds apart.
Printed are the median of these ratios, less 1, and the interval that has it in 95 of 100 cases (see ``paired.py``).
``< 1 %`` is ``yes`` or ``no`` where the whole interval lies on that side, else ``open``: more rounds tell. Other programs
make intervals wider, and not the median larger. ``raise again`` is a second loader that raises: its true ratio is 0 %, and
where its interval has no 0 the others are not to be trusted either. ``least`` is the ratio of the least times: on an idle
machine it comes near the median, on a busy one it is chance. ``--cases`` takes names, or beginnings of names.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from paired import Ratio

import stoker
from stoker import (
    Adaptive,
    BadSamples,
    MDSWriter,
    StreamingConfig,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.writers import ParquetWriter

KINDS: Final = ("raise again", "skip", "replace")
BOUND: Final = 1.01


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        data: which data set.
        read: reads about an epoch.
        settings: of the dataset or the loader.
        epochs: turns of a round.
        make: makes what is read, of the folder of the data set, of what becomes of bad samples and of the settings.
    """

    data: str
    read: Callable[[Any], object]
    settings: dict[str, Any]
    epochs: int = 8
    make: Callable[..., Any] = lambda folder, treatment, **settings: StreamingDataset(
        folder, batch_size=64, on_bad_sample=treatment, **settings
    )


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


def all_of(loader: Any) -> None:
    for _ in loader:
        pass


def shard_loader(folder: Path, treatment: Any, **settings: Any) -> StreamingShardLoader:
    if "partition" in settings:  # a run of its own
        settings["coordinator"] = f"memory://bad-samples-{next(_runs)}"
    dataset = StreamingDataset(folder, shuffle=True, on_bad_sample=treatment)
    return StreamingShardLoader(dataset, StreamingConfig(checkpoint_interval=None, **settings))


def token_loader(folder: Path, treatment: Any, **settings: Any) -> StreamingParquetLoader:
    return StreamingParquetLoader(folder, None, 8, 2048, on_bad_sample=treatment, pad_id=0, **settings)


_runs = count()


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
    "shard loader, batches": Case("tokens", all_of, {"batch_size": 64}, make=shard_loader),
    "shard loader, samples": Case("tokens", all_of, {}, make=shard_loader),
    "shard loader, by a plan": Case("tokens", all_of, {"global_batch_size": 64}, make=shard_loader),
    "shard loader, leased": Case("tokens", all_of, {"partition": Adaptive(), "batch_size": 64}, make=shard_loader),
    "shard loader, leased samples": Case("tokens", all_of, {"partition": Adaptive()}, 2, make=shard_loader),
    "tokens, joined": Case("documents", all_of, {}, make=token_loader),
    "tokens, packed": Case("documents", all_of, {"layout": "pack"}, make=token_loader),
    "tokens, a row each": Case("documents", all_of, {"layout": "truncate"}, make=token_loader),
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
    documents = [chance.integers(0, 50_000, int(length), np.uint16) for length in chance.integers(1, 3000, 2500)]
    (folder / "documents").mkdir()
    for number in range(2):
        some = pa.array(documents[number::2], pa.list_(pa.uint16()))
        pq.write_table(pa.table({"tokens": some}), folder / "documents" / f"{number}.parquet", row_group_size=250)
    images = [picture(number) for number in range(16)]
    with MDSWriter({"image": "jpeg", "text": "str"}, folder / "images", size_limit="4MB") as out:
        for number in range(1200):
            out.write({"image": images[number % 16], "text": texts[number]})


def turns(case: Case, folder: Path, rounds: int, kinds: Sequence[str]) -> Iterator[dict[str, float]]:
    """Processor seconds of each kind, turn by turn."""
    order, chance = ["raise", *kinds], random.Random(0)
    for _ in range(rounds):
        made: dict[str, Any] = {}
        for kind in chance.sample(order, len(order)):
            treatment: Any = "raise" if kind.startswith("raise") else BadSamples(kind)  # type: ignore[arg-type]
            made[kind] = case.make(folder / case.data, treatment, **case.settings)
        for number in range(case.epochs + 1):
            chance.shuffle(order)
            found: dict[str, float] = {}
            for kind in order:
                if isinstance(made[kind], StreamingDataset):
                    made[kind].set_epoch(0)
                gc.collect()
                gc.disable()
                begun = time.process_time()
                case.read(made[kind])
                found[kind] = time.process_time() - begun
                gc.enable()
            if number:  # the first turn opens the shards
                yield found
        for one in made.values():
            one.close()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="default: 24")
    parser.add_argument("--cases", nargs="*", default=[""], metavar="CASE")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    chosen = parser.parse_args()
    cases = [name for name in CASES if name.startswith(tuple(chosen.cases))]
    if not cases:
        parser.error(f"--cases: there are {', '.join(map(repr, CASES))}")
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"stoker {stoker.__version__}, {time.strftime('%Y-%m-%d')}, {chosen.rounds} rounds"
    )
    print(f"{'case':29}{'ms':>7}" + "".join(f"{kind:>44}" for kind in chosen.kinds))
    print(f"{'':36}" + f"{'median (95 %)':>30}{'< 1 %':>6}{'least':>8}" * len(chosen.kinds))
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        for name in cases:
            found = list(turns(CASES[name], Path(scratch), chosen.rounds, chosen.kinds))
            least = {kind: min(one[kind] for one in found) for kind in ("raise", *chosen.kinds)}
            said = f"{name:29}{1000 * statistics.median(one['raise'] for one in found):7.1f}"
            for kind in chosen.kinds:
                ratio = Ratio.of([one[kind] / one["raise"] for one in found])
                said += f"{ratio!s:>30}{ratio.keeps(BOUND):>6}{least[kind] / least['raise'] - 1:+8.2%}"
            print(said, flush=True)


if __name__ == "__main__":
    main()
