"""The loader over real files: types, writers, bad input, workers, threads, Megatron's and raw files."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_cases import rows_of, write_parquet

from patience import PATIENCE
from stoker import ReadOptions, World
from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError, ObjectNotFoundError
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader
from stoker.tokens.sources import source as sources
from stoker.tokens.sources.megatron import MegatronWriter
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import MegatronSource, RawSource

pytestmark = pytest.mark.usefixtures("own_cache")

DOCUMENTS = [[1, 2, 3, 4], [5], [6, 7], [], [8, 9, 10, 11, 12], [13, 14]]
FLAT = [token for document in DOCUMENTS for token in document]


def loader(source: Any, **options: Any) -> StreamingParquetLoader:
    chosen: dict[str, Any] = {"batch_size": 2, "seq_len": 4, "pad_id": 0, "shuffle": False, **options}
    return StreamingParquetLoader(source, chosen.pop("shard", ShardConfig.single()), **chosen)


def tokens_of(source: Any, **options: Any) -> list[int]:
    return [int(token) for batch in loader(source, **options) for token in batch.input_ids.ravel() if token]


# -- what is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integer", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize(
    "make", [pa.list_, pa.large_list, lambda kind: pa.list_(pa.field("element", kind, nullable=False))]
)
def test_lists_of_any_integers_are_read(tmp_path: Path, integer: str, make: Any) -> None:
    write_parquet(tmp_path / "a.parquet", [DOCUMENTS[:3], DOCUMENTS[3:]], make(getattr(pa, integer)()))
    assert tokens_of(tmp_path) == FLAT


def test_lists_of_a_fixed_size_are_read(tmp_path: Path) -> None:
    rows = [[1, 2, 3], None, [4, 5, 6], [7, 8, 9]]
    write_parquet(tmp_path / "a.parquet", [rows], pa.list_(pa.int32(), 3))
    assert tokens_of(tmp_path) == list(range(1, 10))


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "snappy", "use_dictionary": False},
        {"compression": "none", "data_page_version": "2.0"},
        {"data_page_size": 16, "write_page_index": True},
        {"write_page_checksum": True},
    ],
)
def test_files_of_all_encodings_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(1, 50_000, rng.integers(0, 40)).tolist() for _ in range(300)]
    write_parquet(tmp_path / "a.parquet", [rows[:200], rows[200:]], **options)
    assert tokens_of(tmp_path) == [token for row in rows for token in row]


@pytest.mark.parametrize("writer", ["polars", "duckdb"])
def test_files_of_other_writers_are_read(tmp_path: Path, writer: str) -> None:
    rows: list[list[int] | None] = [[1, 2], None, [], [3, 4, 5], [6]]
    path = tmp_path / "a.parquet"
    if writer == "polars":
        polars = pytest.importorskip("polars")
        polars.DataFrame({"input_ids": rows}, schema={"input_ids": polars.List(polars.Int32)}).write_parquet(path)
    else:
        duckdb = pytest.importorskip("duckdb")
        duckdb.sql(
            f"COPY (SELECT unnest([[1, 2], NULL, [], [3, 4, 5], [6]]) AS input_ids) TO '{path}' (FORMAT parquet)"
        )
    assert tokens_of(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_ids_of_all_sizes_lie_in_one_block(tmp_path: Path) -> None:
    """Ids are kept in as few bits as they allow; large ones after small ones change nothing of these."""
    rows = [[1, 2, 3], [60_000, 65_535], [65_536, 5], [1 << 31, (1 << 32) - 1], [1 << 32, 7], [9]]
    write_parquet(tmp_path / "a.parquet", [[row] for row in rows], pa.list_(pa.int64()))
    assert tokens_of(tmp_path) == [token for row in rows for token in row]


def test_empty_and_null_lists_are_no_documents(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [[None, [1], []], [[], None], [[2, 3], None, [4]]])
    (batch,) = loader(tmp_path, layout="pad", batch_size=8)
    assert batch.input_ids.tolist() == [[1, 0, 0, 0], [2, 3, 0, 0], [4, 0, 0, 0]]
    # Documents have the numbers of their rows, empty ones counted.
    assert batch.document_ids.tolist() == [[1, -1, -1, -1], [5, 5, -1, -1], [7, -1, -1, -1]]


def test_the_column_is_found_by_name_or_given(tmp_path: Path) -> None:
    for name in ("input_ids", "token_ids", "tokens"):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name / "a.parquet", [DOCUMENTS], column=name)
        assert tokens_of(tmp_path / name) == FLAT
    write_parquet(tmp_path / "b.parquet", [DOCUMENTS], column="mine")
    assert tokens_of(tmp_path / "b.parquet", column="mine") == FLAT


def test_files_without_statistics_are_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path / "data.parquet", [DOCUMENTS, DOCUMENTS[:2]], write_statistics=False)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(tmp_path) == FLAT + FLAT[:5]
        said = [record for record in caplog.records if "decoded once" in record.getMessage()]
        assert tokens_of(tmp_path) == FLAT + FLAT[:5]
    assert len(said) == len([record for record in caplog.records if "decoded once" in record.getMessage()]) == 1


def test_packed_rows_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet", [DOCUMENTS] * 3)
    options: dict[str, Any] = {"layout": "pack", "seq_len": 5}
    first = sorted(tokens_of(tmp_path, **options))
    monkeypatch.setattr("stoker.tokens.sources.block_buffer.measure", None)  # would fail if it were called
    assert sorted(tokens_of(tmp_path, **options)) == first == sorted(FLAT * 3)


def test_rows_of_several_files_are_shared_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path / "big.parquet", [[[k] * 4] * 4 for k in range(1, 9)])
    write_parquet(tmp_path / "small.parquet", [[[k] * 4] * 4 for k in range(9, 11)])
    with caplog.at_level(logging.WARNING):
        ranks = [loader(tmp_path, shard=ShardConfig(rank, 2), shuffle=True) for rank in range(2)]
    assert [rank.granularity for rank in ranks] == ["row_group"] * 2
    assert [rank.tokens for rank in ranks] == [80, 80]
    assert "by whole files rank 0 would get 60.0% more tokens than the mean" in caplog.text
    seen = [int(token) for rank in ranks for batch in rank for token in batch.input_ids.ravel()]
    assert sorted(seen) == sorted(k for k in range(1, 11) for _ in range(16))
    with pytest.raises(ConfigError, match="C-SHARD-001"):
        loader(tmp_path, shard=ShardConfig(0, 3), granularity="file")


def test_my_files_are_paths(tmp_path: Path) -> None:
    for number in range(5):
        write_parquet(tmp_path / f"{number}.parquet", [DOCUMENTS])
    rank = loader(tmp_path, shard=ShardConfig(1, 2), granularity="file")
    assert rank.my_files == (str(tmp_path / "1.parquet"), str(tmp_path / "3.parquet"))
    assert (rank.num_files, rank.total_files) == (2, 5)


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_a_file_without_a_token_column_is_named_with_what_it_has(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [["some", "text"]], pa.string(), column="text")
    with pytest.raises(ConfigError, match=r"a\.parquet: there is no token column \(.*text \(string\).*tokenize"):
        loader(tmp_path)
    with pytest.raises(ConfigError, match=r"a\.parquet: column 'text' holds string, .* lists of integers: tokenize"):
        loader(tmp_path, column="text")
    with pytest.raises(ConfigError, match=r"a\.parquet: no column 'mine'; it has text$"):
        loader(tmp_path, column="mine")


def test_a_column_of_floats_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [[[1.5]]], pa.list_(pa.float32()))
    with pytest.raises(ConfigError, match="lists of integers"):
        loader(tmp_path)


def test_files_of_different_types_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [DOCUMENTS])
    write_parquet(tmp_path / "b.parquet", [DOCUMENTS], pa.list_(pa.int64()))
    with pytest.raises(
        IndexFileError, match=r"a\.parquet and .*b\.parquet .*input_ids.*second\. Write the files alike"
    ):
        loader(tmp_path)


def test_advice_about_columns_names_arguments_that_the_loader_has(tmp_path: Path) -> None:
    """It has ``column=``, and no ``columns=``, unlike a ``StreamingDataset`` of the same files."""
    lists = pa.array(DOCUMENTS, pa.list_(pa.int32()))
    pq.write_table(pa.Table.from_arrays([lists] * 3, names=["input_ids", "x", "x"]), tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=r"two columns called 'x': .*of a StreamingParquetLoader column=\)"):
        loader(tmp_path)
    assert tokens_of(tmp_path, column="input_ids") == FLAT
    with pytest.raises(FormatError, match=r"two columns called 'x': rename one\. Mend"):
        loader(tmp_path, column="x")


def test_of_several_splits_the_advice_names_a_path_that_the_loader_takes(tmp_path: Path) -> None:
    """It has no ``split=``, unlike a ``StreamingDataset``."""
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        write_parquet(tmp_path / split / "a.parquet", [DOCUMENTS])
    with pytest.raises(ConfigError, match=rf"as by naming {tmp_path}/train \(a StreamingDataset also by split="):
        loader(tmp_path)
    assert tokens_of(tmp_path / "train") == FLAT


def test_bad_files_are_errors_or_counted_and_listed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "b.parquet", [DOCUMENTS])
    good = (tmp_path / "b.parquet").read_bytes()
    for name, data in (("a.parquet", b""), ("c.parquet", good[:-20]), ("d.parquet", b"not Parquet")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptDataError, match=name):
            loader(tmp_path)
        found = loader(tmp_path, format_options={"on_bad_files": "skip"})
        assert [Path(one.file).name for one in found.skipped_files] == [name]
        assert found.skipped_files[0].problem
        assert found.total_files == 1
        assert [int(token) for batch in found for token in batch.input_ids.ravel() if token] == FLAT
        (tmp_path / name).unlink()


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        loader(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError, match="there are no files"):
        loader(tmp_path / "empty")
    write_parquet(tmp_path / "a.parquet", [])
    with pytest.raises(ConfigError, match="no tokens"):
        loader(tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", [[None, []]])
    with pytest.raises(ConfigError, match="no tokens"):
        loader(tmp_path / "b.parquet")


def test_a_file_replaced_after_indexing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [DOCUMENTS])
    opened = loader(tmp_path)
    path.unlink()
    write_parquet(path, [DOCUMENTS[::-1]], compression="zstd")
    with pytest.raises(CorruptDataError, match=r"a\.parquet"):
        list(opened)


@pytest.mark.parametrize(("kind", "token", "options"), [
    (pa.int32(), -1, {}),
    (pa.int64(), 1 << 40, {"dtype": "int32"}),
    (pa.uint64(), (1 << 64) - 1, {}),
    (pa.int32(), 500, {"vocab_size": 500}),
])  # fmt: skip
def test_ids_that_do_not_fit_are_named_and_never_wrapped(
    tmp_path: Path, kind: Any, token: int, options: dict[str, Any]
) -> None:
    write_parquet(tmp_path / "a.parquet", [DOCUMENTS, [[1], [2, token]]], pa.list_(kind))
    opened = loader(tmp_path, shuffle_tokens=1, **options)
    iterator = iter(opened)
    assert next(iterator).input_ids.ravel().tolist() == FLAT[:8]
    with pytest.raises(FormatError, match=rf"a\.parquet: row group 1: column 'input_ids', row 1: {token} at token 1"):
        list(iterator)


@pytest.mark.parametrize("options", [{"layout": "pad"}, {"layout": "pack", "too_long": "error"}])
def test_a_document_that_is_too_long_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    short = [[1], [], [2, 3]]
    write_parquet(tmp_path / "a.parquet", [short, short], column="ids")
    write_parquet(tmp_path / "b.parquet", [short, [*short, [1] * 5, [2] * 9]], column="ids")
    where = r"b\.parquet: row group 1, row 3 \(row 6 of the file\): column 'ids': 5 tokens, more than seq_len=4"
    with pytest.raises(FormatError, match=where):
        list(loader(tmp_path, column="ids", **options))


def test_a_null_token_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [[[1, 2], [3, None, 4]]], pa.list_(pa.int32()))
    with pytest.raises(FormatError, match=r"a\.parquet.*row 1: token 1 is null"):
        list(loader(tmp_path))


def test_a_null_token_is_named_where_a_row_group_has_as_many_nulls_as_rows(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "a.parquet", [[[5, None]], [[7, 8, 9]]], pa.list_(pa.int32())
    )  # a row and a null: no empty list
    with pytest.raises(FormatError, match=r"row group 0: column 'input_ids', row 0: token 1 is null"):
        list(loader(tmp_path))
    skipping = loader(tmp_path, layout="pad", on_bad_sample="skip")
    assert [token for batch in skipping for token in batch.input_ids.ravel().tolist() if token > 4] == [7, 8, 9]
    assert skipping.stats().bad_samples == 1


def test_a_damaged_page_is_an_error_where_its_batches_would_come(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [[k] * 50 for k in range(1, 41)]
    write_parquet(path, [rows[:20], rows[20:]], use_dictionary=False, compression="none", write_page_checksum=True)
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[place + 200] ^= 255
    path.write_bytes(data)
    batches = iter(loader(tmp_path, seq_len=50, batch_size=5, shuffle_tokens=1, read=ReadOptions(read_threads=2)))
    assert [len(next(batches)) for _ in range(4)] == [5] * 4
    with pytest.raises(CorruptDataError, match=r"a\.parquet: row group 1"):
        next(batches)


# -- threads, workers, remote ----------------------------------------------------------------------------------------------


def test_leaving_in_the_middle_leaves_no_threads(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [[[k] * 50] * 50 for k in range(1, 30)])
    before = set(threading.enumerate())
    opened = loader(tmp_path, shuffle_tokens=1, read=ReadOptions(read_threads=2))
    for number, _ in enumerate(opened):
        if number == 3:
            break
    opened.close()
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert len(list(opened)) == len(opened)  # the next epoch


def test_batches_stay_as_they_are_while_others_are_read(tmp_path: Path) -> None:
    """Memory is used again only when nothing refers to it."""
    rng = np.random.default_rng(2)
    rows = [rng.integers(1, 1000, 64).tolist() for _ in range(400)]
    write_parquet(tmp_path / "a.parquet", [rows[k : k + 50] for k in range(0, 400, 50)])
    opened = loader(tmp_path, seq_len=64, shuffle=True, shuffle_tokens=1, read=ReadOptions(read_threads=2))
    kept, copies = [], []
    for batch in opened:
        kept.append(batch)
        copies.append((batch.input_ids.copy(), batch.labels.copy()))
    for batch, (ids, labels) in zip(kept, copies, strict=True):
        assert np.array_equal(batch.input_ids, ids)
        assert np.array_equal(batch.labels, labels)
    assert opened.stats().tokens == 400 * 64
    assert opened.stats().padding_waste == 0


@pytest.mark.processes
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_dataloader_workers_deliver_the_same_batches(tmp_path: Path, start: str) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    write_parquet(tmp_path / "a.parquet", [[[k, k + 1, k + 2] * 3] * 5 for k in range(1, 9)])
    straight = loader(tmp_path, shuffle=True, eos_id=99)
    expected = [rows_of(straight) for _ in range(2)]
    opened = loader(tmp_path, shuffle=True, eos_id=99)
    workers = torch_data.DataLoader(opened, batch_size=None, num_workers=2, multiprocessing_context=start)
    for epoch in range(2):
        begin = opened.upcoming()
        batches = list(workers)
        assert rows_of(batches) == expected[epoch]
        assert len(workers) == len(batches)
        assert batches[0].document_ids.shape == (2, 4)
    resumed = loader(tmp_path, shuffle=True, eos_id=99)
    resumed.load_state_dict(opened.state_after(begin, 5))
    assert rows_of(torch_data.DataLoader(resumed, batch_size=None, num_workers=2)) == expected[1][10:]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:.*fork.*:DeprecationWarning")  # torchdata's own
def test_states_of_workers_continue_in_them(tmp_path: Path) -> None:
    """torchdata's loader saves the state of each worker apart."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    write_parquet(tmp_path / "a.parquet", [[[k, k + 1, k + 2] * 3] * 5 for k in range(1, 9)])
    expected = rows_of(loader(tmp_path, shuffle=True))
    first = stateful.StatefulDataLoader(loader(tmp_path, shuffle=True), batch_size=None, num_workers=2)
    begun = [batch for _, batch in zip(range(7), first, strict=False)]
    state = first.state_dict()
    second = stateful.StatefulDataLoader(loader(tmp_path, shuffle=True), batch_size=None, num_workers=2)
    second.load_state_dict(state)
    assert rows_of(begun) + rows_of(second) == expected


