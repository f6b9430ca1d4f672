"""Whether a column of a batch is an array or a list depends on this batch alone, not on what was read in the same step."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_or_list_cases import (
    BAD,
    BATCH,
    SAMPLES,
    Made,
    all_told,
    alone,
    batch_of,
    column_of,
    kept,
    told,
    twice,
    write,
)

from stoker import (
    BadSamples,
    MDSWriter,
    ReadOptions,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.formats.unstacked import Unstacked, spread
from stoker.pipeline.workers.config import StreamingConfig
from stoker.writers import ParquetWriter, TarWriter
from stoker.writing.shard_formats import writer_of
from support import write_samples

SEEDS = (1, 2)
IN_TURN = ReadOptions(read_threads=0)
SKIP = BadSamples("skip", max_share=None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("array_or_list") / "data"
    write(folder)
    return folder


def opened(data: Path, seed: int, *, bad: bool = False, **settings: Any) -> StreamingDataset:
    given: dict[str, Any] = {"batch_size": BATCH, "read": IN_TURN, "transform": Made(seed, bad=bad)}
    return StreamingDataset(data, **(given | settings))


def expected(data: Path, seed: int, **settings: Any) -> list[Any]:
    """The batches by their samples alone. The column ``any`` is made of a stored one, and so an array as well."""
    numbers = [int(sample["n"]) for sample in opened(data, seed, transform=None, **settings)]
    stored = [{"n": number, "any": np.full(2, number, np.int16)} for number in numbers]
    samples = list(map(Made(seed), stored))
    return all_told(batch_of(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH))


def kinds_of(batches: list[Any], name: str) -> set[str]:
    return {batch[name][0] for batch in batches}


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_have_the_columns_of_their_own_samples(data: Path, seed: int) -> None:
    for shuffle in (False, True):
        whole = expected(data, seed, shuffle=shuffle)
        for name in ("ragged", "dtypes", "scalar", "some", "mixed", "wide", "share", "even"):
            assert kinds_of(whole, name) == {"ndarray", "list"}
        for threads in (0, 1, 4):
            read = ReadOptions(read_threads=threads)
            assert all_told(opened(data, seed, shuffle=shuffle, read=read).batches()) == whole
    settings: dict[str, Any] = {"shuffle": True, "shuffle_seed": seed}
    assert alone(opened(data, seed, **settings), opened(data, seed, **settings)) == expected(data, seed, **settings)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_and_processes_make_the_same(data: Path) -> None:
    whole = expected(data, 1, shuffle=True)
    for workers in (0, 2):
        loader = StreamingDataLoader(opened(data, 1, shuffle=True), num_workers=workers, columnar=True)
        assert all_told(loader) == whole
    read = ReadOptions(run_in="processes", start_method="fork", read_processes=2)
    assert all_told(opened(data, 1, shuffle=True, read=read).batches()) == whole
    left_out = all_told(opened(data, 1, bad=True, on_bad_sample=SKIP).batches())
    assert all_told(opened(data, 1, bad=True, on_bad_sample=SKIP, read=read).batches()) == left_out
    dataset = opened(data, 1, bad=True, on_bad_sample=SKIP)
    assert all_told(StreamingDataLoader(dataset, num_workers=2, columnar=True)) == left_out


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_left_of_a_batch_decides(data: Path, seed: int) -> None:
    made = Made(seed)
    samples = [made({"n": number, "any": np.full(2, number, np.int16)}) for number in range(SAMPLES)]
    empty = told({name: column[:0] for name, column in batch_of(samples[:1]).items()})

    def left(keeps: Any) -> list[Any]:
        parts = [[one for one in samples[at : at + BATCH] if keeps(one)] for at in range(0, SAMPLES, BATCH)]
        return [told(batch_of(part)) if part else empty for part in parts]

    skipped = left(lambda sample: int(sample["n"]) not in BAD)
    assert skipped.count(empty) == 3
    for threads in (0, 2):
        settings: dict[str, Any] = {"bad": True, "on_bad_sample": SKIP, "read": ReadOptions(read_threads=threads)}
        assert all_told(opened(data, seed, **settings).batches()) == skipped
    assert alone(opened(data, seed, **settings), opened(data, seed, **settings)) == skipped
    filtered = left(kept)
    assert filtered.count(empty) > 10

    def chain() -> StreamingDataset:
        return opened(data, seed).filter(kept)

    assert all_told(chain().batches()) == filtered
    assert alone(chain(), chain()) == filtered
    replacing: dict[str, Any] = {"bad": True, "on_bad_sample": BadSamples("replace", max_share=None), "shuffle": True}
    found = list(opened(data, seed, **replacing).batches())
    for batch in found:
        assert told(batch) == told(batch_of([samples[number] for number in np.asarray(batch["n"]).tolist()]))
    assert alone(opened(data, seed, **replacing), opened(data, seed, **replacing)) == all_told(found)


def test_functions_of_batches_see_arrays_and_lists(data: Path) -> None:
    def chain() -> StreamingDataset:
        return opened(data, 1, shuffle=True).batch_map(twice)

    whole = all_told(chain().batches())
    assert [{name: one for name, one in batch.items() if name != "kinds"} for batch in whole] == expected(
        data, 1, shuffle=True
    )
    assert alone(chain(), chain()) == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_loader_makes_the_same(data: Path, seed: int) -> None:
    whole = expected(data, seed)
    for threads in (0, 2):
        dataset = opened(data, seed, read=ReadOptions(read_threads=threads))
        with StreamingShardLoader(dataset, StreamingConfig(batch_size=BATCH)) as loader:
            assert all_told(loader) == whole
    dataset = opened(data, seed, bad=True, on_bad_sample=SKIP)
    with StreamingShardLoader(dataset, StreamingConfig(batch_size=BATCH)) as loader:
        assert all_told(loader) == all_told(opened(data, seed, bad=True, on_bad_sample=SKIP).batches())
    arrays = {"n": np.arange(SAMPLES), "any": np.repeat(np.arange(SAMPLES, dtype=np.int16), 2).reshape(-1, 2)}
    with StreamingShardLoader(arrays, StreamingConfig(batch_size=BATCH), transform=Made(seed)) as loader:
        assert all_told(loader) == whole
    lenient: dict[str, Any] = {"transform": Made(seed, bad=True), "on_bad_sample": SKIP}
    with StreamingShardLoader(arrays, StreamingConfig(batch_size=BATCH), **lenient) as loader:
        assert all_told(loader) == all_told(opened(data, seed, bad=True, on_bad_sample=SKIP).batches())


# -- stored columns ----------------------------------------------------------------------------------------------------


def stored_rows(count: int = 120) -> dict[str, list[Any]]:
    """Columns whose batches are arrays or lists, by nulls and lengths."""
    rng = np.random.default_rng(3)
    runs = rng.random(count // 6 + 1)[np.arange(count) // 6]
    return {
        "n": list(range(count)),
        "ragged": [list(range(n, n + 3 + (runs[n] < 0.5 and n % 5 == 0))) for n in range(count)],
        "null list": [None if runs[n] < 0.3 and n % 3 == 0 else [n, n] for n in range(count)],
        "holes": [[n, None] if runs[n] < 0.4 and n % 4 == 0 else [n, n + 1] for n in range(count)],
        "null": [None if runs[n] < 0.4 and n % 4 else n for n in range(count)],
        "truth": [None if runs[n] > 0.6 and n % 2 else n % 3 == 0 for n in range(count)],
        "text": [None if runs[n] > 0.6 else str(n) for n in range(count)],
    }


def parquet_batch(rows: dict[str, list[Any]], begin: int, end: int) -> dict[str, Any]:
    """The columns of a batch of these rows of a Parquet file."""
    dtypes = {"n": np.int64, "null": np.int64, "truth": np.bool_}
    batch: dict[str, Any] = {}
    for name, column in rows.items():
        some = column[begin:end]
        if name in dtypes:
            batch[name] = some if None in some else np.array(some, dtypes[name])
        elif name == "text":
            batch[name] = some
        else:
            batch[name] = column_of([one if one is None or None in one else np.array(one, np.int64) for one in some])
    return batch


def write_parquet(folder: Path, rows: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True)
    half = len(rows["n"]) // 2
    for number, part in enumerate((slice(0, half), slice(half, None))):
        table = pa.table({name: column[part] for name, column in rows.items()})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=25)


def test_columns_of_parquet_are_those_of_their_own_rows(tmp_path: Path) -> None:
    rows = stored_rows()
    write_parquet(tmp_path / "data", rows)
    whole = [told(parquet_batch(rows, at, at + BATCH)) for at in range(0, len(rows["n"]), BATCH)]
    for name in set(rows) - {"n", "text"}:
        assert kinds_of(whole, name) == {"ndarray", "list"}, name

    def dataset(**settings: Any) -> StreamingDataset:
        given: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "batch_size": BATCH}
        return StreamingDataset(**(given | settings))

    for threads in (0, 1, 4):
        assert all_told(dataset(read=ReadOptions(read_threads=threads)).batches()) == whole
    assert alone(dataset(), dataset()) == whole
    assert all_told(StreamingDataLoader(dataset(), columnar=True)) == whole
    with StreamingShardLoader(dataset(), StreamingConfig(batch_size=BATCH)) as loader:
        assert all_told(loader) == whole
    assert all_told(dataset(on_bad_sample="skip").batches()) == whole
    filtered = dataset().filter(three_of_four)
    for at, batch in zip(range(0, len(rows["n"]), BATCH), filtered.batches(), strict=True):
        assert told(batch) == told(parquet_batch(rows, at, at + 3))


def test_files_whose_rows_differ_in_shape(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, width in enumerate((3, 3, 5, 3)):
        values = [[10 * number + row] * width for row in range(10)]
        pq.write_table(pa.table({"x": pa.array(values, pa.list_(pa.int32()))}), folder / f"{number}.parquet")
    found = [batch["x"] for batch in StreamingDataset(folder, batch_size=4).batches()]
    shapes = [one.shape if isinstance(one, np.ndarray) else [row.shape for row in one] for one in found]
    assert shapes == [
        *[(4, 3)] * 5,
        *[(4, 5)] * 2,
        [(5,), (5,), (3,), (3,)],
        *[(4, 3)] * 2,
    ]
    assert all(one.dtype == np.int32 for one in found if isinstance(one, np.ndarray))


def test_lines_with_numbers_of_any_size(tmp_path: Path) -> None:
    numbers = [10**30 if number % 20 == 13 else number for number in range(60)]
    lines = [json.dumps({"n": number, "x": number / 2 if number < 100 else number}) for number in numbers]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines) + "\n")

    def dataset() -> StreamingDataset:
        options = {"columns": {"n": "int", "x": "float"}}
        return StreamingDataset(tmp_path / "data", format="json", format_options=options, batch_size=4)

    batches = list(dataset().batches())
    for at, batch in zip(range(0, 60, 4), batches, strict=True):
        values = numbers[at : at + 4]
        assert told(batch["n"]) == told(values if 10**30 in values else np.array(values))
        assert isinstance(batch["x"], np.ndarray)
    assert alone(dataset(), dataset()) == all_told(batches)


@pytest.mark.parametrize("writer", [MDSWriter, ParquetWriter, writer_of("arrow"), TarWriter])
def test_numbers_in_digits_are_arrays_where_they_fit(writer: Any, tmp_path: Path) -> None:
    """As those of a tar file's ``cls``."""
    numbers = [10**30 if number % 20 == 13 else number for number in range(60)]
    with writer({"id": "str_int", "x": "str_float"}, tmp_path / "data", size_limit=400) as out:
        for number in numbers:
            out.write({"id": number, "x": number / 3})

    def dataset() -> StreamingDataset:
        return StreamingDataset(tmp_path / "data", batch_size=4, read=IN_TURN, columns=["id", "x"])

    whole = [batch_of([{"id": n, "x": n / 3} for n in numbers[at : at + 4]]) for at in range(0, 60, 4)]
    assert kinds_of(all_told(whole), "id") == {"ndarray", "list"}
    assert all_told(dataset().batches()) == all_told(dataset().map(handed_on).batches()) == all_told(whole)
    assert alone(dataset(), dataset()) == all_told(whole)
    assert [told(sample["id"]) for sample in dataset()] == [told(number) for number in numbers]


