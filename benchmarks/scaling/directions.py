"""The directions. Each is measured in processes of its own, which import only what they measure."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scaling.direction import Direction, Figures
from scaling.many import MANY
from scaling.memory import in_child, own_mib, resident_mib
from scaling.sharing import SHARING
from scaling.stores import STORES
from scaling.timing import now
from scaling.timing import rate as _rate
from scaling.timing import timed as _timed

_LONGEST = 16.0
"""Seconds after which an epoch is left."""


# -- a file a sample -----------------------------------------------------------------------------------------------------

_PER_FOLDER, _SETTLING = 1000, 6.0


def _files_of(size: int) -> Callable[[Path, int], None]:
    def write(folder: Path, count: int) -> None:
        for number in range(count):
            if number % _PER_FOLDER == 0:
                inside = folder / "data" / f"{number // _PER_FOLDER:06}"
                inside.mkdir(parents=True)
            (inside / f"{number:08}.bin").write_bytes(number.to_bytes(8, "little") * (size // 8))
        time.sleep(_SETTLING)  # what has just changed may change again unseen, and is listed at each start

    return write


def _open_files(folder: Path) -> Any:
    from stoker import StreamingDataset

    return StreamingDataset(folder / "data", format="files", shuffle=True, batch_size=256, columns=["data"])


def _files(folder: Path) -> Figures:
    from stoker import StreamingDataset  # noqa: F401  # its import is not what is measured

    before = resident_mib()
    opened, dataset = _timed(lambda: _open_files(folder))
    grown = resident_mib() - before
    rate = _rate(lambda: (len(batch["data"]) for batch in dataset.batches()))
    return {"open_again_s": opened, "memory_MiB": grown, "read_per_s": rate}


def _files_twice(folder: Path) -> Figures:
    from stoker import StreamingDataset  # noqa: F401

    first, _ = _timed(lambda: _open_files(folder))
    again: Figures = in_child("spawn", _files, folder)
    return {"open_first_s": first, **again}


def _photos(folder: Path) -> Figures:
    return {"read_per_s": _files(folder)["read_per_s"]}


def _walk_and_read(read: Callable[[str], Any]) -> Callable[[Path], Figures]:
    """The bound: ``read`` is what a thread does with a path, and a list of what 256 gave is a batch."""

    def walk(folder: Path) -> list[str]:
        found, folders = [], [str(folder / "data")]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append(entry.path)
                    else:
                        entry.stat()
                        found.append(entry.path)
        return found

    def measure(folder: Path) -> Figures:
        import random

        walked, paths = _timed(lambda: walk(folder))
        random.Random(1).shuffle(paths)
        with ThreadPoolExecutor(8) as pool:

            def batches() -> Iterator[int]:
                for at in range(0, len(paths), 256):
                    batch = list(pool.map(read, paths[at : at + 256]))
                    yield len(batch)

            return {"open_first_s": walked, "open_again_s": walked, "read_per_s": _rate(batches)}

    return measure


def _read_and_drop(path: str) -> int:
    with open(path, "rb") as file:
        return len(file.read())


def _read_whole(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# -- many small shards ---------------------------------------------------------------------------------------------------

_ROW = 64


def _shards_of(rows: int) -> Callable[[Path, int], None]:
    def write(folder: Path, size: int) -> None:
        import numpy as np

        from stoker import MDSWriter

        for name, limit in (("small", rows), ("large", 100_000)):
            with MDSWriter({"id": "int", "x": f"ndarray:uint8:{_ROW}"}, folder / name, size_limit=None) as writer:
                for first in range(0, size * rows, limit):
                    ids = np.arange(first, min(first + limit, size * rows))
                    writer.write_batch({"id": ids, "x": np.zeros((len(ids), _ROW), np.uint8)})
                    writer.flush_shard()

    return write


def _shards(name: str, workers: int = 0) -> Callable[[Path], Figures]:
    def measure(folder: Path) -> Figures:
        from stoker import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(folder / name, shuffle=True, batch_size=256)
        if not workers:
            return {"rows_per_s": _rate(lambda: (len(batch["id"]) for batch in dataset.batches()))}
        # The small sizes are read in less time than processes start in: they live on from epoch to epoch.
        loader = StreamingDataLoader(
            dataset, batch_size=256, num_workers=workers, columnar=True, persistent_workers=True
        )
        return {"rows_per_s": _rate(lambda: (len(batch["id"]) for batch in loader))}

    return measure


# -- many small Parquet files of tokens ----------------------------------------------------------------------------------

_TOKENS = 10_000


def _write_parquet(folder: Path, size: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "data").mkdir()
    tokens = pa.array(np.arange(_TOKENS, dtype=np.int32) % 50_000)
    rows = pa.ListArray.from_arrays(pa.array([0, _TOKENS], pa.int32()), tokens)
    pq.write_table(pa.table({"tokens": rows}), folder / "first")
    for number in range(size):
        os.link(folder / "first", folder / "data" / f"{number:06}.parquet")


def _parquet(folder: Path) -> Figures:
    from stoker import StreamingParquetLoader

    loader = StreamingParquetLoader(str(folder / "data"), batch_size=16, seq_len=2048, shuffle=True)
    # Of one epoch, as decoded files are kept for the next, and all of it: files are opened ahead of the first batch.
    count, begin, begun = 0, now(), time.perf_counter()
    for _ in loader:
        count += 16 * 2048
        if time.perf_counter() - begun > _LONGEST:
            break
    return {"tokens_per_s": count / (now() - begin)}


def _parquet_bound(*, alone: bool = False) -> Callable[[Path], Figures]:
    """Reads the files one after the other, shuffled, into arrays of tokens, by pyarrow's usual function for a file.

    With ``alone`` by its reader of a single file, in this thread, which does without data sets and threads.
    """

    def measure(folder: Path) -> Figures:
        import random

        import pyarrow.parquet as pq

        paths = sorted((folder / "data").iterdir())
        random.Random(1).shuffle(paths)

        def tokens() -> Iterator[int]:
            for path in paths:
                table = pq.ParquetFile(path).read(["tokens"], use_threads=False) if alone else pq.read_table(path)
                yield len(table["tokens"].combine_chunks().flatten().to_numpy())

        return {"tokens_per_s": _rate(tokens)}

    return measure


# -- streams that are mixed ----------------------------------------------------------------------------------------------


def _write_streams(folder: Path, size: int) -> None:
    import numpy as np

    from stoker import MDSWriter

    for number in range(size):
        with MDSWriter({"id": "int"}, folder / f"{number:05}", size_limit=1 << 15) as writer:
            writer.write_batch({"id": np.arange(number * 2000, (number + 1) * 2000)})


def _streams(folder: Path) -> Figures:
    from stoker import Stream, StreamingDataset

    folders = sorted(folder.iterdir())
    before = resident_mib()
    begin = now()
    streams = [Stream(local=one, proportion=1 / len(folders)) for one in folders]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=256, epoch_size=len(folders) * 2000)
    next(iter(dataset.batches()))
    first = now() - begin
    state = len(json.dumps(dataset.state_dict())) / 1000
    rate = _rate(lambda: (len(batch["id"]) for batch in dataset.batches()))
    return {"first_batch_s": first, "rows_per_s": rate, "memory_MiB": resident_mib() - before, "state_kB": state}


# -- shards of an index, seen by many processes --------------------------------------------------------------------------


def _write_index(folder: Path, size: int) -> None:
    from order_scale import make_links

    make_links(folder / "data", size * 100, size)


def _first_batch(dataset: Any) -> float:
    next(iter(dataset.batches()))
    return own_mib()


def _index(folder: Path) -> Figures:
    from stoker import StreamingDataset

    opened, _ = _timed(lambda: StreamingDataset(folder / "data", shuffle=True, batch_size=256))
    again, dataset = _timed(lambda: StreamingDataset(folder / "data", shuffle=True, batch_size=256))
    first, _ = _timed(lambda: next(iter(dataset.batches())))
    forked, forked_mib = _timed(lambda: in_child("fork", _first_batch, dataset))
    spawned, spawned_mib = _timed(lambda: in_child("spawn", _first_batch, dataset))
    return {
        "open_first_s": opened,
        "open_again_s": again,
        "first_batch_s": first,
        "forked_first_batch_s": forked,
        "forked_memory_MiB": forked_mib,
        "spawned_first_batch_s": spawned,
        "spawned_memory_MiB": spawned_mib,
    }


# -- parts that are merged -----------------------------------------------------------------------------------------------


def _write_parts(folder: Path, size: int) -> None:
    from stoker import MDSWriter

    with MDSWriter({"id": "int"}, folder / "first") as writer:
        writer.write({"id": 1})
    for number in range(size):
        part = folder / "data" / f"{number:06}"
        part.mkdir(parents=True)
        for file in (folder / "first").iterdir():
            os.link(file, part / file.name)


def _merge(folder: Path) -> Figures:
    from stoker import merge_index

    (folder / "data" / "index.json").unlink(missing_ok=True)
    return {"merge_s": _timed(lambda: merge_index(str(folder / "data")))[0]}


def _merge_bound(folder: Path) -> Figures:
    parts = sorted(one for one in (folder / "data").iterdir() if one.is_dir())
    return {"merge_s": _timed(lambda: [json.loads((part / "index.json").read_bytes()) for part in parts])[0]}


# -- columns of one sample -----------------------------------------------------------------------------------------------


def _write_columns(folder: Path, size: int) -> None:
    import numpy as np

    from stoker import MDSWriter

    with MDSWriter({f"c{n}": "int" for n in range(size)}, folder / "data") as writer:
        writer.write_batch({f"c{n}": np.arange(20_000) for n in range(size)})


def _one_sample(folder: Path) -> Figures:
    import numpy as np

    from stoker import StreamingDataset

    dataset = StreamingDataset(folder / "data")
    ids = np.random.default_rng(1).integers(0, len(dataset), 20_000).tolist()
    for number in ids[:1000]:
        dataset[number]
    return {"sample_us": min(_timed(lambda: [dataset[number] for number in ids])[0] for _ in range(5)) / len(ids) * 1e6}


# -- lines of text -------------------------------------------------------------------------------------------------------


def _write_lines(folder: Path, size: int) -> None:
    import csv

    with (folder / "data.jsonl").open("w") as lines, (folder / "data.csv").open("w", newline="") as values:
        writer = csv.writer(values)
        writer.writerow(["id", "label", "text"])
        for number in range(size):
            row = {"id": number, "label": number % 10, "text": f"sample {number} of a text that has some words"}
            lines.write(json.dumps(row) + "\n")
            writer.writerow(row.values())


def _lines(name: str, read_threads: int | None = None) -> Callable[[Path], Figures]:
    def measure(folder: Path) -> Figures:
        from stoker import ReadOptions, StreamingDataset

        dataset = StreamingDataset(folder / name, batch_size=1024, read=ReadOptions(read_threads=read_threads))
        return {"rows_per_s": _rate(lambda: (len(batch["id"]) for batch in dataset.batches()))}

    return measure


def _lines_bound(name: str, *, texts: bool = False) -> Callable[[Path], Figures]:
    """Parses the whole file by pyarrow, on all processors; with ``texts`` its text becomes Python's, as in a batch."""

    def measure(folder: Path) -> Figures:
        import pyarrow.csv
        import pyarrow.json

        read = pyarrow.csv.read_csv if name.endswith(".csv") else pyarrow.json.read_json

        def rows() -> Iterator[int]:
            table = read(folder / name)
            yield len(table.column("text").to_pylist()) if texts else table.num_rows

        return {"rows_per_s": _rate(rows)}

    return measure


