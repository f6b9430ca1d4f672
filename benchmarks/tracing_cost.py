"""Measure what a trace costs: processor time of reading with a trace, without, and without in an earlier revision.

    python benchmarks/tracing_cost.py                   # with against without, of the working tree
    python benchmarks/tracing_cost.py --before HEAD~5   # also without, against an earlier commit

Cases are batches of tokens, their samples one by one, pictures (JPEG, in threads) one by one and as batches of a transform,
pictures of ``stoker.image``, rows of a ``StreamingParquetLoader``, and tokens and pictures of two forked DataLoader workers.

One process reads epochs, without, with, with, and without a trace, then with, without, without, with, and so on for
``--seconds``: each such four gives a ratio of processor times (``process_time``, of children where there are any).

How to read it: the figure is the median of these ratios, less 1, with the interval that has it in 95 of 100 cases (see
``paired.py``). ``< 2 %`` is ``yes`` or ``no`` where the whole interval lies on that side, else ``open``: more seconds tell.
Other programs make intervals wider, and not the median larger. ``control`` is the same without any trace, from a process of
its own: its true value is 0 %, and where its interval has no 0 the other is not to be trusted either. ``wall`` is the same of
times by the clock, which tell what a loop waits for: where several threads compute at once, processors that share a core take
longer for the same, and processor time is more where less of the work is one after the other. Revisions are processes of
their own, in turn. A trace's file is written after the measured time; how long that takes is printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from paired import Ratio

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

BOUND = 1.02
TOKENS, PICTURES, ROWS = 100_000, 4096, 40_000
"""Samples of an epoch, of 0.07 to 1 s: what a trace costs once an epoch, a thread and a process is little beside."""
RUN = 0.08
"""Processor seconds of a run at least: neighbours in time are alike."""


def write(folder: Path) -> None:
    """Write the data of all cases."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    from stoker import MDSWriter

    rng = np.random.default_rng(0)
    with MDSWriter({"tokens": "ndarray:uint16:512"}, folder / "tokens", size_limit="2mb") as out:
        for _ in range(5):
            out.write_batch({"tokens": rng.integers(0, 50_000, (TOKENS // 5, 512), dtype=np.uint16)})
    with MDSWriter({"image": "bytes", "label": "int"}, folder / "pictures") as out:
        for number in range(PICTURES):
            data = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)).resize((200, 160)).save(data, "JPEG")
            out.write({"image": data.getvalue(), "label": number})
    rows = pa.ListArray.from_arrays(
        np.arange(0, ROWS * 400 + 1, 400, dtype=np.int32), rng.integers(1, 50_000, ROWS * 400, dtype=np.uint16)
    )
    (folder / "rows").mkdir()
    pq.write_table(pa.table({"input_ids": rows}), folder / "rows" / "0.parquet", row_group_size=2000)


def _picture(sample: dict[str, Any]) -> dict[str, Any]:
    import io

    import numpy as np
    from PIL import Image

    return {"image": np.asarray(Image.open(io.BytesIO(sample["image"]))), "label": sample["label"]}


def _image(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    from stoker.image import RandomResizedCrop

    return RandomResizedCrop(112)(sample, rng)


def _loader(case: str, folder: Path) -> Callable[[], Iterator[Any]]:
    """What reads an epoch."""
    from stoker import StreamingDataLoader, StreamingDataset, StreamingParquetLoader

    name, _, way = case.partition("-")
    if name == "rows":
        loader = StreamingParquetLoader(folder / "rows", batch_size=8, seq_len=1024, eos_id=0, pad_id=0)
        return lambda: iter(loader)
    transform = {"transform": _picture} if name == "pictures" else {}
    where = folder / ("tokens" if name == "tokens" else "pictures")
    dataset = StreamingDataset(where, batch_size=64, shuffle=True, **transform)  # type: ignore[arg-type]
    if name == "image":
        dataset = dataset.random_map(_image)
    if way == "workers":
        return lambda: iter(StreamingDataLoader(dataset, num_workers=2, multiprocessing_context="fork", columnar=True))
    return dataset.batches if way == "batches" else lambda: iter(dataset)


CASES = (
    "tokens-batches",
    "tokens-samples",
    "pictures-batches",
    "pictures-samples",
    "image-batches",
    "rows-batches",
    "tokens-workers",
    "pictures-workers",
)


def _seconds() -> float:
    """Processor time of this process, and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(case: str, folder: Path, seconds: float, *, traced: bool) -> None:
    """Print processor seconds of runs without and with a trace, spans of one, and the time that the last file took."""
    from stoker import Trace

    read, path = _loader(case, folder), folder / f"{os.getpid()}.json"
    spans, file, epochs = 0, 0.0, 1

    def run(*, recorded: bool) -> tuple[float, float]:
        nonlocal spans, file
        with Trace(path) if recorded else nullcontext() as trace:
            for _ in read():  # a trace begins with 0.3 ms for its files
                pass
            begin, wall = _seconds(), time.perf_counter()
            for _ in range(epochs):
                for _ in read():
                    pass
            wall, end = time.perf_counter() - wall, _seconds()
        if trace is not None:
            file = _seconds() - end
            spans = sum(stage.spans for stage in trace.profile().stages) * epochs // (epochs + 1)
            path.unlink()
        return end - begin, wall

    run(recorded=False)
    epochs = max(1, round(RUN / run(recorded=False)[0]))
    found: list[tuple[list[float], list[float]]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(found) < 3:
        # One outside, the other inside, and the other way round: what changes steadily meets both alike.
        outside = bool(len(found) % 2)
        runs = [run(recorded=traced and one) for one in (outside, not outside, not outside, outside)]
        inner, outer = ([sum(times) for times in zip(*pair, strict=True)] for pair in (runs[1:3], runs[::3]))
        found.append((inner, outer) if outside else (outer, inner))
    print(json.dumps({"seconds": found, "spans": spans, "file": file}))


def start(case: str, folder: Path, source: Path, seconds: float, *, traced: bool) -> dict[str, Any]:
    """Measurements by a process of its own."""
    command = [sys.executable, __file__, "--measure", case, str(folder), "--seconds", str(seconds)]
    env = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [*command, *(["--traced"] if traced else [])], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="REVISION", help="compare reading without a trace with this revision, too")
    parser.add_argument("--seconds", type=float, default=60, help="time of a case (default 60)")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of processes of two revisions")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the data goes (default /dev/shm)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]), options.seconds, traced=options.traced)
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
            found, same = (start(case, scratch, here, options.seconds, traced=traced) for traced in (True, False))
            off = statistics.median(one[0][0] for one in found["seconds"]) / 2
            ratio, wall, control = (
                Ratio.of([one[1][at] / one[0][at] for one in each["seconds"]])
                for each, at in ((found, 0), (found, 1), (same, 0))
            )
            said = f"{case:<18}{off:6.3f} s   trace {ratio}   < 2 %: {ratio.keeps(BOUND):<5}wall {wall}   "
            said += f"control {control}   of {ratio.pairs}   {found['spans']:.0f} spans, file in {found['file']:.2f} s"
            if before is not None:
                ratios = []
                for number in range(options.rounds):
                    pair = [0.0, 0.0]
                    for side in (0, 1) if number % 2 == 0 else (1, 0):
                        one = start(case, scratch, (before, here)[side], 0, traced=False)
                        pair[side] = min(each[0][0] for each in one["seconds"])
                    ratios.append(pair[1] / pair[0])
                said += f"   without / {options.before} {Ratio.of(ratios)}"
            print(said, flush=True)


if __name__ == "__main__":
    main()