def test_stored_numbers_keep_their_dtype_where_a_filter_fails(tmp_path: Path) -> None:
    """Samples are read one by one there, and have Python's numbers."""
    table = pa.table({"x": pa.array(range(20), pa.uint8()), "f": pa.array(np.arange(20) / 4, pa.float32())})
    pq.write_table(table, tmp_path / "0.parquet")
    dataset = StreamingDataset(tmp_path, batch_size=BATCH, on_bad_sample=SKIP, read=IN_TURN).filter(fails_at_6)
    left = [[n for n in range(at, at + BATCH) if n != 6] for at in range(0, 20, BATCH)]
    expected = [{"x": np.array(one, np.uint8), "f": np.array(one, np.float32) / 4} for one in left]
    assert all_told(dataset.batches()) == all_told(expected)


def fails_at_6(sample: dict[str, Any]) -> bool:
    if sample["x"] == 6:
        raise ValueError("six")
    return True


def test_functions_after_a_join_have_the_numbers_of_samples(tmp_path: Path) -> None:
    """Batches gave them NumPy's after a function, whose products overflow."""
    kinds = {"cls": "str_int", "x": "str_float", "n": "int", "small": "uint8"}
    write_samples(tmp_path / "left", ({"key": number} for number in range(24)))
    with MDSWriter({"key": "int", **kinds}, tmp_path / "right") as out:
        for number in range(0, 24, 2):
            out.write({"key": number, "cls": 10**25 if number == 6 else number, "x": 0.5, "n": number, "small": number})

    def joined(missing: Literal["leave_out", "none"]) -> StreamingDataset:
        left = StreamingDataset(tmp_path / "left", batch_size=BATCH, read=IN_TURN).filter(not_5)
        return left.join(StreamingDataset(tmp_path / "right"), on="key", missing=missing)

    chain = joined("leave_out").map(multiplied)
    made = [{"cls": s["cls"] * 2**60, "n": s["n"] * 2**60, "types": types_of(s)} for s in joined("leave_out")]
    assert made == list(chain)
    rows = itertools.chain.from_iterable(zip(*batch.values(), strict=True) for batch in chain.batches())
    assert made == [dict(zip(made[0], row, strict=True)) for row in rows]
    assert {one for sample in made for one in sample["types"]} == {int, float, np.uint8}
    # Without a function after it, columns keep their dtype, and lists have the numbers of samples.
    for batches in (joined("leave_out").batches(), joined("none").batches()):
        for batch in batches:
            for name, own in (("cls", int), ("x", float), ("n", int)):
                column = batch[name]
                if isinstance(column, np.ndarray):
                    assert column.dtype == own
                else:
                    assert set(map(type, column)) <= {own, type(None)}
    assert {np.asarray(batch["small"]).dtype for batch in joined("leave_out").batches()} == {np.dtype(np.uint8)}