def _write_records(folder: Path, size: int) -> None:
    import numpy as np

    from stoker.writers import TFRecordWriter

    with TFRecordWriter({"id": "int", "label": "int", "text": "str"}, folder / "data") as writer:
        texts = [f"sample {number} of a text that has some words" for number in range(size)]
        writer.write_batch({"id": np.arange(size), "label": np.arange(size) % 10, "text": texts})


def _records_bound(folder: Path) -> Figures:
    """Parses each record by protobuf, without a look at its features or checksum."""
    package = importlib.util.find_spec("tfrecord")  # which imports PyTorch
    assert package is not None
    path = Path(next(iter(package.submodule_search_locations or ()))) / "example_pb2.py"
    module = importlib.util.spec_from_file_location("example_pb2", path)
    assert module is not None
    assert module.loader is not None
    example_pb2 = importlib.util.module_from_spec(module)
    module.loader.exec_module(example_pb2)

    def parsed() -> Iterator[int]:
        for path in sorted((folder / "data").glob("*.tfrecord")):
            data, at = path.read_bytes(), 0
            while at < len(data):
                size = int.from_bytes(data[at : at + 8], "little")
                example_pb2.Example.FromString(data[at + 12 : at + 12 + size])
                at += 16 + size
                yield 1

    return {"rows_per_s": _rate(parsed)}


