"""Damage files of a format at random and read them: samples, or an error of stoker's own, in bounded memory.

    python tests/formats/fuzz_formats.py FORMAT COUNT SEED

Prints how many damaged files were read and how many were refused, the growth of memory in MiB, and the CPU seconds that
the slowest took and its number. All formats: fuzz_all.py.
"""

from __future__ import annotations

import importlib
import io
import json
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from format_table import OTHERS, WRITTEN
from format_table import sample_of as plain_sample

from packed_cases import CASES, sample_of, tiny_image
from stoker.dataset.foreign_facts import ForeignFile
from stoker.dataset.foreign_shards import describe_file
from stoker.dataset.parquet_files import FoundFile
from stoker.errors import StokerError
from stoker.formats.base import FileInfo, ReadOptions, ShardInfo
from stoker.formats.registry import get_format
from stoker.formats.source import MappedSource

FORMATS = (
    "arrow",
    "csv",
    "hdf5",
    "jpeg",
    "json",
    "mds",
    "megatron",
    "npy",
    "npz",
    "png",
    "tar",
    "tfrecord",
    "tsv",
    "xsv",
)
"""All but files and synthetic, which can not be damaged, and parquet, which has a harness of its own."""

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_WIDTHS = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")


def own(name: str) -> list[tuple[ShardInfo, list[bytes]]]:
    """Shards as stoker writes them."""
    if name in ("jpeg", "png", "megatron"):
        return []
    if name in ("mds", "json", "csv", "tsv", "xsv"):
        return [_written(WRITTEN[name], plain_sample)]
    return [_written(case, sample_of) for key, case in CASES.items() if key.split("_")[0] == name]


def _written(case: Any, sample: Any) -> tuple[ShardInfo, list[bytes]]:
    options = {key: value for key, value in getattr(case, "options", {}).items() if key != "size_limit"}
    with tempfile.TemporaryDirectory() as folder:
        with case.make(columns=case.columns, out=folder, **options) as writer:
            for number in range(12):
                writer.write(sample(number, case.columns))
        index = json.loads((Path(folder) / "index.json").read_bytes())
        entry = index["shards"][0]
        info = get_format(entry["format"]).parse_shard(entry, "the index")
        return info, [(Path(folder) / file.basename).read_bytes() for file in info.raw]


def surveyed(name: str, files: list[bytes]) -> list[tuple[ShardInfo, list[bytes]]]:
    """The shards of a file, and of what belongs to it, as they would be fetched."""
    form: Any = get_format(name)
    settings = dict(OTHERS[name].options or {}) if name in OTHERS else {}
    found = form.survey(MappedSource(files[0], "the shard"), settings)
    pieces = tuple((piece.start, piece.end, piece.samples) for piece in found.pieces)
    beside = tuple(FoundFile(f"the shard.{number}", len(data), "") for number, data in enumerate(files[1:]))
    one = ForeignFile("the shard", len(files[0]), "", found.samples, found.spec, pieces, beside)
    shards = []
    for info in describe_file(name, one, found.spec, in_place=False):
        parts = [file.part for file in info.raw]
        shards.append(
            (info, [data[part.starts[0] : part.ends[0]] for data, part in zip(files, parts, strict=True) if part])
        )
    return shards


