"""The base of token sources: facts that a token file gives before it is read, and how its groups are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import xxhash
from numpy.typing import DTypeLike

from stoker.arguments import checked, must_be
from stoker.catalog.location import DatasetLocation
from stoker.catalog.splits import splits_of
from stoker.concurrency.forks import ProcessLocal
from stoker.errors import ConfigError
from stoker.reading.shard_pool import ShardPool
from stoker.storage.versions import describe_version, local_version, version_of_files
from stoker.streams.derived_arrays import ArraySink, derived_array
from stoker.tokens.order.division import Groups, runs_of
from stoker.tokens.sources.megatron import MegatronFile, RawTokens
from stoker.tokens.sources.ragged import Ragged, offsets_of
from stoker.types import Ids

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_GROUP_TOKENS = 1 << 20
_MOST_TOKENS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was left out. ``file``: its name. ``problem``: what is wrong with it."""

    file: str
    problem: str


class TokenSource(Protocol):
    """Token files. Reading is thread-safe; objects go to other processes by pickling."""

    @property
    def name(self) -> str:
        """The name in states and messages."""

    @property
    def url(self) -> str:
        """The location of the files, for messages."""

    @property
    def groups(self) -> Groups:
        """Groups, with their exact numbers of documents and tokens."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The identity of the data, for states: a ``fingerprint``, and other facts."""

    @property
    def skipped(self) -> Sequence[SkippedFile]:
        """Files that were left out, by choice."""

    def where(self, group: int) -> str:
        """Names a group in errors."""

    def chunks(self, group: int) -> Iterator[Ragged]:
        """A group's documents, decoded now, some at a time. A chunk may be overwritten when the next is asked for."""

    def fetch(self, groups: Iterable[int]) -> None:
        """Begin to fetch groups that will be read next, in this order."""

    def done(self, group: int) -> None:
        """A group that was read, or was to be fetched, is not needed soon."""

    def rest(self) -> None:
        """No group is needed soon: an iteration begins, or was left."""

    def keep(self, kind: str, recipe: Mapping[str, Any], make: Callable[[], Ids]) -> Ids:
        """The result of ``make``, computed from the data by a recipe; kept for later starts where that is possible."""

    def close(self) -> None:
        """Close all files. Reading opens them again."""


@runtime_checkable
class Salvageable(Protocol):
    """A :class:`TokenSource` that can read on behind damage in a group."""

    def last_documents(self, group: int) -> Ragged | None:
        """The documents of a group behind its last damage, with their row numbers; ``None`` where it can not tell."""


@runtime_checkable
class Shared(Protocol):
    """A :class:`TokenSource` whose files other processes of the node read as well."""

    def share(self, processes: int) -> None:
        """Say how many processes of this node read these files at once, this one included."""


def describe_row(source: TokenSource, row: int) -> str:
    """Names a row by its number among the rows of all groups, in errors."""
    group, here, there = source.groups.find(row)
    return f"{source.where(group)}, row {here} (row {there} of the file)"


