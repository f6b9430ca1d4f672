"""Which samples belong: conditions on values, lists of ids, parts of a split."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import multiprocessing
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cases import OPERATORS
from patience import PATIENCE
from stoker import BadSamples, MDSWriter, StreamingDataset
from stoker.cache.base import CacheSettings
from stoker.catalog.location import DatasetLocation, open_indexed
from stoker.errors import ConfigError, DecodeError, TransformError
from stoker.order.subsets import Condition, HashSplit, KeepIds, SkipIds, Subset, train_validation_split
from stoker.reading.shard_pool import ShardPool
from stoker.streams.compare import compare, plain_operand
from stoker.streams.conditions import Where, chosen_ids
from stoker.streams.streams import Stream, open_streams
from stoker.writers import JSONWriter
from support import open_parquet, write_samples

COLUMNS = {"id": "int", "lang": "str", "score": "float32", "raw": "bytes", "row": "ndarray:int16:2", "wide": "uint64"}
LANGUAGES = ("en", "de", "fr")


def sample_of(number: int) -> dict[str, Any]:
    return {
        "id": number - 50,
        "lang": LANGUAGES[number % 3],
        "score": float(np.float32(number / 10)),
        "raw": bytes([number % 7]),
        "row": np.array([number, -number], np.int16),
        "wide": 2**64 - 1 - number,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    write_samples(str(out), map(sample_of, range(200)), COLUMNS, size_limit=1500)
    return out


def location_of(data: Path) -> DatasetLocation:
    return open_indexed(None, data, None, settings=CacheSettings())


def expected(holds: Callable[[dict[str, Any]], bool]) -> list[int]:
    return [number for number in range(200) if holds(sample_of(number))]


def short(row: Any) -> Any:
    """A function that a child process can find."""
    return row[:, 0] < 5


# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    ("column", "value"),
    [("id", 7), ("id", 7.5), ("id", -(10**30)), ("lang", "en"), ("score", 5.0), ("raw", b"\3"), ("wide", 2**64 - 9)],
)
def test_each_operator_chooses_what_python_would(data: Path, column: str, op: str, value: Any) -> None:
    found = chosen_ids(location_of(data), Where(column, op, value))
    assert found.dtype == np.int64
    assert found.tolist() == expected(lambda sample: OPERATORS[op](sample[column], value))


@pytest.mark.parametrize(
    ("column", "values"),
    [("id", [1, 2.0, 2.5, 10**30, math.inf]), ("lang", {"de", "xx"}), ("raw", (b"\1",)), ("wide", [2**64 - 1, -1])],
)
def test_in_and_not_in_choose_what_python_would(data: Path, column: str, values: Any) -> None:
    found = chosen_ids(location_of(data), Where(column, "in", values)).tolist()
    assert found == expected(lambda sample: sample[column] in values)
    rest = chosen_ids(location_of(data), Where(column, "not in", values)).tolist()
    assert sorted(found + rest) == list(range(200))


def test_a_number_is_rounded_as_the_column_was(data: Path) -> None:
    assert chosen_ids(location_of(data), Where("score", "==", 0.1)).tolist() == [1]
    assert chosen_ids(location_of(data), Where("score", "in", [0.1, 0.2])).tolist() == [1, 2]


def test_conditions_combine(data: Path) -> None:
    en, low, high = Where("lang", "==", "en"), Where("score", "<", 3), Where("id", ">=", 100)
    location = location_of(data)
    assert chosen_ids(location, en & (low | ~high)).tolist() == expected(
        lambda s: s["lang"] == "en" and (s["score"] < 3 or not s["id"] >= 100)
    )
    assert chosen_ids(location, ~(en | ~en)).tolist() == []
    assert (en & (low | ~high)).columns == ("id", "lang", "score")
    with pytest.raises(ConfigError, match=r"with &, \| and ~"):
        _ = en and low
    with pytest.raises(TypeError):
        _ = en & True  # type: ignore[operator]


def test_a_function_gets_columns_and_chooses(data: Path) -> None:
    kinds: list[Any] = []

    def fn(row: Any, lang: Any) -> Any:
        kinds.append((type(row), row.shape[1:], type(lang)))
        return (row.sum(axis=1) == 0) & np.array([one != "fr" for one in lang])

    where = Where.function(["row", "lang"], fn, name="no french")
    assert chosen_ids(location_of(data), where).tolist() == expected(lambda s: s["lang"] != "fr")
    assert set(kinds) == {(np.ndarray, (2,), list)}
    assert where.as_dict() == {"columns": ["row", "lang"], "function": "no french"}
    assert chosen_ids(location_of(data), where & Where("id", "<", -40)).tolist() == expected(
        lambda s: s["lang"] != "fr" and s["id"] < -40
    )


def test_conditions_are_evaluated_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = Where("id", "in", range(5))
    first = chosen_ids(location_of(data), where)
    assert isinstance(first, np.memmap)

    def refuse(*_: object) -> Any:
        raise AssertionError("the data were read again")

    monkeypatch.setattr(ShardPool, "get", refuse)
    assert chosen_ids(location_of(data), Where("id", "in", [4, 3, 2, 1, 0])).tolist() == first.tolist()
    with pytest.raises(AssertionError):
        chosen_ids(location_of(data), Where("id", "in", range(6)))


def test_a_failing_function_leaves_nothing_behind(data: Path) -> None:
    def fn(_: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(TransformError, match=r"samples 0 to \d+: function 'fails' raised KeyError: 'mine'") as caught:
        chosen_ids(location_of(data), Where.function("id", fn, name="fails"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert not list(data.rglob("*.part"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Where("id", "=", 1), "operator '=' is unknown; did you mean '=='"),
        (lambda: Where("id", "=>", 1), "did you mean '>='"),
        (lambda: Where("id", "like", "x"), "operator 'like' is unknown; known: =="),
        (lambda: Where("id", ">", np.datetime64("NaT", "s")), "nothing equals NaT"),
        (lambda: Where("id", "<", None), "not with NoneType"),
        (lambda: Where("id", "in", [1, None]), "'in' does not find nulls: leave None out"),
        (lambda: Where("id", "==", [1]), "not with list"),
        (lambda: Where("id", "<", math.nan), "nothing equals NaN"),
        (lambda: Where("lang", "in", "en"), "'in' needs a list or set of values, got str"),
        (lambda: Where("lang", "in", ["en", 1]), "values of one kind"),
        (lambda: Where.function([], len, name="x"), "one column or several"),
        (lambda: Where.function("id", len, name=""), "needs a name"),
        (lambda: Where.function("id", 5, name="x"), "fn must be a function"),  # type: ignore[arg-type]
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(make: Callable[[], Condition], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (Where("words", "==", 1), "no column 'words'"),
        (Where("lang", "==", 1), "column 'lang' holds text, which can not be compared with 1"),
        (Where("id", "in", ["a"]), "column 'id' holds numbers, which can not be compared with 'a'"),
        (Where("raw", "<", "a"), "column 'raw' holds bytes"),
        (Where("row", "==", 1), r"column 'row' holds arrays \(int16, 1 axis each\), .* with 1: use Where.function"),
        (Where.function("id", lambda ids: ids, name="ints"), "should return .* truth values .* returned dtype int64"),
        (Where.function("id", lambda ids: True, name="one"), r"truth values .* shape \(\)"),
    ],
)
def test_a_condition_that_does_not_fit_the_data_is_refused(data: Path, where: Condition, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen_ids(location_of(data), where)


OTHER_KINDS: dict[str, tuple[Any, str]] = {
    "struct": (pa.array([{"a": 1}, None]), "structs"),
    "ragged": (pa.array([[1, 2], [3]]), "arrays"),
    "rows": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), r"arrays \(int64, 1 axis each\)"),
    "texts": (pa.array([["a"], ["b", "c"]]), "lists"),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), "lists"),
    "time": (pa.array([1, 2], pa.time32("s")), "times of day"),
    "duration": (pa.array([1, 2], pa.duration("s")), "durations"),
}


@pytest.mark.parametrize("op", [*OPERATORS, "in", "not in"])
@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_no_comparison_with_structs_lists_or_times_of_day(tmp_path: Path, kind: str, op: str) -> None:
    column, named = OTHER_KINDS[kind]
    pq.write_table(pa.table({"c": column}), tmp_path / "data.parquet")
    for value in (1, "a", b"a", dt.date(1970, 1, 1)):
        where = Where("c", op, [value] if "in" in op else value)
        with pytest.raises(ConfigError, match=f"column 'c' holds {named}, which can not .*: use Where.function"):
            chosen_ids(open_parquet(tmp_path), where)


@pytest.mark.parametrize("op", [*OPERATORS, "in", "not in"])
def test_no_comparison_with_lists_among_json_values(tmp_path: Path, op: str) -> None:
    with MDSWriter(columns={"j": "json", "n": "json"}, out=str(tmp_path / "data")) as writer:
        for value in (None, 1, [2], 1.0, 3):
            writer.write({"j": value, "n": 7 if value == [2] else value})
    location = location_of(tmp_path / "data")
    operand = [1] if "in" in op else 1
    with pytest.raises(ConfigError, match=r"column 'j' holds lists, which can not be compared with 1: use"):
        chosen_ids(location, Where("j", op, operand))
    assert chosen_ids(location, Where("n", "==", 1)).tolist() == [1, 3]
    with pytest.raises(ConfigError, match=r"holds numbers, .* with '1': write the value as a number, without quotes"):
        chosen_ids(location, Where("n", op, ["1"] if "in" in op else "1"))


DAYS = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), None]


@pytest.mark.parametrize("kind", ["date32", "s", "ms", "us", "ns"])
@pytest.mark.parametrize("make", [lambda day: day, np.datetime64, str, lambda day: np.datetime64(day, "s")])
def test_dates_are_compared_exactly_whatever_their_unit(
    tmp_path: Path, kind: str, make: Callable[[dt.date], Any]
) -> None:
    column = pa.array(DAYS) if kind == "date32" else pa.array(DAYS).cast(pa.timestamp(kind))
    pq.write_table(pa.table({"d": column}), tmp_path / "data.parquet")
    location = open_parquet(tmp_path)
    days = [day for day in DAYS if day is not None]
    for day in (*days, dt.date(1970, 1, 2), dt.date(9999, 1, 1)):
        for op, holds in OPERATORS.items():
            expected = [number for number, one in enumerate(days) if holds(one, day)]
            assert chosen_ids(location, Where("d", op, make(day))).tolist() == expected
    assert chosen_ids(location, Where("d", "in", [make(days[0]), make(days[2])])).tolist() == [0, 2]
    assert chosen_ids(location, Where("d", "not in", [make(days[0])])).tolist() == [1, 2]
    for wrong, message in (
        (5, "holds dates, which can not be compared with 5: write"),
        ("now", "'now' is none: write"),
    ):
        with pytest.raises(ConfigError, match=message):
            chosen_ids(location, Where("d", "==", wrong))


def test_moments_between_a_columns_ticks_and_in_other_time_zones() -> None:
    seconds = np.array(["2024-01-01T00:00:00", "2024-01-01T00:00:01"], "datetime64[s]")
    half = np.datetime64("2024-01-01T00:00:00.5")
    zone = dt.timezone(dt.timedelta(hours=2))
    moment = dt.datetime(2024, 1, 1, 2, 0, 1, tzinfo=zone)
    for op, value, found in (
        ("<", half, [True, False]),
        (">=", half, [False, True]),
        ("==", half, [False, False]),
        ("==", moment, [False, True]),
        (">", "2024-01-01T00:00:00.25", [False, True]),
    ):
        assert compare(seconds, op, plain_operand(op, value), "c")[0].tolist() == found


def test_a_condition_on_a_date_has_one_description() -> None:
    where = Where("d", "in", [dt.date(2024, 1, 2), dt.date(2023, 1, 1)])
    assert where == pickle.loads(pickle.dumps(where))
    assert json.loads(json.dumps(where.as_dict()))["value"] == [{"date": "2023-01-01"}, {"date": "2024-01-02"}]


def test_decimals_are_compared_with_numbers_as_these_are_written(tmp_path: Path) -> None:
    prices = [Decimal("0.10"), Decimal("0.20"), Decimal("3.00")]
    pq.write_table(pa.table({"p": prices}), tmp_path / "data.parquet")
    for op, value, expected in (("==", 0.1, [0]), (">", 0.1, [1, 2]), ("in", [0.2, 3], [1, 2]), ("<=", 0.2, [0, 1])):
        where = Where("p", op, value)
        dataset = StreamingDataset(
            remote=str(tmp_path), format="parquet", subset=where, format_options={"filters": [("p", op, value)]}
        )
        assert dataset.epoch_size == len(expected)
    with pytest.raises(ConfigError, match="holds numbers"):
        StreamingDataset(remote=str(tmp_path), format="parquet", subset=Where("p", "==", "0.1"))


def test_text_formats_can_be_filtered(tmp_path: Path) -> None:
    with JSONWriter(columns={"n": "int", "s": "str"}, out=str(tmp_path / "data")) as writer:
        for number in range(10):
            writer.write({"n": number * 10**18, "s": "ab"[number % 2]})
    location = location_of(tmp_path / "data")
    assert chosen_ids(location, Where("n", ">", 7 * 10**18) & Where("s", "==", "a")).tolist() == [8]


@given(
    st.sampled_from(["u1", "i1", "i8", "u8", "?"]),
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1),
    st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False)),
    st.sampled_from(list(OPERATORS)),
)
def test_integers_are_compared_exactly(dtype: str, numbers: list[int], value: float, op: str) -> None:
    bounds = np.iinfo("u1" if dtype == "?" else dtype)
    fitting = [min(max(number, int(bounds.min)), int(bounds.max)) for number in numbers]
    for column in (np.array(fitting, dtype), np.array(fitting, dtype).tolist()):
        found, unknown = compare(column, op, plain_operand(op, value), "it")
        assert unknown is None
        assert found.dtype == np.bool_
        assert found.tolist() == [OPERATORS[op](number, value) for number in np.array(fitting, dtype).tolist()]
    inside, _ = compare(np.array(fitting, dtype), "in", plain_operand("in", [value, fitting[0]]), "it")
    assert inside.tolist() == [number in (value, fitting[0]) for number in np.array(fitting, dtype).tolist()]


def test_a_condition_is_a_value() -> None:
    a = Where("id", "in", np.array([3, 1, 2])) & ~Where("raw", "==", b"\1")
    b = Where("id", "in", (1, 2, 3)) & ~Where("raw", "==", bytearray(b"\1"))
    assert a == b
    assert hash(a) == hash(b)
    assert a.as_dict() == {
        "and": [
            {"column": "id", "op": "in", "value": [1, 2, 3]},
            {"not": {"column": "raw", "op": "==", "value": {"bytes": "01"}}},
        ]
    }
    assert pickle.loads(pickle.dumps(a)) == a


def test_a_function_that_can_not_be_pickled_stays_behind(data: Path) -> None:
    where = Where.function("id", lambda ids: ids > 140, name="late")
    first = chosen_ids(location_of(data), where).tolist()
    copy = pickle.loads(pickle.dumps(where))
    assert copy == where
    assert chosen_ids(location_of(data), copy).tolist() == first
    unseen = pickle.loads(pickle.dumps(Where.function("id", lambda ids: ids > 141, name="later")))
    with pytest.raises(ConfigError, match="'later' did not come along into this process"):
        chosen_ids(location_of(data), unseen)


def _child(data: Path, stream: Stream, results: Any) -> None:
    found = [chosen_ids(location_of(data), each).tolist() for each in stream.subsets if isinstance(each, Condition)]
    results.put(found)


def test_a_spawned_process_chooses_the_same(data: Path) -> None:
    stream = Stream(local=data, subset=[Where.function("row", short, name="short"), Where("lang", "==", "de")])
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_child, args=(data, stream, results))
    child.start()
    assert results.get(timeout=PATIENCE) == [list(range(5)), expected(lambda s: s["lang"] == "de")]
    child.join()


# -- lists of ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeepIds, SkipIds])
def test_ids_are_the_same_from_any_source(tmp_path: Path, kind: type[KeepIds | SkipIds]) -> None:
    ids = [5, 3, 10**12, 0]
    np.save(tmp_path / "plain.npy", np.array(ids))
    np.save(tmp_path / "sorted.npy", np.sort(ids).astype(np.uint64))
    (tmp_path / "ids.txt").write_text("5\n3\n\n 1000000000000 \n0\n")
    sources: list[Any] = [ids, np.array(ids), np.array(ids, np.uint64), *tmp_path.iterdir()]
    sources.append(str(tmp_path / "ids.txt"))
    values = [kind(source) for source in sources]
    for value in values:
        assert value.ids.tolist() == [0, 3, 5, 10**12]
        assert value.ids.dtype == np.int64
        assert not value.ids.flags.writeable
        assert value == values[0]
        assert hash(value) == hash(values[0])
        assert pickle.loads(pickle.dumps(value)) == value
    digest = xxhash.xxh64(np.array(sorted(ids), "<i8").tobytes()).hexdigest()
    assert values[0].as_dict() == {"keep" if kind is KeepIds else "skip": 4, "xxh64": digest}


def test_keeping_is_not_skipping() -> None:
    assert KeepIds([1]) != SkipIds([1])
    assert KeepIds([1]) != KeepIds([2])
    assert KeepIds([]).as_dict()["keep"] == 0


def test_sorted_ids_of_a_file_stay_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(0, 3_000_000, 2))
    kept = KeepIds(tmp_path / "ids.npy")
    assert isinstance(kept.ids, np.memmap)
    assert len(pickle.dumps(kept)) < 1000


def test_ids_given_are_the_callers_own() -> None:
    ids = np.arange(5)
    kept = KeepIds(ids)
    ids[0] = 99
    assert kept.ids.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 1, 3], "id 3 is listed twice"),
        ([1, -1], "id -1 is negative"),
        ([1.5], r"ids\[0\] must be an integer, got 1.5"),
        ([[1, 2]], r"ids\[0\] must be an integer, got \[1, 2\]"),
    ],
)
def test_ids_that_are_none_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KeepIds(ids)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"1\nx2\n", r"a\.txt, line 2: expected an id, found 'x2'"),
        ("a.txt", b"1\n99999999999999999999\n", r"line 2: expected an id"),
        ("a.txt", b"7\n7\n", r"a\.txt: id 7 is listed twice"),
        ("a.txt", b"\xff\xfe", "can not be read as a list of ids"),
        ("a.npy", b"no array", "can not be read as a list of ids"),
        ("missing.npy", None, "can not be read as a list of ids"),
    ],
)
def test_a_file_that_holds_no_ids_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        _ = KeepIds(tmp_path / name).ids


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validation", [0.1, 0.3, 0.9, Fraction(1, 3), 1e-9])
def test_train_and_validation_meet_exactly(validation: Any) -> None:
    train, rest = train_validation_split(validation, seed=4)
    assert (train.low, rest.high) == (0, 1)
    assert train.high == rest.low == 1 - Fraction(str(validation))
    assert train.seed == rest.seed == 4
    assert pickle.loads(pickle.dumps(train)) == train


def test_a_split_says_what_it_is() -> None:
    assert HashSplit(0, 0.9, seed=3).as_dict() == {"split": ["0", "9/10"], "seed": 3}
    assert HashSplit(0, 0.9) == HashSplit(Fraction(0), Fraction(9, 10))


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0, 1.1), (0, math.nan), ("a", 1), (None, 1)]
)
def test_a_split_outside_of_everything_is_refused(low: Any, high: Any) -> None:
    with pytest.raises(ConfigError, match=r"0 <= low < high <= 1|must be a Fraction or a number"):
        HashSplit(low, high)


@pytest.mark.parametrize("validation", [0, 1, -1, 2, math.inf])
def test_a_validation_part_of_nothing_or_all_is_refused(validation: float) -> None:
    with pytest.raises(ConfigError, match="validation"):
        train_validation_split(validation)


def test_streams_keep_their_subsets(data: Path) -> None:
    subsets: list[Subset] = [HashSplit(0, 0.5), KeepIds([1, 2]), SkipIds([2]), Where("id", ">", 0)]
    streams = open_streams([Stream(local=data, subset=subset) for subset in subsets] + [Stream(local=data)])
    chained = [stream.subsets for stream in streams.streams]
    assert list(itertools.chain(*chained)) == subsets
    copy = pickle.loads(pickle.dumps(streams))
    assert [stream.subsets for stream in copy.streams] == chained
    assert Stream(local=data, subset=subsets).subsets == tuple(subsets)


@pytest.mark.parametrize("damaged", [[120], [0, 50, 51, 250, 299], list(range(300, 303))])
def test_a_sample_that_a_condition_can_not_read_is_a_bad_one(tmp_path: Path, damaged: list[int]) -> None:
    lines = [json.dumps({"x": number}) if number not in damaged else '{"x": 12 broken' for number in range(303)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")

    def read(treatment: Any, **options: Any) -> list[int]:
        dataset = StreamingDataset(
            str(tmp_path / "a.jsonl"), subset=Where("x", ">", 99), on_bad_sample=treatment, batch_size=8, **options
        )
        return [int(sample["x"]) for sample in dataset]

    good = [number for number in range(100, 303) if number not in damaged]
    with pytest.raises(DecodeError, match=f"sample {damaged[0]}: not JSON"):
        read("raise")
    assert read("skip") == good
    log = tmp_path / "bad.jsonl"
    assert sorted(read(BadSamples("skip", file=str(log)), shuffle=True)) == good
    assert sorted(json.loads(line)["sample"] for line in log.read_text().splitlines()) == damaged
    assert len(read("replace")) == len(good) + len(damaged)
    with pytest.raises(DecodeError, match="not JSON"):  # also where the ids are known
        read("raise")
