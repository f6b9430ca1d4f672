"""Measure the cost of on_bad_sample="skip" and "replace" on data without bad samples, against "raise", with each loader.

    python benchmarks/bad_samples.py                                    # about 9 minutes
    python benchmarks/bad_samples.py --rounds 60 --cases "token batches" "single samples"
    python benchmarks/bad_samples.py --instructions --cases shard tokens    # on a busy machine

All read the same local files in one process: one epoch (or a part of one) of each, one after the other, in an order that is
drawn anew in each turn. A round is as many turns as take 0.6 s, of loaders of its own: where in memory they come to lie
differs by up to 1 %. Measured are processor time, of all threads, and wall time. Garbage is collected in between.

How to read the table: a turn gives the ratio of a loader's time to that of "raise" in the same turn, milliseconds apart; a
round the median of its turns; printed are the median of the rounds, less 1, and the interval that has it in 95 of 100 cases
(see ``paired.py``). ``< 1 %`` is ``yes`` or ``no`` where the whole interval of processor times lies on that side, else
``open``: more rounds tell. Other programs make intervals wider, and not the median larger. ``raise again`` is a second loader
that raises: its true ratio is 0 %, and where its interval has no 0 the others are not to be trusted either. ``--cases`` takes
names, or beginnings of names.

``--instructions`` counts instead the instructions of an epoch of each, the least of ``--rounds`` (2 do): see
``instructions.py``. A case takes about a minute.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from instructions import Counter, counted
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
# Of tokens and texts: an epoch takes 16 ms or more, beside which the 0.04 ms that it costs to begin one are little.
SAMPLES: Final = 60_000
BOUND: Final = 1.01
# Seconds of a round, and turns that it has at most.
ROUND: Final = 0.6
TURNS: Final = 30


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        data: which data set.
        read: reads about an epoch.
        settings: of the dataset or the loader.
        make: makes what is read, of the folder of the data set, of what becomes of bad samples and of the settings.
        after: the case that the process has read before; "": any or none.
    """

    data: str
    read: Callable[[Any], object]
    settings: dict[str, Any]
    make: Callable[..., Any] = lambda folder, treatment, **settings: StreamingDataset(
        folder, batch_size=64, on_bad_sample=treatment, **settings
    )
    after: str = ""


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
    "shard loader, leased samples": Case("tokens", all_of, {"partition": Adaptive()}, make=shard_loader),
    "tokens, joined": Case("documents", all_of, {}, make=token_loader),
    "tokens, packed": Case("documents", all_of, {"layout": "pack"}, make=token_loader),
    "tokens, a row each": Case("documents", all_of, {"layout": "truncate"}, make=token_loader),
    # Last: a process that has read images looks for some in all samples.
    "image and text samples": Case("images", pictures_of, {"shuffle": True}),
    "text samples, after images": Case("texts", samples_of, {"shuffle": True}, after="image and text samples"),
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
        for _ in range(SAMPLES // len(tokens)):
            out.write_batch({"tokens": tokens})
    texts = ["some words of a text " * int(number) for number in chance.integers(1, 40, SAMPLES)]
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
        for number in range(240):
            out.write({"image": images[number % 16], "text": texts[number]})


def made(case: Case, folder: Path, kind: str) -> Any:
    """What is read."""
    treatment: Any = "raise" if kind.startswith("raise") else BadSamples(kind)  # type: ignore[arg-type]
    return case.make(folder / case.data, treatment, **case.settings)


def read(case: Case, one: Any) -> None:
    """Read an epoch; always the first of a dataset, the next one of a loader."""
    if isinstance(one, StreamingDataset):
        one.set_epoch(0)
    case.read(one)


def read_before(case: Case, folder: Path) -> None:
    """Read what the process is to have read before."""
    if case.after:
        one = made(CASES[case.after], folder, "raise")
        read(CASES[case.after], one)
        one.close()


def timed(case: Case, one: Any) -> tuple[float, float]:
    """Processor seconds and seconds of an epoch."""
    gc.collect()
    gc.disable()
    wall, begun = time.perf_counter(), time.process_time()
    read(case, one)
    took = time.process_time() - begun, time.perf_counter() - wall
    gc.enable()
    return took


def rounds_of(
    case: Case, folder: Path, rounds: int, kinds: Sequence[str]
) -> Iterator[list[dict[str, tuple[float, float]]]]:
    """For each turn of a round the times of each kind."""
    order, chance = ["raise", *kinds], random.Random(0)
    read_before(case, folder)
    turns = 0
    for _ in range(rounds):
        loaders = {kind: made(case, folder, kind) for kind in chance.sample(order, len(order))}
        for one in loaders.values():
            read(case, one)  # opens the shards
        gc.collect()
        gc.freeze()  # what is there already is not looked at in each turn
        begun, found = time.perf_counter(), []
        while not found or len(found) < turns:
            found.append({kind: timed(case, loaders[kind]) for kind in chance.sample(order, len(order))})
            turns = turns or min(TURNS, max(1, round(ROUND / (time.perf_counter() - begun))))
        gc.unfreeze()
        yield found
        for one in loaders.values():
            one.close()


def measure(names: Sequence[str], folder: Path, rounds: int, kinds: Sequence[str]) -> None:
    """Measure times, and print a table."""
    print(f"{'case':29}{'ms':>7} {'':12}{'processor time (95 %)':>31}{'< 1 %':>7}{'wall time (95 %)':>32}")
    told: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name in names:
        found = list(rounds_of(CASES[name], folder, rounds, kinds))
        head = f"{name:29}{1000 * statistics.median(turn['raise'][0] for turns in found for turn in turns):7.1f}"
        for kind in kinds:
            processor, wall = (
                Ratio.of([statistics.median(turn[kind][at] / turn["raise"][at] for turn in turns) for turns in found])
                for at in (0, 1)
            )
            told[kind].append(processor.keeps(BOUND))
            print(f"{head:36} {kind:12}{processor!s:>31}{told[kind][-1]:>7}{wall!s:>32}", flush=True)
            head = ""
    for kind in kinds:
        print(f"{kind}: " + ", ".join(f"{told[kind].count(said)} {said}" for said in ("yes", "open", "no")))


def count_instructions(names: Sequence[str], folder: Path, rounds: int, kinds: Sequence[str]) -> None:
    """Count instructions, each case in a process of its own, and print a table."""
    print(f"{'case':29}{'million':>8}" + "".join(f"{kind:>13}" for kind in kinds))
    for number, name in enumerate(names):
        own = folder / f"counted-{number}"
        own.mkdir()
        found = counted(own, [__file__, "--counts", name, "--data", str(folder), f"--rounds={rounds}", "--library"])
        least = {kind: min(found[kind.replace(" ", "_")]) for kind in ("raise", *kinds)}
        said = "".join(f"{least[kind] / least['raise'] - 1:+13.2%}" for kind in kinds)
        print(f"{name:29}{least['raise'] / 1e6:8.1f}{said}", flush=True)


def count_case(name: str, folder: Path, rounds: int, library: str) -> None:
    """Count the instructions of a case, in a process that was started for that."""
    counter, case = Counter(library), CASES[name]
    read_before(case, folder)
    for kind in ("raise", *KINDS):
        one = made(case, folder, kind)
        for _ in range(2):
            read(case, one)
        gc.collect()
        gc.disable()
        counter.count(kind.replace(" ", "_"), partial(read, case, one), rounds)
        gc.enable()
        one.close()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="default: 24, or 2 with --instructions")
    parser.add_argument("--cases", nargs="*", default=[""], metavar="CASE")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--instructions", action="store_true", help="count instructions, by valgrind")
    for inner in ("--counts", "--data", "--library"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    rounds = chosen.rounds or (2 if chosen.instructions else 24)
    if chosen.counts is not None:
        count_case(chosen.counts, Path(chosen.data), rounds, chosen.library)
        return
    beginnings = tuple(given for given in chosen.cases if given not in CASES)
    cases = [name for name in CASES if name in chosen.cases or name.startswith(beginnings)]
    if not cases:
        parser.error(f"--cases: there are {', '.join(map(repr, CASES))}")
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"stoker {stoker.__version__}, {time.strftime('%Y-%m-%d')}, {rounds} rounds"
    )
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        (count_instructions if chosen.instructions else measure)(cases, Path(scratch), rounds, chosen.kinds)


if __name__ == "__main__":
    main()
