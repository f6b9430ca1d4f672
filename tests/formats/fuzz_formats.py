"""Damage files of a format at random and read them: samples, or an error of stoker's own, in bounded memory.

    python fuzz_formats.py FORMAT COUNT SEED

Prints how many damaged files were read and how many were refused, and the peak of memory in MiB.
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
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from packed_cases import CASES, sample_of, tiny_image
from stoker.errors import StokerError
from stoker.formats.base import FileInfo, ReadOptions, ShardInfo
from stoker.formats.registry import get_format
from stoker.formats.source import MappedSource

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_WIDTHS = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")


def own(name: str) -> list[tuple[ShardInfo, list[bytes]]]:
    """A shard as stoker writes it."""
    found = []
    for case_name, case in CASES.items():
        if case_name.split("_")[0] != name or name in ("jpeg", "png"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            with case.make(columns=case.columns, out=folder) as writer:
                for number in range(12):
                    writer.write(sample_of(number, case.columns))
            index = json.loads((Path(folder) / "index.json").read_bytes())
            info = get_format(name).parse_shard(index["shards"][0], "the index")
            found.append((info, [(Path(folder) / file.basename).read_bytes() for file in info.raw]))
    return found


def others(name: str) -> list[bytes]:
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


def main() -> None:
    warnings.simplefilter("ignore")
    name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    form: Any = get_format(name)
    mine, theirs = own(name), others(name)
    for info, files in mine:
        read_all(form, info, files, random.Random(0))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = {"read": 0, "refused": 0}
    for number in range(count):
        rng = random.Random(seed + number)
        try:
            if theirs and (not mine or rng.random() < 0.6):
                data = damage(rng.choice(theirs), rng)
                if name in ("jpeg", "png"):
                    columns = {"image": name, "path": "str"}
                    info = ShardInfo(name, 1, (FileInfo("a", len(data), {}),), (), None, {"columns": columns})
                else:
                    survey = form.survey(MappedSource(data, "the shard"), {})
                    info = ShardInfo(name, survey.samples, (FileInfo("a", len(data), {}),), (), None, survey.spec)
                read_all(form, info, [data], rng)
            else:
                info, files = rng.choice(mine)
                turn = 0 if rng.random() < 0.8 else len(files) - 1
                changed = [damage(file, rng) if place == turn else file for place, file in enumerate(files)]
                sizes = rng.random() < 0.5
                if sizes:  # as a download that the index describes; else one of another size
                    raw = tuple(FileInfo(f"f{k}", len(file), {}) for k, file in enumerate(changed))
                    info = ShardInfo(name, info.samples, raw, (), None, info.spec)
                read_all(form, info, changed, rng)
            outcome["read"] += 1
        except StokerError as error:
            assert "the shard" in str(error), (number, error)  # noqa: PT017
            outcome["refused"] += 1
        except BaseException:
            print(f"mutation {number} of seed {seed}", file=sys.stderr)
            raise
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps({**outcome, "peak": peak}))


if __name__ == "__main__":
    main()
