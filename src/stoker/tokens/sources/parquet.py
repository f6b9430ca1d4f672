"""Token columns of Parquet files as a source: plans from footers, decoding chunk by chunk; and the source a caller gives."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import check_memory
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.files_location import Files, source_of
from stoker.catalog.unindexed.find_files import find_files
from stoker.catalog.unindexed.inspect_headers import BadFile, HeaderReader
from stoker.catalog.unindexed.open_files import OnBadFiles, open_unindexed, unindexed_format
from stoker.concurrency.shared.counters import Counts
from stoker.display import with_article
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.parquet.facts import (
    DOCUMENT_LENGTHS,
    NULLS,
    RowGroup,
    choose_tokens,
    has_packed_rows,
    token_column,
    token_counts,
)
from stoker.formats.parquet.pages import OtherPagesError
from stoker.formats.parquet.reader import ParquetReader
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.shard_pool import ShardPool
from stoker.storage import open_store
from stoker.tokens.order.division import Groups
from stoker.tokens.sources.block_buffer import counts_of, measure
from stoker.tokens.sources.ragged import Ragged, offsets_of
from stoker.tokens.sources.source import MegatronSource, ShardSource, SkippedFile, TokenSource
from stoker.types import Ids, StorageOptions

logger = logging.getLogger(__name__)

# What is decoded at a time stays in the processor's cache until it has been copied.
_CHUNK_TOKENS: Final = 1 << 18


class ParquetSource(ShardSource):
    """A token column of Parquet files; groups are row groups.

    Without ``column``, it is the one called ``input_ids``, ``token_ids`` or ``tokens``. Where the location has the lengths
    of documents in packed rows, too, documents are these, and are counted as rows. Where ``salvage``, null tokens are
    given as -1, which is no id, and row groups whose tokens can not be counted are left out, and listed in ``skipped``;
    otherwise both are errors.
    """

    def __init__(
        self,
        location: DatasetLocation,
        column: str | None = None,
        counts: Counts | None = None,
        fetch_threads: int | None = None,
        *,
        salvage: bool = False,
    ) -> None:
        pool = ShardPool(location.index, location.cache, threads=fetch_threads, most_open=1, counts=counts)
        super().__init__(location, token_column(location.index, column), pool, {})
        self._salvage = salvage
        self._packed = len(location.index) > 0 and has_packed_rows(location.index.shards[0].spec["columns"])
        self.skipped: list[SkippedFile] = [
            SkippedFile(self._name(one["key"]), one["problem"]) for one in location.index.extra.get("skipped_files", ())
        ]
        self.groups = self._groups()
        self.name = os.path.basename(os.path.dirname(self.groups.files[0])) or "tokens"
        self.url = location.url
        self.about: Mapping[str, Any] = {
            **location.about,
            "column": self.column,
            "tokens": int(self.groups.tokens.sum()),
        }

    def where(self, group: int) -> str:
        detail = self._location.index.shards[group].detail
        assert isinstance(detail, RowGroup)  # the location is one of Parquet files
        return (
            f"{self._name(detail.file.key)}: row group {detail.number}{' of packed documents' if self._packed else ''}"
        )

    def chunks(self, group: int) -> Iterator[Ragged]:
        reader: Any = self._pool.get(group)
        try:
            chunks = decode_chunks(reader, self.column, self.where(group), -1 if self._salvage else None)
            for chunk in unpacked(reader, chunks) if self._packed else chunks:
                yield chunk
                self._pool.check(group)
        finally:
            del reader
            self.done(group)

    def last_documents(self, group: int) -> Ragged | None:
        """See :class:`~stoker.tokens.sources.source.Salvageable`."""
        if self._packed:
            return None
        reader: Any = self._pool.get(group)
        try:
            found = reader.last_lists(self.column)
            self._pool.check(group)
        finally:
            del reader
            self.done(group)
        if found is None:
            return None
        values, offsets = found
        first = int(self._location.index.sizes[group]) - offsets.size + 1
        return Ragged(values, offsets, column=self.column, where=self.where(group), rows=first)

    def _name(self, key: str) -> str:
        store = self._location.cache.store
        return os.path.join(self._location.cache.root, key) if store is None else store.url_of(key)

    def _groups(self) -> Groups:
        index = self._location.index
        names: list[str] = []
        file = np.empty(len(index), dtype=np.int64)
        # Values of the column that are null stand for rows without tokens; a null token is an error when it is read.
        nulls = np.empty(len(index), dtype=np.int64)
        last: object = None
        for number, shard in enumerate(index.shards):
            group = shard.detail
            assert isinstance(group, RowGroup)  # the location is one of Parquet files
            if group.file is not last:
                last = group.file
                names.append(self._name(group.file.key))
            file[number] = len(names) - 1
            nulls[number] = group.file.chunks[group.index, 0, NULLS]
        tokens = token_counts(index, self.column)
        if self._packed:
            rows = token_counts(index, DOCUMENT_LENGTHS)
            tokens[rows < 0] = -1
        else:
            rows = index.sizes - nulls
            # As many nulls as rows, and tokens none the less: some nulls are tokens. With a document the row group is read.
            rows[(rows == 0) & (tokens > 0)] = 1
        if (unknown := np.flatnonzero(tokens < 0)).size:
            rows[unknown], tokens[unknown] = self._count(unknown)
        if self._salvage and (nulled := np.flatnonzero(rows < 0)).size:
            self._leave_out(nulled, "its footer says that it has more nulls than rows, so tokens are null")
            rows[nulled] = tokens[nulled] = 0
        if not tokens.sum():
            raise ConfigError(f"{self._location.where}: there are no tokens in its {len(names)} files with rows")
        if (rows < 0).any():
            wrong = int(np.argmax(rows < 0))
            raise CorruptDataError(
                f"{names[int(file[wrong])]}: column {self.column!r} has more nulls than rows, so tokens are null: write the "
                "column without nulls"
            )
        sizes = rows if self._packed else index.sizes
        return Groups(tuple(names), file, rows, tokens, np.cumsum(sizes) - sizes)

    def _count(self, unknown: Ids) -> tuple[Ids, Ids]:
        """Documents and tokens of groups of which the footers do not tell, by decoding them."""

        def make() -> Ids:
            logger.warning(
                "footers of %s do not say how many tokens %d of %d row groups hold (written without statistics): they are "
                "decoded once to count them",
                self._location.where,
                unknown.size,
                len(self._location.index),
            )
            return np.concatenate(list(measure(self, unknown.tolist(), self._counts_of)))

        recipe = {"groups": unknown.tolist(), "version": 1, **({"salvage": True} if self._salvage else {})}
        counts = self.keep("token-counts", recipe, make).reshape(-1, 2)
        problem = "its footer does not say how many tokens it has, and it could not be decoded to count them"
        self._leave_out(unknown[counts[:, 1] < 0], problem)
        counts = np.maximum(counts, 0)
        return counts[:, 0], counts[:, 1]

    def _leave_out(self, groups: Ids, problem: str) -> None:
        """List row groups that are left out of the order."""
        for group in groups.tolist():
            self.skipped.append(SkippedFile(self.where(group), problem))
            logger.warning("%s is left out: %s", self.where(group), problem)

    def _counts_of(self, group: int) -> Ids:
        """The documents and tokens of a group; -1 where it can not be decoded, and is to be left out."""
        try:
            return counts_of(self, group)
        except Exception as error:
            if not (self._salvage and is_of_sample(error)):
                raise
            return np.array([-1, -1], dtype=np.int64)


def decode_chunks(reader: ParquetReader, column: str, where: str, null_token: int | None = None) -> Iterator[Ragged]:
    """The documents of a row group, some at a time: faster than all at once. Each holds until the next are asked for.

    ``null_token`` stands for tokens that are null; without it they are an error.
    """
    done = 0
    try:
        for values, offsets in reader.lists(column):
            yield Ragged(values, offsets, column=column, where=where, rows=done)
            done += offsets.size - 1
        return
    except OtherPagesError as reason:
        logger.debug("%s, column %r: decoded by pyarrow from row %d on: %s", where, column, done, reason)
    first = 0
    for array in reader.batches(column, _CHUNK_TOKENS):
        chunk = Ragged.from_arrow(array, column=column, where=where, first_row=first, null_token=null_token)
        first += len(chunk)
        if first > done:
            yield chunk[max(0, done - first + len(chunk)) :]


def unpacked(reader: ParquetReader, rows: Iterator[Ragged]) -> Iterator[Ragged]:
    """The documents of packed rows. CorruptDataError if their lengths are not those of the rows."""
    found = [chunk.take(np.arange(len(chunk))) for chunk in decode_chunks(reader, DOCUMENT_LENGTHS, "")]
    lengths, row, document = Ragged.concat(found), 0, 0
    for chunk in rows:
        here = lengths[row : row + len(chunk)]
        offsets = offsets_of(here.values.astype(np.int64))
        if (here.values < 1).any() or not np.array_equal(offsets[here.offsets], chunk.offsets):
            raise CorruptDataError(
                f"{chunk.where}: the lengths in column {DOCUMENT_LENGTHS!r} do not make up the tokens of each row: with "
                f"column={chunk.column!r} a row is read as one document"
            )
        yield Ragged(chunk.values, offsets, column=chunk.column, where=chunk.where, rows=document)
        row, document = row + len(chunk), document + offsets.size - 1


# Files whose columns are looked at, where the first ones have none.
_MOST_LOOKED_AT: Final = 64


def open_source(
    source: Files | TokenSource,
    column: str | None,
    local: str | os.PathLike[str] | None,
    storage_options: StorageOptions | None,
    on_bad_files: OnBadFiles,
    cache_limit: int | None,
    *,
    in_memory: bool = False,
    fetch_threads: int | None = None,
    counts: Counts | None = None,
    salvage: bool = False,
) -> TokenSource:
    """Parquet files, Megatron's, or a source as it is; arguments as those of the loader."""
    if not isinstance(source, str | os.PathLike | list | tuple):
        if not hasattr(source, "chunks"):
            raise ConfigError(f"source is {with_article(type(source).__name__)}: expected files, or a TokenSource")
        return source  # type: ignore[return-value]
    folder = Path(source) if isinstance(source, str | os.PathLike) and "://" not in os.fspath(source) else None
    if folder is not None and folder.is_dir():
        _refuse_arrays(folder)
    names = [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if names and all(name.endswith((".bin", ".idx")) for name in names):
        for name in names:
            if not os.path.exists(f"{name[:-4]}.idx"):
                raise ConfigError(
                    f"{name} has no {name[:-4]}.idx next to it, so it is not Megatron's. If it is one array of tokens, pass "
                    "RawSource(path, dtype, row_tokens=seq_len)"
                )
        return MegatronSource(names)
    if in_memory:
        check_memory(source, local)
    skip_bad = on_bad_files == "skip"
    columns = (column,) if column is not None else _find_columns(source, storage_options, skip_bad=skip_bad)
    location = open_unindexed(
        source,
        "parquet",
        local,
        options={"hive": False, "on_bad_files": on_bad_files},
        columns=columns,
        settings=CacheSettings(limit=cache_limit, in_memory=in_memory),
        storage_options=storage_options,
    )
    return ParquetSource(location, columns[0], counts, fetch_threads, salvage=salvage)


def _refuse_arrays(folder: Path) -> None:
    """See that a directory is none of token files that are no Parquet."""
    files = sorted(entry.name for entry in os.scandir(folder))
    first = next((name for name in files if name.endswith(".bin")), None)
    if first is None or any(name.endswith((".parquet", ".parq", ".pq")) for name in files):
        return
    if f"{first[:-4]}.idx" in files:
        raise ConfigError(f"{folder} holds Megatron's files: pass MegatronSource({str(folder)!r}), or their paths")
    raise ConfigError(
        f"{folder} holds {first} without an .idx. If such files are one array of tokens each, pass "
        f"RawSource({str(folder / first)!r}, dtype, row_tokens=seq_len)"
    )


def check_options(sources: Iterable[TokenSource], **given: Any) -> None:
    """See that an argument for Parquet files is not given where there are none. ConfigError if it is."""
    option = next((name for name, value in given.items() if value not in (None, False)), None)
    kinds = sorted({type(source).__name__ for source in sources})
    if option is not None and ParquetSource.__name__ not in kinds:
        raise ConfigError(
            f"{option}= is for Parquet files, and has no meaning for {', '.join(kinds)}, read as it is: leave it out"
        )


def _find_columns(given: Files, storage_options: StorageOptions | None, *, skip_bad: bool) -> tuple[str, ...]:
    """Name of the token column, by the schema of the first file that has rows; and of documents' lengths in packed rows."""
    reader = unindexed_format("parquet")
    found = find_files(source_of(given), lambda root: open_store(root, storage_options), reader)
    headers = HeaderReader(reader, found.store, {})
    for file in found.files[:_MOST_LOOKED_AT]:
        one = headers.read(file, skip_bad=skip_bad)
        if isinstance(one, BadFile) or not one.samples:
            continue
        columns: Mapping[str, str] = one.spec["columns"]
        token_ids = choose_tokens(columns, f"{found.store.url_of(file.key)}: ")
        return (token_ids, DOCUMENT_LENGTHS) if has_packed_rows(columns) else (token_ids,)
    raise ConfigError(
        f"{found.source.root}: there are no tokens: none of the first {len(found.files[:_MOST_LOOKED_AT])} files has rows"
    )
