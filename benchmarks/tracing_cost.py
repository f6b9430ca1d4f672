"""Measure what a trace costs: processor time of reading with a trace, without, and without in an earlier revision.

    python benchmarks/tracing_cost.py                   # with against without, of the working tree
    python benchmarks/tracing_cost.py --before HEAD~5   # also without, against an earlier commit

Cases are batches of tokens, their samples one by one, pictures (JPEG) one by one and as batches of a transform, and rows of a
``StreamingParquetLoader``. One process reads with and without a trace in turn, in every other round in reverse; revisions
are processes of their own, in turn. The figure is the ratio of processor time (``process_time``), median of the rounds, and
that of the least times, which a busy machine disturbs less. The trace's file is written after the measured time; how long
that takes is printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

TOKENS, PICTURES = 100_000, 1500


def write(folder: Path) -> None:
    """Write the data of all cases."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    from stoker import MDSWriter

    rng = np.random.default_rng(0)
    with MDSWriter({"tokens": "ndarray:uint16:512"}, folder / "tokens", size_limit="8mb") as out:
        out.write_batch({"tokens": rng.integers(0, 50_000, (TOKENS, 512), dtype=np.uint16)})
    with MDSWriter({"image": "bytes", "label": "int"}, folder / "pictures") as out:
        for number in range(PICTURES):
            data = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)).resize((200, 160)).save(data, "JPEG")
            out.write({"image": data.getvalue(), "label": number})
    rows = pa.ListArray.from_arrays(
        np.arange(0, 40_000 * 400 + 1, 400, dtype=np.int32), rng.integers(1, 50_000, 40_000 * 400, dtype=np.uint16)
    )
    (folder / "rows").mkdir()
    pq.write_table(pa.table({"input_ids": rows}), folder / "rows" / "0.parquet", row_group_size=2000)


def _picture(sample: dict[str, Any]) -> dict[str, Any]:
    import io

    import numpy as np
    from PIL import Image

    return {"image": np.asarray(Image.open(io.BytesIO(sample["image"]))), "label": sample["label"]}


def _loader(case: str, folder: Path) -> tuple[Any, Callable[[Any], Iterator[Any]], int]:
    """A loader, what iterates over it, and epochs to read."""
    from stoker import StreamingDataset, StreamingParquetLoader

    name, _, way = case.partition("-")
    if name == "rows":
        made = StreamingParquetLoader(folder / "rows", batch_size=8, seq_len=1024, eos_id=0, pad_id=0)
        return made, iter, 6
    transform = {"transform": _picture} if name == "pictures" else {}
    dataset = StreamingDataset(folder / name, batch_size=64, shuffle=True, **transform)  # type: ignore[arg-type]
    return dataset, (lambda one: one.batches()) if way == "batches" else iter, 10 if name == "tokens" else 1


CASES = ("tokens-batches", "tokens-samples", "pictures-batches", "pictures-samples", "rows-batches")


def measure(case: str, folder: Path, rounds: int, sides: Sequence[bool]) -> None:
    """Print processor seconds of epochs without and with a trace in turn, spans, and the time that the last file took."""
    loader, read, epochs = _loader(case, folder)
    seconds: list[list[float]] = []
    spans, file = 0, 0.0
    for number in range(rounds + 1):
        found = [0.0] * len(sides)
        for side in range(len(sides)) if number % 2 == 0 else reversed(range(len(sides))):
            path = folder / f"{os.getpid()}.json"
            with loader.trace(path) if sides[side] else nullcontext() as trace:
                begin = time.process_time()
                for _ in range(epochs):
                    for _ in read(loader):
                        pass
                end = time.process_time()
            found[side] = end - begin
            if sides[side]:
                file = time.process_time() - end
                spans = sum(stage.spans for stage in trace.profile().stages)
                path.unlink()
        if number:  # the first one warms up
            seconds.append(found)
    print(json.dumps({"seconds": seconds, "spans": spans, "file": file}))


def start(case: str, folder: Path, source: Path, rounds: int, *, traced: bool) -> dict[str, Any]:
    """Measurements by a process of its own."""
    command = [sys.executable, __file__, "--measure", case, str(folder), "--rounds", str(rounds)]
    env = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [*command, *(["--traced"] if traced else [])], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.4f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="REVISION", help="compare reading without a trace with this revision, too")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes (default /dev/shm)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        sides = (False, True) if options.traced else (False,)
        measure(options.measure[0], Path(options.measure[1]), options.rounds, sides)
        return
    from compare import scratch_folder
    from revisions import source_of
    from sidebyside.machine import machine

    print("  ".join(f"{name}: {value}" for name, value in machine(options.dir).items()))
    with scratch_folder(options.dir) as scratch:
        write(scratch)
        here = source_of(None, scratch)
        before = source_of(options.before, scratch) if options.before else None
        for case in options.cases:
            found = start(case, scratch, here, options.rounds, traced=True)
            off = statistics.median(one[0] for one in found["seconds"])
            ratios = [one[1] / one[0] for one in found["seconds"]]
            said = f"{case:<18} without {off:6.3f} s   with / without {_shown(ratios)}"
            least = [min(one[side] for one in found["seconds"]) for side in (0, 1)]
            said += f"   of the least {least[1] / least[0]:.4f}"
            said += f"   {found['spans']:.0f} spans, file in {found['file']:.2f} s"
            if before is not None:
                ratios = []
                for number in range(options.rounds):
                    pair = [0.0, 0.0]
                    for side in (0, 1) if number % 2 == 0 else (1, 0):
                        one = start(case, scratch, (before, here)[side], 2, traced=False)
                        pair[side] = min(each[0] for each in one["seconds"])
                    ratios.append(pair[1] / pair[0])
                said += f"   without / {options.before} {_shown(ratios)}"
            print(said, flush=True)


if __name__ == "__main__":
    main()
