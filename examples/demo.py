"""Shows stoker on real text: writes shards, streams them shuffled, stops, resumes on more processes, checks the order.

Run it with ``make demo``, or ``python examples/demo.py [--small] [--out DIR]``. The exit status is 0 if every sample came
exactly once and in the order that a single process sees, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from tokenizers import Tokenizer

from demo_launch import Job, JobError, Reading, Shuffle, run_job
from demo_picture import draw, picture_of, sketch
from demo_proof import content_is_right, every_sample_once, merge, same_order
from demo_record import checksums
from demo_show import Show, megabytes
from demo_store import Written, write
from demo_text import Rows, standard_library, to_rows, train_tokenizer
from stoker import StokerError, StreamingDataset

GLOBAL_BATCH = 96  # 2 processes x 48 = 3 processes x 32
BEFORE, AFTER = 2, 3
# The order interleaves six spans of shards. Two and three both divide six, so each process reads shards of its own.
SHUFFLE = Shuffle(seed=2024, canonical_nodes=6)
STOP_AT = 0.4
# Epochs that a single process reads for speed, from a cache that holds all shards by then.
MORE_EPOCHS = 10
# Marks a folder as the demo's own, so that the next run may replace it.
MARK = ".stoker-demo"


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the text and the samples.

    Attributes:
        characters: characters of text to use; ``None`` for all.
        vocabulary: size of the tokenizer's vocabulary; at most 65,536, so that a token is a uint16.
        row: tokens in a sample.
        shard: most bytes of a shard, before compression.
    """

    characters: int | None
    vocabulary: int
    row: int
    shard: str


FULL = Size(characters=None, vocabulary=8192, row=256, shard="100kb")
SMALL = Size(characters=1_500_000, vocabulary=1024, row=64, shard="24kb")


def main() -> int:
    """Run the demo; returns the exit status."""
    options = _arguments()
    # A SIGTERM also ends the processes that the demo has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    show = Show()
    try:
        proven = run(options.out.absolute(), SMALL if options.small else FULL, show)
    except KeyboardInterrupt:
        show.line("[bold red]stopped[/]; no process is left running")
        return 130
    except (JobError, StokerError, OSError) as error:
        show.plain(f"{type(error).__name__}: {error}")
        return 1
    return 0 if proven else 1


def run(out: Path, size: Size, show: Show) -> bool:
    """Run all steps; returns whether all checks passed."""
    began = time.perf_counter()
    _fresh(out)
    show.opening()
    tokenizer, rows = make_rows(size, out, show)
    written = write_shards(rows, size, out, show)
    state = out / "state.json"
    before = stream(written.url, len(rows), state, out, show)
    after = resume(written.url, len(rows), state, out, show)
    alone = read_alone(written.url, len(rows), out, show)
    if not prove(rows, before, after, alone, show):
        show.line(f"[bold red]A check failed.[/] The records are in {escape(str(out))}")
        return False
    draw_shuffle(written, before, after, out, show)
    report(written, rows, {"2 processes": before, "3 processes": after, "1 process": alone}, out, show)
    look_around(written.url, tokenizer, int(merge([one.record for one in after])[0][0]), out, show)
    show.line(f"[bold green]All checks passed.[/] {time.perf_counter() - began:.1f} s in all.", indent=0)
    return True


# -- steps -------------------------------------------------------------------------------------------------------------


def make_rows(size: Size, out: Path, show: Show) -> tuple[Tokenizer, Rows]:
    """Train a tokenizer on real text, and cut the text into rows of tokens."""
    show.heading("1 Text", "the source files of this Python's standard library become rows of tokens")
    files = standard_library(size.characters)
    characters = sum(len(file.text) for file in files)
    with show.bar("training a tokenizer", characters) as tick:
        tokenizer = train_tokenizer(files, size.vocabulary, tick)
    tokenizer.save(str(out / "tokenizer.json"))
    with show.bar("tokenizing", characters) as tick:
        rows = to_rows(tokenizer, files, size.row, tick)
    show.line(f"{len(files):,} files, {characters / 1e6:.1f} M characters; vocabulary {tokenizer.get_vocab_size():,}")
    show.line(f"{rows.tokens.size:,} tokens, cut into {len(rows):,} samples of {size.row} tokens")
    return tokenizer, rows


def write_shards(rows: Rows, size: Size, out: Path, show: Show) -> Written:
    """Write rows as compressed and hashed MDS shards straight into an object store on disk."""
    show.heading("2 Write", "samples become MDS shards in an object store: compressed, hashed")
    with show.bar("writing", len(rows)) as tick:
        written = write(rows, out / "store", size.shard, tick)
    show.line(f"{len(written.shards)} shards of {megabytes(written.raw)}, as zstd {megabytes(written.stored)}, at")
    show.plain(written.url)
    show.line("[dim]They are this small so that there are many. For real data use 64 MB or more.[/]")
    return written