# -- a cache that is smaller than what is shuffled -----------------------------------------------------------------------


def _write_limited(folder: Path, size: int) -> None:
    import numpy as np

    from stoker import MDSWriter

    with MDSWriter({"x": "ndarray:uint8:1000"}, folder / "data", size_limit=1 << 18) as writer:
        for _ in range(size):
            writer.write_batch({"x": np.zeros((1000, 1000), np.uint8)})


def _limited(algo: str) -> Callable[[Path], Figures]:
    def measure(folder: Path) -> Figures:
        import shutil

        from stoker import StreamingDataset

        shutil.rmtree(folder / "cache", ignore_errors=True)
        shards = list((folder / "data").glob("*.mds"))
        dataset = StreamingDataset(
            remote=(folder / "data").as_uri(),
            local=folder / "cache",
            cache_limit=sum(shard.stat().st_size for shard in shards) // 4,
            shuffle=True,
            shuffle_algo=algo,
            batch_size=256,
        )
        begin, rows = time.perf_counter(), 0
        for batch in dataset.batches():
            rows += len(batch["x"])
            if time.perf_counter() - begin > _LONGEST:
                break
        seconds = time.perf_counter() - begin
        return {"rows_per_s": rows / seconds, "fetched_ratio": dataset.stats().bytes_fetched / (rows * 1000)}

    return measure