class _Ahead(ProcessLocal):
    """Groups that one process reads soon, and their shards. The pool looks at the shards while they change."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: set[int] = set()
        self.shards: set[int] = set()
        self.closed = False


class ShardSource:
    """The base of sources whose groups lie in shards of a dataset, which a pool fetches and opens.

    ``recipe``: what decides what is kept of the column, besides the data.
    """

    def __init__(self, location: DatasetLocation, column: str, pool: ShardPool, recipe: Mapping[str, Any]) -> None:
        self.column, self._location, self._pool = column, location, pool
        self._recipe = {"column": column, **recipe}
        self._ahead = _Ahead()

    def _shard(self, group: int) -> int:
        """The number of a group's shard."""
        return group

    def share(self, processes: int) -> None:
        """Say how many processes of this node read these shards at once, this one included."""
        self._pool.share(processes)

    def fetch(self, groups: Iterable[int]) -> None:
        ahead, coming = self._ahead, list(groups)
        with ahead.lock:
            if ahead.closed:  # a block that was being decoded when it was closed starts no threads again
                return
            ahead.groups.update(coming)
            fresh = [shard for shard in dict.fromkeys(map(self._shard, coming)) if shard not in ahead.shards]
            if fresh:
                ahead.shards.update(fresh)
                self._pool.expect(ahead.shards)
                self._pool.prefetch(fresh)

    def done(self, group: int) -> None:
        ahead, shard = self._ahead, self._shard(group)
        with ahead.lock:
            ahead.groups.discard(group)
            if not any(self._shard(other) == shard for other in ahead.groups):
                ahead.shards.discard(shard)
                self._pool.done_with(shard)

    def rest(self) -> None:
        ahead = self._ahead
        with ahead.lock:
            ahead.groups, ahead.shards, ahead.closed = set(), set(), False
            self._pool.expect(ahead.shards)

    def close(self) -> None:
        ahead = self._ahead
        with ahead.lock:
            ahead.groups, ahead.shards, ahead.closed = set(), set(), True
        self._pool.close()

    def keep(self, kind: str, recipe: Mapping[str, Any], make: Callable[[], Ids]) -> Ids:
        return self._keep(kind, recipe, lambda _: make())

    def _keep(self, kind: str, recipe: Mapping[str, Any], make: Callable[[ArraySink], Ids]) -> Ids:
        """The same of a function that can tell waiting processes of its progress."""

        def write(sink: ArraySink) -> tuple[str, bytes]:
            sink.append(np.ascontiguousarray(make(sink), dtype=np.int64))
            return "int64", b""

        return derived_array(self._location, kind, self.column, {**self._recipe, **recipe}, write).array