def stream(url: str, total: int, state: Path, out: Path, show: Show) -> list[Reading]:
    """Stream to two processes, and stop in the middle of the epoch."""
    batches = -(-total // GLOBAL_BATCH)
    stop = max(1, int(batches * STOP_AT))
    show.heading("3 Stream", f"{BEFORE} processes share one shuffled epoch and stop in the middle of it")
    job = _job("before", url, BEFORE, out, stop_after=stop, save=state)
    readings = _run(job, stop * GLOBAL_BATCH, show)
    text = json.dumps(json.loads(state.read_text(encoding="utf-8")))
    show.line(f"Stopped after {stop} of {batches} global batches; each is {BEFORE} x {job.batch_size} samples.")
    show.line(f"The state_dict is all that is saved: {len(text)} bytes of JSON.")
    show.line(f"[dim]{escape(text)}[/]")
    return readings


def resume(url: str, total: int, state: Path, out: Path, show: Show) -> list[Reading]:
    """Resume on three processes, from the state to the end of the epoch."""
    position = json.loads(state.read_text(encoding="utf-8"))["position"]
    show.heading("4 Resume", f"{AFTER} other processes load that state and read the rest of the epoch")
    show.line(
        f"They have an empty cache of their own. A global batch is now {AFTER} x {GLOBAL_BATCH // AFTER} samples."
    )
    return _run(_job("after", url, AFTER, out, resume=state), total - position, show)


def read_alone(url: str, total: int, out: Path, show: Show) -> list[Reading]:
    """Read the whole epoch in one process, to compare with, and some more epochs for speed."""
    show.heading("5 Compare", f"a single process reads the same epoch, and {MORE_EPOCHS} more for speed")
    return _run(_job("alone", url, 1, out, more_epochs=MORE_EPOCHS), total, show)


def prove(
    rows: Rows, before: Sequence[Reading], after: Sequence[Reading], alone: Sequence[Reading], show: Show
) -> bool:
    """Check what the processes recorded, and print the checks; returns whether all passed."""
    show.heading("Checks", "of the ids that the processes recorded")
    first, second, single = ([reading.record for reading in job] for job in (before, after, alone))
    merged = merge(first) + merge(second)
    checks = [
        every_sample_once(np.concatenate(merged), len(rows)),
        same_order(merged, merge(single)),
        content_is_right(first + second, checksums(rows.tokens)),
    ]
    show.checks(checks)
    return all(check.kept for check in checks)


def draw_shuffle(written: Written, before: Sequence[Reading], after: Sequence[Reading], out: Path, show: Show) -> None:
    """Draw the shuffle in the terminal and as a PNG."""
    picture = picture_of(before, after, [shard["samples"] for shard in written.shards], GLOBAL_BATCH)
    show.heading("Picture", "of the shuffle: which sample came when, and to which process")
    show.line(f"[dim]{picture.note}[/]")
    show.plain(sketch(picture, columns=64, rows=18), indent=0)
    draw(picture, out / "shuffle.png")


def report(written: Written, rows: Rows, jobs: dict[str, list[Reading]], out: Path, show: Show) -> None:
    """Print the measurements."""
    show.console.print()
    show.processes(list(jobs.items()), rows.tokens.shape[1])
    show.console.print()
    rate = written.raw / written.seconds / 1e6
    resumed = max(reading.first_batch for reading in jobs["3 processes"])
    facts = {
        "written": f"{megabytes(written.raw)} in {written.seconds:.2f} s: {rate:,.0f} MB/s with zstd, sha1 and xxh64",
        "compression": f"{written.raw / written.stored:.2f} x with zstd, {megabytes(written.stored)} stored",
        "fetched by 2 processes": _fetched(written, out / "cache-before"),
        "fetched by 3 processes": _fetched(written, out / "cache-after"),
        "resume to first batch": f"{resumed * 1000:,.0f} ms on the slowest rank",
    }
    show.facts("Writing, cache and resume", list(facts.items()))


def look_around(url: str, tokenizer: Tokenizer, sample: int, out: Path, show: Show) -> None:
    """Read one sample by its id, and print where the files are."""
    dataset = StreamingDataset(remote=url, local=out / "cache-alone")
    row = dataset[sample]
    dataset.close()
    text = tokenizer.decode(row["tokens"].tolist())
    lines = [line for line in text.splitlines() if line.strip()][1:5]
    show.heading("Look around", f"dataset[{sample}], the first sample after the stop, is from {row['file']}")
    show.plain("\n".join(f"│ {line}" for line in lines))
    show.console.print()
    show.line("The picture (shuffle.png), the store, the state and all records are in")
    show.plain(str(out))


# -- details -----------------------------------------------------------------------------------------------------------


def _job(name: str, url: str, world_size: int, out: Path, **options: Any) -> Job:
    return Job(name, url, out, SHUFFLE, world_size, GLOBAL_BATCH // world_size, predownload=4 * GLOBAL_BATCH, **options)


def _run(job: Job, samples: int, show: Show) -> list[Reading]:
    """Run a job with a progress bar for each rank."""
    with show.bars() as progress:
        tasks = [
            progress.add_task(f"rank {rank} of {job.world_size}", total=samples / job.world_size)
            for rank in range(job.world_size)
        ]
        readings = run_job(job, lambda rank, done: progress.update(tasks[rank], completed=done))
        for task, reading in zip(tasks, readings, strict=True):
            # The last, partial batch may be spread a little unevenly.
            progress.update(task, total=len(reading.record.ids))
    return readings


def _fetched(written: Written, cache: Path) -> str:
    fetched = written.fetched(cache)
    return (
        f"{fetched.shards} of {len(written.shards)} shards: {megabytes(fetched.moved)} downloaded, "
        f"{megabytes(fetched.kept)} cached"
    )


def _fresh(out: Path) -> None:
    """Make ``out`` an empty folder; refuse one that the demo did not make."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).exists():
            raise FileExistsError(f"{out} holds files that are not the demo's: name another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the text: a few seconds")
    default = Path(__file__).resolve().parents[1] / "demo-out"
    parser.add_argument(
        "--out", type=Path, default=default, help="folder for all output, replaced (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