def _half(folder: Path, rank: int) -> StreamingParquetLoader:
    return loader(folder, shard=ShardConfig(rank, 2, 7), shuffle=True)


def test_ranks_that_read_the_same(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [[[k, k + 1, k + 2] * 3] * 5 for k in range(1, 9)])
    opened = [
        loader(tmp_path, shard=None, world=World(rank, 4), replication=2, seed=7, shuffle=True) for rank in range(4)
    ]
    rows = [rows_of(one) for one in opened]
    assert rows[0] == rows[1] != rows[2] == rows[3]
    assert sorted(rows[0] + rows[2]) == sorted(row for rank in range(2) for row in rows_of(_half(tmp_path, rank)))


def test_batches_become_tensors_without_a_copy(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    write_parquet(tmp_path / "a.parquet", [DOCUMENTS])
    batch = next(iter(loader(tmp_path)))
    tensors = batch.torch("input_ids", "labels")
    assert tensors["input_ids"].dtype == torch.int64
    assert tensors["input_ids"].data_ptr() == batch.input_ids.ctypes.data


@pytest.mark.s3
def test_an_object_store_gives_the_same_and_a_cache_is_used(tmp_path: Path, bucket: Any) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    for number in range(3):
        write_parquet(folder / f"{number}.parquet", [[[number * 50 + k] * 7 for k in range(1, 20)]] * 2)
        client = bucket.server.client()
        client.upload_file(str(folder / f"{number}.parquet"), bucket.name, f"data/{number}.parquet")
    options: dict[str, Any] = {"shuffle": True, "storage_options": bucket.storage_options}
    remote = loader(f"{bucket.url}/data", **options)
    assert rows_of(remote) == rows_of(loader(folder, shuffle=True))
    assert remote.my_files == tuple(f"{bucket.url}/data/{number}.parquet" for number in range(3))
    state = remote.state_dict()
    local = loader(folder, shuffle=True)
    local.load_state_dict(state)  # the same data, wherever it lies
    assert rows_of(local) == rows_of(remote)


# -- other token files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    with MegatronWriter(tmp_path / "m.bin", "uint16") as out:
        out.write(Ragged.from_arrays([np.array(document, np.uint16) for document in DOCUMENTS]))
    return tmp_path / "m.bin"


def test_megatron_files_are_read_through_the_same_loader(megatron: Path) -> None:
    for source in (megatron, megatron.with_suffix(".idx"), MegatronSource(megatron), [megatron]):
        assert tokens_of(source) == FLAT
    packed = loader(megatron, layout="pack", seq_len=6)
    assert sorted(int(token) for batch in packed for token in batch.input_ids.ravel() if token) == FLAT


def test_raw_files_are_read_through_the_same_loader(tmp_path: Path) -> None:
    for name, tokens in (("a.bin", np.arange(1, 101)), ("b.bin", np.arange(101, 131))):
        tokens.astype("<u2").tofile(tmp_path / name)
    source = RawSource(tmp_path, "uint16", row_tokens=8)
    assert tokens_of(source, seq_len=8) == list(range(1, 131))
    ranks = [loader(source, shard=ShardConfig(rank, 3), shuffle=True, seq_len=8) for rank in range(3)]
    assert {int(token) for rank in ranks for batch in rank for token in batch.input_ids.ravel()} - {0} == set(
        range(1, 131)
    )
    with pytest.raises(ConfigError, match="RawSource"):
        loader(tmp_path / "a.bin")


def test_documents_of_files_of_several_groups_have_numbers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_GROUP_TOKENS", 16)
    for number in range(2):
        np.arange(1, 41, dtype="<u2").tofile(tmp_path / f"{number}.raw.bin")
        with MegatronWriter(tmp_path / f"{number}.bin", "uint16") as out:
            out.write(Ragged.from_arrays([np.full(4, 1 + k, np.uint16) for k in range(10)]))
    raw = RawSource([tmp_path / f"{number}.raw.bin" for number in range(2)], "uint16", row_tokens=4)
    for source in (raw, MegatronSource([tmp_path / f"{number}.bin" for number in range(2)])):
        assert len(source.groups) == 6
        numbers = [batch.document_ids[:, 0] for batch in loader(source, layout="pad")]
        assert np.concatenate(numbers).tolist() == list(range(20))