def others(name: str) -> list[bytes | list[bytes]]:
    """Files as other programs write them."""
    out = io.BytesIO()
    rows = np.arange(60, dtype=np.float32).reshape(12, 5)
    if name == "npy":
        structured = np.zeros(12, [("a", "<i4"), ("b", ">f8", (2,)), ("c", "U3")])
        np.save(out, structured)
        second = io.BytesIO()
        np.save(second, np.asfortranarray(rows))
        return [out.getvalue(), second.getvalue()]
    if name == "npz":
        np.savez_compressed(out, x=rows, y=np.arange(12))
        return [out.getvalue()]
    if name == "hdf5":
        h5py = importlib.import_module("h5py")

        with h5py.File(out, "w") as file:
            file.create_dataset("x", data=rows, chunks=(3, 5), compression="gzip", shuffle=True)
            file.create_dataset("g/y", data=np.arange(12))
        second = io.BytesIO()
        with h5py.File(second, "w", libver="latest") as file:
            file.create_dataset("x", data=rows, chunks=(3, 5), maxshape=(None, 5))
        return [out.getvalue(), second.getvalue()]
    if name == "arrow":
        import pyarrow as pa
        import pyarrow.feather as feather

        table = pa.table(
            {
                "id": pa.array([1, None, 3] * 4),
                "text": pa.array(["a", "bb", None] * 4).dictionary_encode(),
                "nested": [[1, 2], None, []] * 4,
                "blob": [b"x", b"", b"zz"] * 4,
                "view": pa.array(["a long string of more than twelve", "b", "c"] * 4, pa.string_view()),
            }
        )
        feather.write_feather(table, out, compression="zstd", chunksize=5)
        second = io.BytesIO()
        with pa.ipc.new_stream(second, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
        return [out.getvalue(), second.getvalue()]
    if name == "tar":
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for number in range(6):
                for extension in ("jpg", "cls", "json"):
                    member = tarfile.TarInfo(f"{'é' * 60 * (number % 2)}/{number}.{extension}")
                    data = b"{}" if extension == "json" else str(number).encode()
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        second = io.BytesIO()
        with tarfile.open(fileobj=second, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for number in range(6):
                member = tarfile.TarInfo(f"{'x' * 120}{number}.txt")
                member.size = 3
                archive.addfile(member, io.BytesIO(b"abc"))
        return [out.getvalue(), second.getvalue()]
    if name in ("jpeg", "png"):
        return [tiny_image(1, name)]
    if name == "megatron":
        files = OTHERS[name].files(range(12))
        return [[files["part-0.idx"], files["part-0.bin"]]]
    if name in ("tfrecord", "csv", "tsv", "xsv", "json"):
        return [next(iter(OTHERS[name].files(range(24)).values()))]
    return []


def damage(data: bytes, rng: random.Random) -> bytes:
    """The file with a few changes, most of them where headers lie."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.random()
        reach = len(out) if rng.random() < 0.4 else min(len(out), 700)
        at = (
            rng.randrange(max(1, reach))
            if rng.random() < 0.75
            else len(out) - 1 - rng.randrange(max(1, min(len(out), 600)))
        )
        if not out:
            break
        if kind < 0.45:
            out[at] = rng.randrange(256)
        elif kind < 0.75:
            width = rng.choice(_WIDTHS)
            size = struct.calcsize(width)
            value = rng.choice(_EXTREMES) & ((1 << 8 * size) - 1)
            if at + size <= len(out):
                struct.pack_into(width, out, at, value)
        elif kind < 0.85:
            del out[rng.randrange(len(out)) :]
        elif kind < 0.93:
            del out[at : at + rng.randrange(1, 40)]
        else:
            out[at:at] = rng.randbytes(rng.randrange(1, 40))
    return bytes(out)


def read_all(form: Any, info: ShardInfo, files: list[bytes], rng: random.Random) -> None:
    options = ReadOptions(views=rng.random() < 0.3)
    reader = form.open(info, files, where="the shard", options=options)
    rows = np.array([rng.randrange(info.samples) for _ in range(5)] if info.samples else [], np.int64)
    if info.samples <= 1 << 16:
        rows = np.concatenate([rows, np.arange(info.samples)])
    reader.read(rows)
    which = np.arange(len(rows), dtype=np.int64) % 2
    both = form.read_many([reader, form.open(info, files, where="the shard")], which, rows)
    assert all(len(column) == len(rows) for column in both.values())
    for values in form.iterate_many([reader], which * 0, rows).values():
        for value in values:
            if hasattr(value, "load") and value.size[0] * value.size[1] < 1 << 20:
                try:
                    value.load()
                except Exception:  # Pillow decodes when pixels are asked for: not our call any more
                    continue


def one_file(name: str, theirs: bytes | list[bytes], form: Any, rng: random.Random) -> None:
    """Damage a file that others wrote, and read it."""
    files = [theirs] if isinstance(theirs, bytes) else list(theirs)
    turn = rng.randrange(len(files))
    files[turn] = damage(files[turn], rng)
    if name in ("jpeg", "png"):
        columns = {"image": name, "path": "str"}
        info = ShardInfo(name, 1, (FileInfo("a", len(files[0]), {}),), (), None, {"columns": columns})
        read_all(form, info, files, rng)
        return
    for info, parts in surveyed(name, files):
        read_all(form, info, parts, rng)


def one_shard(info: ShardInfo, files: list[bytes], form: Any, rng: random.Random) -> None:
    """Damage a shard that stoker wrote, and read it."""
    turn = 0 if rng.random() < 0.8 else len(files) - 1
    changed = [damage(file, rng) if place == turn else file for place, file in enumerate(files)]
    if rng.random() < 0.5:  # as a download that the index describes; else one of another size
        raw = tuple(FileInfo(f"f{k}", len(file), {}) for k, file in enumerate(changed))
        info = ShardInfo(info.format, info.samples, raw, (), None, info.spec)
    read_all(form, info, changed, rng)


def main() -> None:
    warnings.simplefilter("ignore")
    name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    form: Any = get_format(name)
    mine, theirs = own(name), others(name)
    for info, files in mine:
        read_all(form, info, files, random.Random(0))
    for one in theirs:
        if name not in ("jpeg", "png"):
            for info, files in surveyed(name, [one] if isinstance(one, bytes) else one):
                read_all(form, info, files, random.Random(0))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome: dict[str, Any] = {"read": 0, "refused": 0}
    slowest = (0.0, 0)
    for number in range(count):
        rng = random.Random(seed + number)
        began = time.process_time()
        try:
            if theirs and (not mine or rng.random() < 0.6):
                one_file(name, rng.choice(theirs), form, rng)
            else:
                one_shard(*rng.choice(mine), form, rng)
            outcome["read"] += 1
        except StokerError as error:
            assert "the shard" in str(error), (number, error)  # noqa: PT017
            outcome["refused"] += 1
        except BaseException:
            print(f"{name}: mutation {number} of seed {seed}", file=sys.stderr)
            raise
        slowest = max(slowest, (time.process_time() - began, number))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps({**outcome, "peak": grown, "slowest": round(slowest[0], 3), "which": slowest[1]}))


if __name__ == "__main__":
    main()
