"""Tests of a shard format: all ways of reading agree, and damaged files give errors; and of its writer, its entries of the
index, and what becomes of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from stoker.digests import hash_hex
from stoker.errors import ConfigError, CorruptDataError, EncodingError, FormatError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.common.entries import column_kinds, entry_of
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.format import Format
from stoker.formats.registry import get_format
from stoker.formats.unstacked import as_batch
from stoker.index.index import load_index
from stoker.index.merge import merge_index
from stoker.index.shard_files import rebuild_index
from stoker.loaders.dataset import StreamingDataset
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.columns import cut_columns
from stoker.storage import open_store
from stoker.testing.values import check_kind, described, equal, raised, row_of, undefined
from stoker.types import Ids
from stoker.writing.shard_formats import writer_of

_FLIPS: Final = 60
_WHERE: Final = "the shard"


@dataclass(frozen=True, slots=True)
class ShardOnDisk:
    """A shard and its bytes.

    Attributes:
        info: as the index or the file's header describes it.
        files: what is opened, parallel to ``info.raw``.
        header: all of the first file.
    """

    info: ShardInfo
    files: list[bytes]
    header: bytes


class FormatTests:
    """Tests of how a format's files are read. A subclass says how to make them, in :meth:`write` and :meth:`sample`.

    Attributes:
        format: its name.
        settings: ``format_options`` with which its files are opened.
        indexed: whether :meth:`write` leaves an ``index.json``.
        numbers: numbers of the samples of a dataset, of which :meth:`write` should make several shards.
        empty: whether :meth:`write` can make a dataset without samples.
        checksums: whether the format's own checksums tell of a wrong byte anywhere in a value.

    >>> import numpy as np
    >>> class TestNPY(FormatTests):
    ...     format = "npy"
    ...     def write(self, folder, numbers):
    ...         for first in range(numbers.start, numbers.stop, 10):
    ...             np.save(folder / f"{first:03}.npy", np.arange(first, min(first + 10, numbers.stop)))
    ...     def sample(self, number):
    ...         return {"data": number}
    ...     def number(self, sample):
    ...         return int(sample["data"])
    >>> TestNPY().test_random_access_gives_what_sequential_access_gives()
    """

    format: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {}
    indexed: ClassVar[bool] = False
    numbers: ClassVar[range] = range(47)
    empty: ClassVar[bool] = True
    checksums: ClassVar[bool] = False

    # -- what a subclass says --------------------------------------------------------------------------------------

    def write(self, folder: Path, numbers: range) -> None:  # noqa: ARG002 - a subclass's
        """Write files with the samples of these numbers into an empty folder."""
        raise undefined(self, "write(folder, numbers), which writes files with these samples")

    def sample(self, number: int) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass's
        """The values that are read of the sample with this number; columns may be left out."""
        raise undefined(self, "sample(number), which gives the values of a sample")

    def number(self, sample: Mapping[str, Any]) -> int:
        """The number of a sample that was read. Default: its column ``id``."""
        return int(sample["id"])

    def same(self, one: Any, two: Any) -> bool:
        """Whether two values are the same; see :func:`stoker.testing.values.equal`."""
        return equal(one, two)

    # -- what tests use --------------------------------------------------------------------------------------------

    @property
    def descriptor(self) -> Format:
        """The format.

        Raises:
            ConfigError: the class does not say which.
        """
        return get_format(self._name)

    def dataset(self, folder: Path, **options: Any) -> StreamingDataset:
        """The dataset in a folder."""
        if not self.indexed:
            options = {"format": self._name, "format_options": dict(self.settings) or None, **options}
        return StreamingDataset(local=folder, **options)

    @contextmanager
    def written(self, numbers: range | None = None) -> Iterator[Path]:
        """A folder with a dataset, while the context lasts."""
        with tempfile.TemporaryDirectory(prefix="stoker-testing-") as folder:
            self.write(Path(folder), self.numbers if numbers is None else numbers)
            yield Path(folder)

    def shards(self, numbers: range | None = None) -> list[ShardOnDisk]:
        """The shards of a dataset."""
        with self.written(numbers) as folder:
            return [_read_shard(folder, info) for info in self.dataset(folder).index.shards]

    def open(self, shard: ShardOnDisk, **options: Any) -> ShardReader:
        """An open shard; ``options`` are those of :class:`~stoker.formats.base.ReadOptions`."""
        return self.descriptor.open(shard.info, shard.files, where=_WHERE, options=ReadOptions(**options))

    def check(self, found: Mapping[str, Any], number: int) -> None:
        """Check that a sample is the one with a number."""
        for name, value in self.sample(number).items():
            assert self.same(found[name], value), (
                f"sample {number}, column {name!r}: {found[name]!r} instead of {value!r}"
            )

    # -- tests -----------------------------------------------------------------------------------------------------

    def test_the_descriptor_leads_to_what_it_names(self) -> None:
        form = self.descriptor
        assert self.format in (form.name, *form.aliases)
        assert form.name not in form.aliases
        assert all(one == one.lower() and one.startswith(".") for one in (*form.suffixes, *form.beside))
        if form.magic:
            assert all(shard.header.startswith(form.magic) for shard in self.shards())
        assert set(form.describing) <= set(form.suffixes)

    def test_every_sample_comes_back(self) -> None:
        found: list[int] = []
        for shard in self.shards():
            reader = self.open(shard)
            assert reader.samples == shard.info.samples
            assert reader.format == shard.info.format == self.descriptor.name
            batch = reader.read(np.arange(reader.samples))
            assert tuple(batch) == reader.columns
            for row in range(reader.samples):
                sample = row_of(batch, row)
                found.append(self.number(sample))
                self.check(sample, found[-1])
        assert sorted(found) == list(self.numbers)

    def test_random_access_gives_what_sequential_access_gives(self) -> None:
        for shard in self.shards():
            reader = self.open(shard)
            whole = reader.read(np.arange(reader.samples))
            rows = np.random.default_rng(1).integers(0, max(1, reader.samples), 3 * reader.samples)
            batch = self.open(shard).read(rows)
            for index, row in enumerate(rows.tolist()):
                for name in reader.columns:
                    assert self.same(batch[name][index], whole[name][row]), f"row {row}, column {name!r}"

    def test_columns_alone_are_the_same(self) -> None:
        shard = self.shards()[0]
        reader = self.open(shard)
        rows = np.arange(reader.samples)[::-1].copy()
        whole = reader.read(rows)
        for name in reader.columns:
            batch = self.open(shard).read(rows, [name])
            assert list(batch) == [name]
            assert all(self.same(a, b) for a, b in zip(batch[name], whole[name], strict=True)), name
        backwards = reader.read(rows, reader.columns[::-1])
        assert tuple(backwards) == reader.columns, "columns come in the shard's order, whatever is asked for"
        raised(FormatError, reader.read, rows, ["no such column"], what="a column that is not there")

    def test_rows_outside_the_shard_are_refused(self) -> None:
        for shard in self.shards():
            reader = self.open(shard)
            for row in (reader.samples, -1):
                raised(IndexError, reader.read, np.array([row]), what=f"row {row}")

    def test_several_shards_together_are_read_as_each_alone(self) -> None:
        readers = [self.open(shard) for shard in self.shards()]
        readers = [reader for reader in readers if reader.samples and reader.layout == readers[0].layout]
        rng = np.random.default_rng(2)
        which = rng.integers(0, len(readers), 60)
        rows: Ids = rng.integers(0, np.array([reader.samples for reader in readers])[which])
        alone = [reader.read(np.arange(reader.samples)) for reader in readers]
        batch = self.descriptor.read_many(readers, which, rows)
        singles = {name: list(column) for name, column in self.descriptor.iterate_many(readers, which, rows).items()}
        assert tuple(batch) == tuple(singles) == readers[0].columns
        for index, (shard, row) in enumerate(zip(which.tolist(), rows.tolist(), strict=True)):
            for name in batch:
                expected = alone[shard][name][row]
                assert self.same(batch[name][index], expected), f"shard {shard}, row {row}, column {name!r}"
                assert self.same(singles[name][index], expected), f"shard {shard}, row {row}, column {name!r}"

    def test_a_batch_has_the_columns_of_its_own_rows(self) -> None:
        readers = [self.open(shard) for shard in self.shards()]
        readers = [reader for reader in readers if reader.samples and reader.layout == readers[0].layout]
        rng = np.random.default_rng(3)
        for chosen in (readers[:1], readers):
            which = rng.integers(0, len(chosen), 40)
            rows: Ids = rng.integers(0, np.array([reader.samples for reader in chosen])[which])
            lengths = [3] * 12 + [1] * 4
            columns = cut_columns(self.descriptor.read_many(chosen, which, rows), lengths)
            together = BatchGroup(columns, lengths).batches()
            ends = np.cumsum(lengths).tolist()
            for batch, end in zip(together, ends, strict=True):
                here = slice(end - len(batch[chosen[0].columns[0]]), end)
                alone = as_batch(self.descriptor.read_many(chosen, which[here], rows[here]))
                for name, column in alone.items():
                    assert described(batch[name]) == described(column), (
                        f"column {name!r} of rows {rows[here]} depends on what is read with them: return an "
                        "stoker.formats.unstacked.Unstacked"
                    )

    def test_no_rows_are_read_as_empty_columns(self) -> None:
        nothing: Ids = np.zeros(0, np.int64)
        for shard in self.shards(range(0)) if self.empty else self.shards():
            batch = self.open(shard).read(nothing)
            assert all(len(column) == 0 for column in batch.values())
        if self.empty:
            with self.written(range(0)) as folder:
                assert self.dataset(folder).size == 0

    def test_views_are_equal_to_copies(self) -> None:
        for shard in self.shards():
            reader, views = self.open(shard), self.open(shard, views=True)
            for rows in (np.arange(reader.samples), np.arange(reader.samples)[::-1].copy()):
                one, two = reader.read(rows), views.read(rows)
                for name in reader.columns:
                    assert all(self.same(a, b) for a, b in zip(one[name], two[name], strict=True)), name

    def test_declared_kinds_are_those_of_the_values(self) -> None:
        for shard in self.shards():
            kinds = column_kinds(shard.info)
            batch = self.open(shard).read(np.arange(shard.info.samples))
            assert tuple(kinds) == tuple(batch)
            for name, column in batch.items():
                check_kind(kinds[name], column, name)

    def test_the_header_says_what_is_read(self) -> None:
        form = self.descriptor
        if self.indexed or not form.unindexed or form.single:
            return
        files: dict[str, list[ShardOnDisk]] = {}
        for shard in self.shards():
            files.setdefault(shard.info.raw[0].basename, []).append(shard)
        for shards in files.values():
            source = MappedSource(shards[0].header, _WHERE)
            facts, again = (form.inspect_header(source, dict(self.settings)) for _ in range(2))
            assert facts.samples == sum(shard.info.samples for shard in shards)
            assert tuple(facts.spec["columns"]) == self.open(shards[0]).columns
            assert json.loads(json.dumps(facts.spec)) == json.loads(json.dumps(again.spec))
            assert form.agree(facts.spec, again.spec) == facts.spec

    def test_cut_files_are_reported(self) -> None:
        for shard in self.shards()[:2]:
            for turn, data in enumerate(shard.files):
                for size in sorted({0, 1, len(data) // 3, len(data) - 1} - {len(data)}):
                    files = [*shard.files[:turn], data[:size], *shard.files[turn + 1 :]]
                    cut = ShardOnDisk(shard.info, files, shard.header)
                    raised(CorruptDataError, self._read, cut, what=f"{size} of {len(data)} bytes")

    def test_damaged_files_give_samples_or_an_error_that_tells(self) -> None:
        for shard in self.shards()[:2]:
            good = self._read(shard)
            for turn, data in enumerate(shard.files):
                offsets: Ids = np.random.default_rng(turn).integers(0, max(1, len(data)), _FLIPS if data else 0)
                for offset in [*range(min(len(data), 16)), *offsets.tolist()]:
                    bad = bytearray(data)
                    bad[offset] ^= 1 << offset % 8
                    files = [*shard.files[:turn], bytes(bad), *shard.files[turn + 1 :]]
                    damaged = ShardOnDisk(shard.info, files, shard.header)
                    try:
                        found = self._read(damaged)
                        told = (
                            list(self.descriptor.bad_checksums(shard.info, files[0], _WHERE)) if self.checksums else []
                        )
                    except StokerError:
                        continue  # any other exception is what this test looks for
                    same = all(self.same(a, b) for name in good for a, b in zip(good[name], found[name], strict=True))
                    assert same or told or not self.checksums, f"byte {offset} of file {turn}: a wrong sample"

    def test_checksums_of_whole_files_hold(self) -> None:
        for shard in self.shards():
            assert not shard.files or not list(self.descriptor.bad_checksums(shard.info, shard.files[0], _WHERE))

    def test_a_dataset_is_streamed_shuffled_and_resumed(self) -> None:
        with self.written() as folder:
            plain = self.dataset(folder)
            assert plain.size == len(self.numbers)
            assert sorted(self.number(sample) for sample in plain) == list(self.numbers)
            order: dict[str, Any] = {"shuffle": True, "shuffle_seed": 5, "batch_size": 8}
            whole = [self.number(sample) for sample in self.dataset(folder, **order)]
            assert sorted(whole) == list(self.numbers)
            stopped = self.dataset(folder, **order)
            iterator = iter(stopped)
            head = [self.number(next(iterator)) for _ in range(min(24, len(whole) // 2))]
            resumed = self.dataset(folder, **order)
            resumed.load_state_dict(stopped.state_dict())
            assert head + [self.number(sample) for sample in resumed] == whole
            batches = self.dataset(folder, **order).batches()
            found = [
                self.number(row_of(batch, row)) for batch in batches for row in range(len(next(iter(batch.values()))))
            ]
            assert found == whole

    def test_threads_read_the_same(self) -> None:
        with self.written() as folder:
            dataset = self.dataset(folder)
            expected = [self.number(dataset[index]) for index in range(dataset.size)]

            def read(seed: int) -> None:
                for _ in range(5):
                    ids = np.random.default_rng(seed).integers(0, dataset.size, 20)
                    found = [self.number(sample) for sample in dataset[ids]]
                    assert found == [expected[index] for index in ids.tolist()]

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(read, range(4)))

    @property
    def _name(self) -> str:
        if not self.format:
            raise undefined(self, 'format = "...", the name of the format')
        return self.format

    def _read(self, shard: ShardOnDisk) -> dict[str, list[Any]]:
        batch = self.open(shard).read(np.arange(shard.info.samples))
        return {name: list(column) for name, column in batch.items()}


def _read_shard(folder: Path, info: ShardInfo) -> ShardOnDisk:
    files = [(folder / (file.part.key if file.part is not None else file.basename)).read_bytes() for file in info.raw]
    header = files[0] if files else b""
    for turn, file in enumerate(info.raw):
        if file.part is not None:
            files[turn] = files[turn][slice(*file.part.window)]
    return ShardOnDisk(info, files, header)


class WrittenFormatTests(FormatTests):
    """Tests of a format that has a writer with an index. A subclass says what is written, in :meth:`value`.

    Attributes:
        columns: column name to encoding.
        options: more for the writer; a ``size_limit`` that makes several shards.
        rebuilt: whether the index can be made anew from the shards.
    """

    indexed = True
    columns: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    rebuilt: ClassVar[bool] = True

    def value(self, number: int) -> Mapping[str, Any]:
        """The sample with this number as it is written. Default: as it is read."""
        return self.sample(number)

    def open_writer(self, out: Path, **options: Any) -> Any:
        """A writer of the format."""
        if not self.columns:
            raise undefined(self, 'columns = {"name": "encoding", ...}, which the writer takes')
        options = {**self.options, "hashes": ["xxh64"], **options}
        return writer_of(self.descriptor.name)(columns=self.columns, out=out, **options)

    def write(self, folder: Path, numbers: range, **options: Any) -> None:
        with self.open_writer(folder, **options) as writer:
            for number in numbers:
                writer.write(self.value(number))

    def test_an_entry_of_the_index_describes_its_shard(self) -> None:
        for shard in self.shards():
            entry = json.loads(json.dumps(entry_of(shard.info)))
            assert self.descriptor.parse_shard(entry, "the index") == shard.info

    def test_hashes_in_the_index_are_those_of_the_files(self) -> None:
        with self.written() as folder:
            for info in self.dataset(folder).index.shards:
                for file in info.raw:
                    assert file.hashes == {"xxh64": hash_hex("xxh64", (folder / file.basename).read_bytes())}

    def test_a_batch_makes_the_same_files_as_its_samples(self) -> None:
        with self.written() as single, tempfile.TemporaryDirectory() as other:
            with self.open_writer(Path(other)) as writer:
                for first in range(0, len(self.numbers), 20):
                    samples = [self.value(number) for number in self.numbers[first : first + 20]]
                    writer.write_batch({name: [sample[name] for sample in samples] for name in self.columns})
            assert _contents(single) == _contents(Path(other))

    def test_a_writer_that_was_stopped_is_continued(self) -> None:
        with self.written() as whole, tempfile.TemporaryDirectory() as other:
            out = Path(other)
            try:
                with self.open_writer(out) as writer:
                    for number in self.numbers[: 2 * len(self.numbers) // 3]:
                        writer.write(self.value(number))
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
            with self.open_writer(out, resume=True) as writer:
                for number in self.numbers[writer.samples_written :]:
                    writer.write(self.value(number))
            assert _contents(out) == _contents(whole)

    def test_samples_are_appended_or_replaced_where_that_is_said(self) -> None:
        half = len(self.numbers) // 2
        with self.written(self.numbers[:half]) as folder:
            raised(ConfigError, self.write, folder, self.numbers, what="a dataset that is replaced unasked")
            self.write(folder, self.numbers[half:], append=True)
            assert sorted(self.number(sample) for sample in self.dataset(folder)) == list(self.numbers)
            self.write(folder, self.numbers[:half], exist_ok=True)
            assert sorted(self.number(sample) for sample in self.dataset(folder)) == list(self.numbers[:half])
            files = {file.basename for info in load_index(open_store(folder)).shards for file in info.raw}
            assert {name for name in _contents(folder) if not name.startswith(".stoker/")} == {*files, "index.json"}

    def test_a_lost_index_is_rebuilt(self) -> None:
        if not self.rebuilt:
            return
        with self.written() as folder:
            index = folder / "index.json"
            before = json.loads(index.read_bytes())
            index.unlink()
            rebuild_index(folder)
            assert json.loads(index.read_bytes()) == before

    def test_datasets_are_merged(self) -> None:
        half = len(self.numbers) // 2
        with tempfile.TemporaryDirectory() as folder:
            for name, numbers in (("a", self.numbers[:half]), ("b", self.numbers[half:])):
                self.write(Path(folder, name), numbers)
            merge_index(folder)
            assert [self.number(sample) for sample in self.dataset(Path(folder))] == list(self.numbers)

    def test_what_does_not_fit_is_refused_and_writing_continues(self) -> None:
        column = next(iter(self.columns))
        with tempfile.TemporaryDirectory() as folder:
            with self.open_writer(Path(folder)) as writer:
                for number in self.numbers:
                    good = dict(self.value(number))
                    missing = {name: value for name, value in good.items() if name != column}
                    for bad in ({**good, column: object()}, missing) if number % 20 == 7 else ():
                        error = raised(EncodingError, writer.write, bad, what=f"{bad}")
                        assert column in str(error), f"{bad}: an error is due that names {column!r}"
                    writer.write(good)
            assert sorted(self.number(sample) for sample in self.dataset(Path(folder))) == list(self.numbers)


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
