"""Rows of tokens of which some can not be read: all others come once, in their places, in any world and after any resume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from loader_cases import FIRST, MemorySource, rows_of, write_parquet
from torch.utils.data import DataLoader

from stoker import BadSamples
from stoker.errors import ConfigError, CorruptDataError, DecodeError, FormatError, TooManyBadSamplesError
from stoker.formats.parquet.pages import page_heads
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader
from stoker.tokens.sources.megatron import MegatronWriter
from stoker.tokens.sources.ragged import Ragged

pytestmark = pytest.mark.usefixtures("own_cache")

LAYOUTS = ["concat", "pack", "pad", "truncate"]


class DamagedSource(MemorySource):
    """Files of which some documents can not be read.

    Args:
        files: see :class:`MemorySource`.
        damage: group to its first damaged document, and to one past its last, among all of the group.
        wrong: tokens that are no ids.
        salvages: whether documents behind damage can be read.
    """

    def __init__(
        self,
        files: Sequence[Sequence[Sequence[int]]],
        damage: Mapping[int, tuple[int, int]],
        wrong: Sequence[int] = (),
        *,
        salvages: bool = True,
    ) -> None:
        super().__init__(files)
        self.damage = damage
        self.salvages = salvages
        self.lost = set(wrong)
        for group, (first, stop) in damage.items():
            whole = self._groups[group]
            end = stop if salvages else len(whole)
            self.lost.update(whole.values[whole.offsets[first] : whole.offsets[end]].tolist())
        for number, documents in enumerate(self._groups):
            values = np.where(np.isin(documents.values, list(wrong)), -5, documents.values)
            self._groups[number] = Ragged(values, documents.offsets, where=f"group {number}")

    def chunks(self, group: int) -> Iterator[Ragged]:
        if group not in self.damage:
            yield from super().chunks(group)
            return
        first = self.damage[group][0]
        yield self._groups[group][: first // 2]
        yield self._groups[group][first // 2 : first]
        raise CorruptDataError(f"group {group} is damaged from row {first} on")

    def last_documents(self, group: int) -> Ragged | None:
        if not self.salvages:
            return None
        stop = self.damage[group][1]
        rest = self._groups[group][stop:]
        return Ragged(rest.values, rest.offsets, rows=stop)

    def lengths(self, group: int) -> Any:
        if group in self.damage:
            raise CorruptDataError(f"group {group} is damaged")
        return super().lengths(group)


def loader(source: Any, layout: str = "concat", on_bad_sample: Any = "skip", **options: Any) -> StreamingParquetLoader:
    chosen: dict[str, Any] = {"batch_size": 3, "seq_len": 16, "pad_id": 0, "shuffle_tokens": 300, **options}
    shard = ShardConfig(chosen.pop("rank", 0), chosen.pop("world", 1), chosen.pop("seed", 1))
    if layout in ("pad", "pack"):
        chosen.setdefault("too_long", "split")
    return StreamingParquetLoader(source, shard, layout=layout, on_bad_sample=on_bad_sample, **chosen)  # type: ignore[arg-type]


def equal_files(documents: int = 12, length: int = 8) -> list[list[list[int]]]:
    return [[[length] * documents] * 4 for _ in range(3)]


def some_files(seed: int, longest: int = 16) -> list[list[list[int]]]:
    rng = np.random.default_rng(seed)
    return [[rng.integers(0, longest + 1, 14).tolist() for _ in range(4)] for _ in range(3)]


DAMAGE = {1: (3, 5), 6: (0, 12), 9: (11, 12)}
WRONG = (FIRST + 3 * 96 + 7, FIRST + 10 * 96 + 40)


@pytest.mark.parametrize("labels", ["shifted", "unshifted", "none"])
@pytest.mark.parametrize("options", [{}, {"eos_id": 1}, {"cross_document_labels": True}], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_where_lengths_are_known_good_rows_are_those_of_whole_files(
    layout: str, shuffle: bool, options: dict[str, Any], labels: Any
) -> None:
    settings = {"shuffle": shuffle, "labels": labels, **options}
    damaged = DamagedSource(equal_files(), DAMAGE, WRONG)
    whole = loader(MemorySource(equal_files()), layout, "raise", **settings)
    found = list(loader(damaged, layout, **settings))
    expected = list(whole)
    assert len(found) == len(expected)
    bad = 0
    for one, other in zip(found, expected, strict=True):
        good = ~np.isin(other.input_ids, list(damaged.lost)).any(axis=1)
        if labels != "none":
            good &= ~np.isin(other.labels, list(damaged.lost)).any(axis=1)
            assert one.labels.tolist() == other.labels[good].tolist()
        assert one.input_ids.tolist() == other.input_ids[good].tolist()
        assert one.document_ids.tolist() == other.document_ids[good].tolist()
        assert one.position_ids.tolist() == other.position_ids[good].tolist()
        bad += int((~good).sum())
    assert bad > 5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("salvages", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_good_tokens_come_once_whatever_the_lengths(layout: str, salvages: bool, seed: int) -> None:
    files = some_files(seed)
    damage = {1: (3, 6), 6: (0, 14), 9: (13, 14)}
    source = DamagedSource(files, damage, (FIRST + 20, FIRST + 300), salvages=salvages)
    stream = loader(source, layout, granularity="row_group" if seed % 2 else "row", seed=seed)
    batches = list(stream)
    assert len(batches) == len(stream)
    if layout != "pack":  # which the lengths of lost documents concern
        assert len(stream) == len(loader(MemorySource(files), layout, "raise", seed=seed))
    tokens = [token for batch in batches for token in batch.input_ids.ravel().tolist() if token]
    assert len(tokens) == len(set(tokens))
    assert not set(tokens) & source.lost
    rows = stream.stats().bad_samples
    missing = set(range(FIRST, FIRST + source.total)) - source.lost - set(tokens)
    assert rows > 0
    assert len(missing) <= rows * 16  # the others of bad rows
    known = {token: number for number, document in enumerate(source.documents) for token in document}
    for batch in batches:
        for ids, documents in zip(batch.input_ids.tolist(), batch.document_ids.tolist(), strict=True):
            numbers = [number for number in documents if number >= 0]
            assert [source.groups.find(number)[0] for number in numbers] == [
                source.groups.find(_row_of(source, known[token]))[0] for token in ids if token
            ]


def _row_of(source: MemorySource, document: int) -> int:
    """The number of a document that is not empty, among all rows."""
    full = [
        int(source.groups.first_rows[group]) + row
        for group, documents in enumerate(source._groups)
        for row in np.flatnonzero(documents.lengths).tolist()
    ]
    return full[document]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replaced_rows_are_good_and_the_same_in_any_world(layout: str) -> None:
    damaged = DamagedSource(equal_files(), DAMAGE, WRONG)
    settings = {"granularity": "row", "remainder": "uneven", "batch_size": 1}
    skipped = rows_of(loader(damaged, layout, **settings))
    orders = []
    for world in (1, 2, 3):
        ranks = [rows_of(loader(damaged, layout, "replace", rank=r, world=world, **settings)) for r in range(world)]
        orders.append([row for rank in ranks for row in rank])  # each rank has a run of the rows
    assert orders[0] == orders[1] == orders[2]
    assert set(orders[0]) == set(skipped)
    assert len(orders[0]) == loader(damaged, layout, **settings).steps
    rest = iter(orders[0])
    assert all(row in rest for row in skipped)


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_take_equally_many_steps_and_any_state_resumes(layout: str, on_bad_sample: str) -> None:
    files = some_files(7)
    damage = {1: (3, 6), 6: (0, 14), 9: (13, 14)}
    settings = {"world": 2, "granularity": "row"}
    wholes = []
    for rank in range(2):
        whole = [
            rows_of([b]) for b in loader(DamagedSource(files, damage), layout, on_bad_sample, rank=rank, **settings)
        ]
        wholes.append(whole)
        for taken in (1, len(whole) // 2, len(whole) - 1):
            first = loader(DamagedSource(files, damage), layout, on_bad_sample, rank=rank, **settings)
            before = [rows_of([batch]) for batch in islice(first, taken)]
            second = loader(DamagedSource(files, damage), layout, on_bad_sample, rank=rank, **settings)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert before + [rows_of([batch]) for batch in second] == whole
    assert len(wholes[0]) == len(wholes[1])


@pytest.mark.processes
def test_workers_of_a_data_loader_and_threads_make_the_same(tmp_path: Path) -> None:
    source = DamagedSource(equal_files(), DAMAGE, WRONG)
    listed = BadSamples(file=tmp_path / "bad.jsonl")
    expected = [rows_of([batch]) for batch in loader(source)]
    stream = loader(source, on_bad_sample=listed)
    assert [rows_of([batch]) for batch in DataLoader(stream, batch_size=None, num_workers=2)] == expected
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert len(lines) == stream.stats().bad_samples


def test_an_empty_batch_keeps_width_and_dtypes() -> None:
    source = DamagedSource([[[8] * 8, [8] * 8]], {0: (0, 8)})
    batches = list(loader(source, batch_size=2, shuffle=False, dtype="int32"))
    assert [batch.shape for batch in batches] == [(0, 16), (0, 16), (2, 16), (2, 16)]
    empty = batches[0]
    assert empty.input_ids.dtype == empty.labels.dtype == np.int32
    assert (empty.num_tokens, empty.document_ids.shape, empty.loss_mask.shape) == (0, (0, 16), (0, 16))
    assert empty.torch("input_ids", "position_ids")["position_ids"].shape == (0, 16)


def test_errors_limits_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DamagedSource(equal_files(), {1: (3, 5)}, WRONG[:1])
    file = tmp_path / "bad.jsonl"
    stream = loader(source, on_bad_sample=BadSamples(max_bad=4, file=file), shuffle=False)
    list(stream)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["shard"], line["row"], line["sample"]) for line in lines] == [(1, 3, 15), (1, 4, 16), (3, 0, 36)]
    assert [line["url"] for line in lines] == ["f000"] * 3
    assert "is damaged from row 3" in lines[0]["reason"]
    assert "-5 at token 7 is not an id" in lines[2]["reason"]
    with pytest.raises(TooManyBadSamplesError, match="3 bad samples, and max_bad=2") as caught:
        list(loader(source, on_bad_sample=BadSamples(max_bad=2)))
    assert isinstance(caught.value.__cause__, DecodeError)
    assert isinstance(caught.value.__cause__.__cause__, FormatError)
    with pytest.raises((CorruptDataError, FormatError)):
        list(loader(source, on_bad_sample="raise"))
    monkeypatch.setenv("STOKER_ON_BAD_SAMPLE", "raise")
    with pytest.raises((CorruptDataError, FormatError)):
        list(loader(source))
    monkeypatch.delenv("STOKER_ON_BAD_SAMPLE")
    everything = DamagedSource([[[8] * 12]], {0: (0, 12)})
    assert sum(map(len, loader(everything))) == 0
    with pytest.raises(DecodeError, match="is damaged from row 0 on") as none_good:
        list(loader(everything, on_bad_sample="replace"))
    assert "no sample that was tried in its place is good" in none_good.value.__notes__
    with pytest.raises(ConfigError, match="vocab_size=1"):
        list(loader(MemorySource([[[4]]]), vocab_size=1))


def test_what_is_not_the_tokens_fault_is_an_error() -> None:
    class Failing(MemorySource):
        def chunks(self, group: int) -> Iterator[Ragged]:
            yield self._groups[group][:1]
            raise MemoryError

    with pytest.raises(MemoryError):
        list(loader(Failing(equal_files())))


# -- real files ----------------------------------------------------------------------------------------------------------


def pages_of(path: Path, group: int) -> tuple[int, int]:
    """Where the column chunk of a row group lies in a file."""
    column = pq.ParquetFile(path).metadata.row_group(group).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    return start, start + column.total_compressed_size


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_damaged_pages_lose_their_rows_alone(tmp_path: Path, layout: str, version: str, equal: bool) -> None:
    rng = np.random.default_rng(4)
    lengths = [8] * 400 if equal else rng.integers(0, 17, 400).tolist()
    values = iter(range(FIRST, FIRST + sum(lengths)))
    documents = [list(islice(values, length)) for length in lengths]
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a.parquet"
    options: dict[str, Any] = {"compression": "zstd", "data_page_size": 600, "use_dictionary": False}
    groups = [documents[:200], documents[200:]]
    write_parquet(path, groups, data_page_version=version, write_batch_size=16, write_page_checksum=True, **options)
    whole = rows_of(loader(path, layout, "raise", shuffle=False))
    content = bytearray(path.read_bytes())
    start, end = pages_of(path, 1)
    heads = list(page_heads(memoryview(content), start, end - start))
    middle = heads[len(heads) // 2].start + heads[len(heads) // 2].size // 2
    content[middle : middle + 8] = bytes(8)
    path.write_bytes(content)
    with pytest.raises((CorruptDataError, FormatError)):
        list(loader(path, layout, "raise", shuffle=False, local=tmp_path / "strict"))
    stream = loader(path, layout, shuffle=False)
    found = rows_of(stream)
    tokens = [token for row in found for token in row[:16] if token]
    assert len(tokens) == len(set(tokens))
    lost = set(range(FIRST, FIRST + sum(lengths))) - set(tokens)
    assert 0 < len(lost) < 800  # of some 1,600 in the row group: a page, and what shares rows with it
    assert 0 < stream.stats().bad_samples < 60
    if equal:
        rest = iter(whole)
        assert all(row in rest for row in found)


@pytest.mark.parametrize("salvage", ["header", "nulls", "cut"])
def test_damage_of_other_kinds(tmp_path: Path, salvage: str) -> None:
    documents: list[list[int | None]] = [list(range(FIRST + 8 * n, FIRST + 8 * n + 8)) for n in range(40)]
    path = tmp_path / "a.parquet"
    if salvage == "nulls":
        documents[5][3] = None
    write_parquet(path, [documents[:20], documents[20:]])
    lost = set(range(20)) if salvage == "nulls" else set(range(20, 40))  # footers count null tokens as null documents
    content = bytearray(path.read_bytes())
    start, end = pages_of(path, 1)
    if salvage == "header":
        content[start : start + 6] = b"\xff" * 6
    elif salvage == "cut":
        content[start:end] = bytes(end - start)
    path.write_bytes(content)
    stream = loader(path, "pad", shuffle=False)
    found = [token for row in rows_of(stream) for token in row[:16] if token]
    assert found == [token for number, document in enumerate(documents) if number not in lost for token in document]
    assert stream.stats().bad_samples == len(lost) - (salvage == "nulls")


def test_row_groups_whose_tokens_can_not_be_counted_are_left_out_and_listed(tmp_path: Path) -> None:
    documents = [list(range(FIRST + 8 * n, FIRST + 8 * n + 8)) for n in range(60)]
    path = tmp_path / "a.parquet"
    groups = [documents[:20], documents[20:40], documents[40:]]
    write_parquet(path, groups, write_statistics=False, data_page_version="1.0")
    content = bytearray(path.read_bytes())
    start, end = pages_of(path, 1)
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    with pytest.raises((CorruptDataError, FormatError)):
        loader(path, on_bad_sample="raise", local=tmp_path / "strict")
    for _ in range(2):  # counted, and as it was kept
        stream = loader(path, shuffle=False, local=tmp_path / "cached")
        tokens = [token for row in rows_of(stream) for token in row[:16] if token]
        assert tokens == [token for part in (groups[0], groups[2]) for document in part for token in document]
        assert [one.file for one in stream.skipped_files] == [f"{path}: row group 1"]
        assert stream.stats().bad_samples == 0
    with pytest.raises((CorruptDataError, FormatError)):  # what was kept is no excuse for one that is strict
        loader(path, on_bad_sample="raise", local=tmp_path / "cached")


def test_ids_beyond_the_vocabulary_of_megatron_s_files(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "tokens", "uint16") as out:
        out.write(Ragged.of([np.arange(8) + (900 if number == 7 else 10) for number in range(40)]))
    stream = loader(tmp_path / "tokens.bin", "pad", vocab_size=100, shuffle=False)
    assert len(rows_of(stream)) == 39
    assert stream.stats().bad_samples == 1