DIRECTIONS = (
    Direction(
        "files",
        "files of 200 bytes, each a sample, 1,000 a folder",
        (2_000, 8_000, 32_000),
        (30_000, 300_000, 1_281_167),
        _files_of(200),
        {"stoker": _files_twice, "bound": _walk_and_read(_read_and_drop)},
        {"open_first_s": 1, "open_again_s": 1, "memory_MiB": 1, "read_per_s": 0},
        "first opening at most twice a bare walk, second at most 0.5 s, 150 MB, reading 0.8 of plain threads",
    ),
    Direction(
        "photos",
        "files of 110 kB, as JPEG photos have, each a sample; the bound keeps the bytes of a batch, or drops each file's",
        (500, 1_000, 2_000),
        (1_000, 4_000, 16_000),
        _files_of(110_000),
        {"stoker": _photos, "bound": _walk_and_read(_read_whole), "dropped": _walk_and_read(_read_and_drop)},
        {"read_per_s": 0},
        "0.8 of plain threads",
    ),
    Direction(
        "shards",
        "shards of 1,400 rows (100 kB), shuffled",
        (500, 1_000, 2_000),
        (1_000, 3_000, 10_000),
        _shards_of(1_400),
        {"stoker": _shards("small"), "bound": _shards("large"), "workers": _shards("small", 2)},
        {"rows_per_s": 0},
        "half of the rate of large shards; two workers never slower than none",
    ),
    Direction(
        "small-shards",
        "shards of 28 rows (2 kB), shuffled",
        (1_000, 4_000, 16_000),
        (10_000, 30_000, 100_000),
        _shards_of(28),
        {"stoker": _shards("small"), "bound": _shards("large"), "workers": _shards("small", 2)},
        {"rows_per_s": 0},
        "300,000 rows/s; two workers never slower than none",
    ),
    Direction(
        "parquet-files",
        "Parquet files of 10,000 tokens; the bound is read_table of pyarrow, or its ParquetFile (file reader)",
        (500, 1_500, 4_500),
        (2_000, 6_000, 20_000),
        _write_parquet,
        {"stoker": _parquet, "bound": _parquet_bound(), "file reader": _parquet_bound(alone=True)},
        {"tokens_per_s": 0},
        "0.9 of pyarrow",
    ),
    Direction(
        "streams",
        "streams of 2,000 rows that are mixed",
        (20, 80, 320),
        (10, 100, 1_000),
        _write_streams,
        {"stoker": _streams},
        {"first_batch_s": 1, "rows_per_s": 0, "memory_MiB": 1, "state_kB": 1},
        "1,000 streams: 300,000 rows/s, first batch in 0.3 s, 200 MiB, a state of 20 kB",
    ),
    Direction(
        "index",
        "shards of an index of a dataset that several processes read",
        (1_000, 4_000, 16_000),
        (10_000, 100_000, 1_000_000),
        _write_index,
        {"stoker": _index},
        {
            "open_first_s": 1,
            "open_again_s": 1,
            "first_batch_s": 1,
            "forked_first_batch_s": 1,
            "forked_memory_MiB": 1,
            "spawned_first_batch_s": 1,
            "spawned_memory_MiB": 1,
        },
        "100,000 shards opened in 0.2 s, a million in 2 s; 30 MiB for one more process; spawned as forked",
    ),
    Direction(
        "merge",
        "parts whose indexes are merged",
        (200, 800, 3_200),
        (1_000, 10_000, 100_000),
        _write_parts,
        {"stoker": _merge, "bound": _merge_bound},
        {"merge_s": 1},
        "10,000 parts in 0.5 s, 100,000 in 5 s",
    ),
    Direction(
        "columns",
        "columns of one sample, dataset[i]",
        (1, 5, 20),
        (1, 5, 20),
        _write_columns,
        {"stoker": _one_sample},
        {"sample_us": 1},
        "5 µs with one column, 25 µs with 20",
    ),
    Direction(
        "json-lines",
        "rows of JSON lines",
        (5_000, 20_000, 80_000),
        (10_000, 100_000, 1_000_000),
        _write_lines,
        {
            "stoker": _lines("data.jsonl"),
            "no threads": _lines("data.jsonl", read_threads=0),
            "bound": _lines_bound("data.jsonl"),
            "texts": _lines_bound("data.jsonl", texts=True),
        },
        {"rows_per_s": 0},
        "0.7 of pyarrow.json (texts: whose texts become Python's)",
    ),
    Direction(
        "csv",
        "rows of CSV",
        (5_000, 20_000, 80_000),
        (10_000, 100_000, 1_000_000),
        _write_lines,
        {
            "stoker": _lines("data.csv"),
            "no threads": _lines("data.csv", read_threads=0),
            "bound": _lines_bound("data.csv"),
            "texts": _lines_bound("data.csv", texts=True),
        },
        {"rows_per_s": 0},
        "0.7 of pyarrow.csv (texts: whose texts become Python's)",
    ),
    Direction(
        "tfrecord",
        "records of TFRecord, each a tf.train.Example",
        (5_000, 20_000, 80_000),
        (10_000, 100_000, 1_000_000),
        _write_records,
        {"stoker": _lines("data"), "bound": _records_bound},
        {"rows_per_s": 0},
        "the rate at which protobuf parses them",
    ),
    Direction(
        "limited-cache",
        "MB shuffled whole (shuffle_algo='global') through a cache of a quarter of them",
        (4, 16, 64),
        (40, 120, 400),
        _write_limited,
        {"stoker": _limited("global"), "bound": _limited("shard")},
        {"fetched_ratio": 0},
        "a tenth of the bytes that one shard a sample takes",
    ),
    *STORES,
    *SHARING,
    *MANY,
)