def not_5(sample: dict[str, Any]) -> bool:
    return bool(sample["key"] != 5)


def types_of(sample: dict[str, Any]) -> list[type]:
    return [type(sample[name]) for name in ("cls", "x", "n", "small")]


def multiplied(sample: dict[str, Any]) -> dict[str, Any]:
    return {"cls": sample["cls"] * 2**60, "n": sample["n"] * 2**60, "types": types_of(sample)}


def handed_on(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_joined_columns_are_those_of_their_own_samples(tmp_path: Path) -> None:
    write_samples(tmp_path / "left", ({"key": number} for number in range(120)), size_limit=400)
    there = [number for number in range(120) if number % 9 != 4 and not 60 <= number < 68]
    with MDSWriter({"key": "int", "v": "ndarray:float32:2", "n": "int"}, tmp_path / "right", size_limit=900) as out:
        for number in there:
            out.write({"key": number, "v": np.full(2, number, np.float32), "n": 2 * number})

    def one(number: int) -> dict[str, Any]:
        found = number in there
        v = np.full(2, number, np.float32) if found else None
        return {"key": np.int64(number), "v": v, "n": 2 * number if found else None}

    def batch(first: int) -> dict[str, Any]:
        return batch_of([one(number) for number in range(first, first + BATCH)])

    def joined(*, later: bool) -> StreamingDataset:
        left = StreamingDataset(tmp_path / "left", batch_size=BATCH, read=IN_TURN)
        if later:
            left = left.map(key_alone)
        return left.join(StreamingDataset(tmp_path / "right"), on="key", missing="none")

    whole = [told(batch(first)) for first in range(0, 120, BATCH)]
    assert {"ndarray", "list"} == kinds_of(whole, "v") == kinds_of(whole, "n")
    assert all_told(joined(later=False).batches()) == whole
    assert alone(joined(later=False), joined(later=False)) == whole
    after = all_told(joined(later=True).batches())
    assert alone(joined(later=True), joined(later=True)) == after
    assert [batch["n"][0] for batch in after] == [batch["n"][0] for batch in whole]

    def filtered() -> StreamingDataset:
        return joined(later=False).filter(three_of_four)

    assert alone(filtered(), filtered()) == all_told(filtered().batches())


def three_of_four(sample: dict[str, Any]) -> bool:
    return bool(sample["key" if "key" in sample else "n"] % 4 < 3)


def key_alone(sample: dict[str, Any]) -> dict[str, Any]:
    return {"key": np.int64(sample["key"])}


# -- the class ---------------------------------------------------------------------------------------------------------


def test_values_that_wait_for_their_batch_are_sent_as_they_are() -> None:
    ragged = Unstacked([np.zeros(2), np.ones(2), None, np.float32(1)], own_numbers=False)
    numbers = Unstacked([1, None, 3, 4], np.dtype(np.int16))
    for one in (ragged, numbers):
        again = pickle.loads(pickle.dumps(one, 5))
        assert type(again) is Unstacked
        assert (again.dtype, again.own_numbers) == (one.dtype, one.own_numbers)
        for begin, end in itertools.combinations(range(5), 2):
            assert told(again.column(begin, end)) == told(one.column(begin, end))
    assert told(numbers.column(2, 4)) == told(np.array([3, 4], np.int16))
    assert told(numbers.column(0, 2)) == told([1, None])
    assert told(ragged.column(0, 2)) == told(np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert told(ragged.column(3, 4)) == told(np.array([1], np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "bool"])
def test_numbers_beside_nulls_are_the_numbers_of_their_dtype(dtype: str) -> None:
    values = np.frombuffer(np.random.default_rng(1).bytes(64), np.uint8)
    array = values.view(dtype) if dtype != "bool" else values % 2 == 0
    array = array[np.isfinite(array)]
    column = spread(array, range(1, len(array) + 1), len(array) + 2)
    assert isinstance(column, Unstacked)
    assert told(column.column(1, len(array) + 1)) == told(array)
    assert column.column()[0] is None
    assert told(column.column(0, 2)) == told([None, array[0].item()])


def test_a_batch_without_samples_has_the_columns_of_the_first_good_one(data: Path) -> None:
    def only(numbers: range) -> StreamingDataset:
        return opened(data, 1, transform=None).map(uneven).filter(Among(numbers))

    kept = range(101, 118)
    found = list(only(kept).batches())
    assert [len(batch["x"]) for batch in found] == [*[0] * 25, 3, 4, 4, 4, 2, *[0] * 21]
    empties = {str(told(batch["x"])) for batch in found if not len(batch["x"])}
    assert len(empties) == 1  # in the runs before and after those that are kept
    assert alone(only(kept), only(kept)) == all_told(found)
    nothing = only(range(0))
    assert list(nothing.batches()) == [{}] * len(found)
    assert nothing.stats().filtered == SAMPLES  # those that were tried are not counted


def uneven(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["n"])
    return {"n": number, "x": np.zeros(2 + (number % 2 == 0))}


class Among:
    """A filter that keeps some numbers."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __call__(self, sample: dict[str, Any]) -> bool:
        return sample["n"] in self._numbers
