"""Writes tables of Lance in a process of its own: one that has Lance loaded can not be forked by other tests."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from patience import PATIENCE


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def there(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function in the process that has Lance loaded."""
    return _process().submit(function, *args).result(timeout=PATIENCE)


def write(url: str, data: pa.Table, mode: str = "create", rows: int = 8, options: dict[str, str] | None = None) -> int:
    """Write a table, in fragments of a few rows; returns its version."""
    import lance

    made = lance.write_dataset(data, url, mode=mode, max_rows_per_file=rows, storage_options=options)
    return int(made.version)


def write_blobs(url: str) -> None:
    """A table of a column of blobs, of which every fifth is null."""
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = pa.array([bytes([i]) * i if i % 5 else None for i in range(20)], pa.large_binary())
    write(url, pa.table([pa.array(range(20)), values], schema=pa.schema([pa.field("x", pa.int64()), field])))


def write_outside(url: str, uri: str) -> None:
    """A table of a blob of its own, and of one that is another file."""
    import lance
    from lance.blob import blob_array, blob_field

    columns = [pa.array([0, 1]), blob_array([b"own", uri])]
    data = pa.table(columns, schema=pa.schema([pa.field("x", pa.int64()), blob_field("blob")]))
    lance.write_dataset(data, url, allow_external_blob_outside_bases=True, data_storage_version="2.2")


def clone(url: str, to: str) -> None:
    """A table whose files are those of another."""
    import lance

    lance.dataset(url).shallow_clone(to, 1)


def delete(url: str, where: str, options: dict[str, str] | None = None) -> int:
    """Delete rows; returns the version."""
    import lance

    table = lance.dataset(url, storage_options=options)
    table.delete(where)
    return int(table.version)


def tag(url: str, name: str, version: int) -> None:
    """Give a version a name."""
    import lance

    lance.dataset(url).tags.create(name, version)


def expect(url: str, rows: list[int]) -> list[dict[str, Any]]:
    """Rows as Lance itself takes them."""
    import lance

    found: list[dict[str, Any]] = lance.dataset(url).take(rows).to_pylist()
    return found


def change(url: str) -> list[dict[str, Any]]:
    """Add a column, which lies in files of its own, and write some rows anew; returns the rows as Lance scans them."""
    import lance

    table = lance.dataset(url)
    table.add_columns({"double": "x * 2"})
    table.update({"text": "'new'"}, where="x in (10, 33)")
    found: list[dict[str, Any]] = table.to_table(columns=["x", "text", "double"]).to_pylist()
    return found


def all_kinds() -> pa.Table:
    """40 rows of every kind of column; nulls in some."""
    count = 40
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * count, dtype=np.float32)), 4)
    return pa.table(
        {
            "x": range(count),
            "text": [f"row {i}" for i in range(count)],
            "vector": vectors,
            "nested": [{"a": i, "b": [str(i)]} for i in range(count)],
            "bytes": [bytes([i]) * 3 for i in range(count)],
            "words": pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
            "holes": [None if i % 3 == 0 else i for i in range(count)],
            "time": pa.array(range(count), pa.timestamp("us")),
            "half": pa.array(np.arange(count, dtype=np.float16)),
            "ragged": [[1] * (i % 3) for i in range(count)],
        }
    )