class _Mapped:
    """The base of sources of memory-mapped files."""

    name: str
    url: str
    groups: Groups
    skipped: Sequence[SkippedFile] = ()
    about: Mapping[str, Any]

    def _open(self) -> None:
        """Map the files, which are ``_files`` then."""
        raise NotImplementedError

    def chunks(self, group: int) -> Iterator[Ragged]:
        raise NotImplementedError

    def _tell(self, kind: str, paths: Sequence[str], facts: Iterable[bytes]) -> None:
        digest = xxhash.xxh3_128()
        states = [os.stat(path) for path in paths]
        for path, status, fact in zip(paths, states, facts, strict=True):
            digest.update(f"{kind}\0{os.path.basename(path)}\0{status.st_size}\0".encode())
            digest.update(fact)
        real = [os.path.realpath(path) for path in paths]
        files = [(path, status.st_size, local_version(status)) for path, status in zip(real, states, strict=True)]
        self.name, self.url = os.path.basename(paths[0]), os.path.commonpath(real)
        self.about = {
            "fingerprint": digest.hexdigest(),
            "tokens": int(self.groups.tokens.sum()),
            **describe_version("\n".join(real), version_of_files(files)),
        }

    def where(self, group: int) -> str:
        return f"{self.groups.files[self.groups.file[group]]}: group {group}"

    def fetch(self, groups: Iterable[int]) -> None:
        """The kernel reads ahead by itself."""

    def done(self, group: int) -> None:
        """Nothing is held."""

    def rest(self) -> None:
        """Nothing is held."""

    def keep(self, kind: str, recipe: Mapping[str, Any], make: Callable[[], Ids]) -> Ids:  # noqa: ARG002
        """See :class:`TokenSource`; lengths are at hand, so nothing is kept."""
        return make()

    def close(self) -> None:
        """Maps go with the object."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


class MegatronSource(_Mapped):
    """Megatron's ``.bin`` and ``.idx`` files.

    Args:
        paths: of a ``.bin`` or ``.idx`` file, or of both without the ending, or a list of them; or a directory of such.

    Raises:
        ObjectNotFoundError, CorruptDataError: as :class:`~stoker.tokens.sources.megatron.MegatronFile`.
    """

    @checked
    def __init__(self, paths: Paths) -> None:
        self._paths = _bin_files(paths)
        self._open()
        files, firsts, stops, rows, tokens = [], [], [], [], []
        for number, file in enumerate(self._files):
            lengths: Ids = np.diff(offsets_of(file.lengths)[file.borders])
            borders = runs_of(lengths, _GROUP_TOKENS)
            files.append(np.full(borders.size - 1, number, dtype=np.int64))
            firsts.append(borders[:-1])
            stops.append(borders[1:])
            if borders.size > 1:
                rows.append(np.add.reduceat((lengths > 0).astype(np.int64), borders[:-1]))
                tokens.append(np.add.reduceat(lengths, borders[:-1]))
        self._firsts, self._stops = _joined(firsts), _joined(stops)
        sizes = self._stops - self._firsts
        self.groups = Groups(
            tuple(self._paths), _joined(files), _joined(rows), _joined(tokens), np.cumsum(sizes) - sizes
        )
        self._tell("megatron", self._paths, (file.lengths.tobytes() for file in self._files))

    def _open(self) -> None:
        self._files = [MegatronFile(path) for path in self._paths]

    def chunks(self, group: int) -> Iterator[Ragged]:
        file = self._files[int(self.groups.file[group])]
        yield file.documents(int(self._firsts[group]), int(self._stops[group]))


class RawSource(_Mapped):
    """Files that are one array of tokens each, as nanoGPT's ``prepare.py`` writes them.

    Args:
        paths: of the files, or a directory of ``.bin`` files.
        dtype: of the tokens; the files do not say.
        row_tokens: the files are cut into rows of so many tokens, as they have no documents that could be seen without
            reading them; best ``seq_len``.
        header_bytes: bytes before the first token.

    Raises:
        ObjectNotFoundError, CorruptDataError, ConfigError: as :class:`~stoker.tokens.sources.megatron.RawTokens`.
    """

    @checked
    def __init__(self, paths: Paths, dtype: DTypeLike, *, row_tokens: int, header_bytes: int = 0) -> None:
        must_be(f"from 1 to {_MOST_TOKENS}", 1 <= row_tokens <= _MOST_TOKENS, row_tokens=row_tokens)
        self._paths = _bin_files(paths)
        dtype = np.dtype(dtype).name
        self._dtype, self._header, self._row = dtype, header_bytes, row_tokens
        self._open()
        each = -(-_GROUP_TOKENS // row_tokens) * row_tokens
        counts = [len(file) for file in self._files]
        files = [np.full(-(-count // each), number, dtype=np.int64) for number, count in enumerate(counts)]
        firsts = [np.arange(0, count, each, dtype=np.int64) for count in counts]
        tokens = [np.minimum(first + each, count) - first for first, count in zip(firsts, counts, strict=True)]
        self._firsts, sizes = _joined(firsts), _joined(tokens)
        rows = -(-sizes // row_tokens)
        self.groups = Groups(tuple(self._paths), _joined(files), rows, sizes, np.cumsum(rows) - rows)
        self._tell("raw", self._paths, (f"{dtype}\0{header_bytes}\0{row_tokens}".encode() for _ in self._paths))

    def _open(self) -> None:
        self._files = [RawTokens(path, self._dtype, header_bytes=self._header) for path in self._paths]

    def chunks(self, group: int) -> Iterator[Ragged]:
        first, count = int(self._firsts[group]), int(self.groups.tokens[group])
        file = self._files[int(self.groups.file[group])]
        file.check()
        offsets = np.append(np.arange(0, count, self._row, dtype=np.int64), count)
        yield Ragged(file.tokens[first : first + count], offsets, where=file.path, rows=first // self._row)


def _joined(arrays: Sequence[Ids]) -> Ids:
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])


def _bin_files(paths: Paths) -> list[str]:
    """The ``.bin`` files; those of a directory in the order of their names."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found: list[str] = []
    for path in [os.fspath(one) for one in given]:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if name.endswith(".bin"))
            if len(splits := splits_of(names)) > 1:
                raise ConfigError(
                    f"{path} holds the splits {', '.join(splits)}, which would be read as one: name the files of one "
                    f"split, such as {os.path.join(path, splits.get('train', names)[0])}"
                )
            found += (os.path.join(path, name) for name in names)
        else:
            found.append(path if path.endswith(".bin") else f"{path.removesuffix('.idx')}.bin")
    if not found:
        raise ConfigError(f"there are no .bin files in {', '.join(str(one) for one in given) or 'an empty list'}")
    return found
