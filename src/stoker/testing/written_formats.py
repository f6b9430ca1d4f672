"""Tests of a shard format that stoker writes: its writer, its entries of the index, and what becomes of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from stoker.digests import hash_hex
from stoker.errors import ConfigError, EncodingError
from stoker.formats.common.entries import entry_of
from stoker.index.index import load_index
from stoker.index.merge import merge_index
from stoker.index.shard_files import rebuild_index
from stoker.storage import open_store
from stoker.testing.formats import FormatTests
from stoker.testing.values import raised, undefined
from stoker.writing.registry import writer_of


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
