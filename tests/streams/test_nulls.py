"""What a null means: to conditions, to Parquet's filters and to keys, in every format that has nulls."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from stoker import StreamingDataset, Where, World
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError
from stoker.order.subsets import Condition
from stoker.partitions import HashBased, Stratified
from stoker.pipeline.workers.array_source import ArraySource
from stoker.streams.conditions import chosen_ids
from stoker.streams.labels import column_labels
from support import open_parquet

NUMBERS = [1, None, 2, 3, None, 2, None, 1]
TEXTS = ["a", None, "b", "c", None, "b", "", "a"]
FLAGS = [True, None, False, True, None, False, None, True]
FLOATS = [0.5, None, math.nan, 1.5, None, 2.5, 0.5, None]
TABLE: dict[str, list[Any]] = {"id": list(range(8)), "n": NUMBERS, "t": TEXTS, "b": FLAGS, "f": FLOATS}

pytestmark = pytest.mark.usefixtures("own_cache")


def parquet(folder: Path) -> DatasetLocation:
    pq.write_table(pa.table(TABLE), folder / "0.parquet", row_group_size=3)
    return open_parquet(folder)


def arrow(folder: Path) -> DatasetLocation:
    feather.write_feather(pa.table(TABLE), folder / "0.arrow", chunksize=3)
    return open_unindexed(folder, "arrow")


def json_lines(folder: Path) -> DatasetLocation:
    rows = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]
    # A null, and a key that is missing, are one.
    lines = [{k: v for k, v in row.items() if v is not None or row["id"] % 3} for row in rows]
    (folder / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return open_unindexed(folder, "json")


FORMATS = [parquet, arrow, json_lines]
CONDITIONS: list[tuple[Condition, list[int]]] = [
    (Where("n", "==", 2), [2, 5]),
    (Where("n", "!=", 2), [0, 3, 7]),
    (Where("n", "<", 3), [0, 2, 5, 7]),
    (~Where("n", "<", 3), [3]),
    (Where("n", "in", [1, 3]), [0, 3, 7]),
    (Where("n", "not in", [1, 3]), [2, 5]),
    (~Where("n", "in", [1, 3]), [2, 5]),
    (Where("n", "not in", []), [0, 2, 3, 5, 7]),
    (Where("n", "==", None), [1, 4, 6]),
    (Where("n", "!=", None), [0, 2, 3, 5, 7]),
    (~Where("n", "==", None), [0, 2, 3, 5, 7]),
    (Where("n", "==", None) | Where("n", ">", 2), [1, 3, 4, 6]),
    (Where("n", "<", 100) | Where("t", "==", ""), [0, 2, 3, 5, 6, 7]),
    (~(Where("n", ">", 100) & Where("t", "==", "z")), [0, 2, 3, 5, 6, 7]),
    (~(Where("n", ">", 100) | Where("t", "==", "z")), [0, 2, 3, 5, 7]),
    (Where("t", "!=", "b"), [0, 3, 6, 7]),
    (~Where("t", ">=", "b"), [0, 6, 7]),
    (Where("t", "==", None), [1, 4]),
    (Where("b", "==", True), [0, 3, 7]),
    (Where("b", "!=", True), [2, 5]),
    (Where("b", "==", None), [1, 4, 6]),
    (Where("f", "!=", 0.5), [3, 5]),
    (~Where("f", "<", 1), [3, 5]),
    (Where("f", "not in", [0.5]), [3, 5]),
    (Where("f", "==", None), [1, 2, 4, 7]),
    (Where("f", "!=", None), [0, 3, 5, 6]),
]


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_conditions_mean_what_they_mean_in_sql(tmp_path: Path, make: Callable[[Path], DatasetLocation]) -> None:
    place = make(tmp_path)
    for condition, expected in CONDITIONS:
        assert chosen_ids(place, condition).tolist() == expected, condition


def test_empty_cells_of_numbers_are_null_in_csv(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("n,t\n1,a\n,\n2.5,b\n")
    place = open_unindexed(tmp_path, "csv")
    assert chosen_ids(place, ~Where("n", "==", 1)).tolist() == [2]
    assert chosen_ids(place, Where("n", "==", None)).tolist() == [1]
    assert chosen_ids(place, Where("t", "==", None)).tolist() == []
    assert chosen_ids(place, Where("t", "==", "")).tolist() == [1]


def test_columns_that_can_not_be_compared_can_be_checked_for_nulls(tmp_path: Path) -> None:
    table = {
        "when": pa.array([1, None, 3], pa.timestamp("us")),
        "list": [[1], None, [1, 2]],
        "struct": [{"a": 1}, {"a": None}, None],
    }
    pq.write_table(pa.table(table), tmp_path / "0.parquet")
    place = open_parquet(tmp_path)
    for name, null in (("when", 1), ("list", 1), ("struct", 2)):
        assert chosen_ids(place, Where(name, "==", None)).tolist() == [null]
        assert chosen_ids(place, Where(name, "!=", None)).tolist() == [one for one in range(3) if one != null]


def test_a_function_sees_nulls_as_batches_have_them(tmp_path: Path) -> None:
    place = parquet(tmp_path)
    condition = Where.function("t", lambda texts: np.array([text is None for text in texts]), "is null")
    assert chosen_ids(place, condition).tolist() == [1, 4]
    assert chosen_ids(place, ~condition).tolist() == [0, 2, 3, 5, 6, 7]


VALUES: dict[str, Any] = {"n": 2, "t": "b", "b": True, "f": 0.5}


@pytest.mark.parametrize("column", VALUES)
def test_parquet_filters_never_leave_out_what_where_keeps(tmp_path: Path, column: str) -> None:
    """Row groups of every kind: without nulls, of some, of nothing else, with NaN and nothing else."""
    value = VALUES[column]
    some: list[Any] = [None, value, {"n": 3, "t": "c", "b": False, "f": 1.5}[column]]
    values = [
        one for group in itertools.product([*some, math.nan] if column == "f" else some, repeat=2) for one in group
    ]
    pq.write_table(pa.table({"id": range(len(values)), column: values}), tmp_path / "0.parquet", row_group_size=2)
    whole = open_parquet(tmp_path)
    ops: list[tuple[str, Any]] = [(op, value) for op in ("==", "!=", "<", "<=", ">", ">=")]
    for op, operand in [*ops, ("in", [value]), ("not in", [value]), ("==", None), ("!=", None)]:
        kept = set(chosen_ids(whole, Where(column, op, operand)).tolist())
        place = open_parquet(tmp_path, filters=[(column, op, operand)])
        left = {2 * shard.detail.number + row for shard in place.index.shards for row in range(2)}  # type: ignore[union-attr]
        assert kept <= left, (op, operand)
        if operand is not None or op == "!=":
            assert len(left) < len(values), f"{op} {operand} leaves out nothing"


def test_a_float32_column_is_filtered_by_the_number_that_it_holds(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([0.1, 0.1], pa.float32())}), tmp_path / "0.parquet")
    for op in ("==", "<=", ">=", "in"):
        operand: Any = [0.1] if op == "in" else 0.1
        where = Where("x", op, operand)
        dataset = StreamingDataset(
            remote=tmp_path, format="parquet", format_options={"filters": [("x", op, operand)]}, subset=where
        )
        assert dataset.epoch_size == 2


# -- keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "hashes"])
@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_a_null_key_is_an_error_that_says_where_and_what_to_do(
    tmp_path: Path, make: Callable[[Path], DatasetLocation], kind: Any
) -> None:
    place = make(tmp_path)
    for name in ("n", "t", "b"):
        with pytest.raises(
            ConfigError, match=rf'column {name!r} has no value .* sample 1 \(row 1 of \S+.*nulls="group"'
        ):
            column_labels(place, name, kind)
    for wrong in (lambda: HashBased(2, key="n", nulls="drop"), lambda: Stratified("n", nulls="drop")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="nulls must be 'error' or 'group', got 'drop'"):
            wrong()


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_nulls_may_be_a_group_of_their_own(tmp_path: Path, make: Callable[[Path], DatasetLocation]) -> None:
    place = make(tmp_path)
    assert column_labels(place, "n", "classes", nulls="group").tolist() == [1, 4, 2, 3, 4, 2, 4, 1]
    assert column_labels(place, "b", "classes", nulls="group").tolist() == [1, 2, 0, 1, 2, 0, 2, 1]
    assert column_labels(place, "t", "classes", nulls="group").tolist() == [1, 4, 2, 3, 4, 2, 0, 1]
    for name in ("n", "t", "b", "f"):
        labels = column_labels(place, name, "hashes", nulls="group").tolist()
        null = [one is None or one != one for one in TABLE[name]]
        (of_null,) = {label for label, missing in zip(labels, null, strict=True) if missing}
        others = {one: label for one, label, missing in zip(TABLE[name], labels, null, strict=True) if not missing}
        assert of_null not in others.values()
        assert len(set(others.values())) == len(others)


def test_a_column_of_nothing_but_nulls_is_one_group(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"n": pa.array([None] * 4, pa.int64()), "t": pa.array([None] * 4, pa.string())}), tmp_path / "0"
    )
    place = open_parquet([tmp_path / "0"])
    for name in ("n", "t"):
        assert column_labels(place, name, "classes", nulls="group").tolist() == [0] * 4
        assert len(set(column_labels(place, name, "hashes", nulls="group").tolist())) == 1


@pytest.mark.parametrize("partition", [HashBased(16, key="t", nulls="group"), Stratified("t", nulls="group")])
def test_a_run_is_divided_by_a_column_with_nulls(tmp_path: Path, partition: Any) -> None:
    texts = [f"user {number % 11}" if number % 3 else None for number in range(300)]
    pq.write_table(pa.table({"id": range(300), "t": texts}), tmp_path / "0.parquet", row_group_size=70)

    def of_rank(rank: int, **options: Any) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"remote": tmp_path, "format": "parquet", "partition_algo": partition, **options}
        return list(StreamingDataset(**given, world=World(rank, 2), batch_size=1, remainder="uneven"))

    parts = [of_rank(rank) for rank in range(2)]
    assert sorted(sample["id"] for part in parts for sample in part) == list(range(300))
    with_null = [sum(sample["t"] is None for sample in part) for part in parts]
    assert with_null == [50, 50] if isinstance(partition, Stratified) else sorted(with_null) == [0, 100]
    without = [of_rank(rank, subset=Where("t", "!=", None)) for rank in range(2)]
    assert sorted(sample["id"] for part in without for sample in part) == [one for one in range(300) if one % 3]
    state = StreamingDataset(remote=tmp_path, format="parquet", partition_algo=partition, batch_size=1).state_dict()
    assert state["order"]["partition"]["nulls"] == "group"


def test_arrays_in_memory_are_divided_by_columns_with_nulls() -> None:
    rows = ArraySource({"t": ["a", None, "b", None], "f": np.array([0.5, np.nan, 1.5, np.nan])})
    for partition in (HashBased(2, key="t"), Stratified("t"), HashBased(2, key="f")):
        with pytest.raises(ConfigError, match=r'has no value .* in sample 1: nulls="group"'):
            rows.labels(partition)
    for grouped in (HashBased(2, key="t", nulls="group"), Stratified("t", nulls="group")):
        labels = rows.labels(grouped)
        assert labels is not None
        assert labels[1] == labels[3]
        assert len(set(labels.tolist())) == 3


# -- batches -------------------------------------------------------------------------------------------------------------


def test_a_nullable_column_in_batches_is_as_documented(tmp_path: Path) -> None:
    """An array or a list with ``None``, but of floats an array with NaN; always an array without the nulls."""
    parquet(tmp_path)
    dataset = StreamingDataset(remote=tmp_path, format="parquet", batch_size=2)
    batches = list(dataset.batches())
    assert [one for batch in batches for one in batch["n"]] == NUMBERS
    assert [one for batch in batches for one in batch["b"]] == FLAGS
    for batch in batches:
        assert isinstance(batch["f"], np.ndarray)
        assert isinstance(batch["n"], np.ndarray) or all(one is None or type(one) is int for one in batch["n"])
    left = StreamingDataset(remote=tmp_path, format="parquet", batch_size=2, subset=Where("n", "!=", None))
    for batch in left.batches():
        assert isinstance(batch["n"], np.ndarray)
        assert batch["n"].dtype == np.int64
