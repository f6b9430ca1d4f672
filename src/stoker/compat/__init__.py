"""Names of mosaicml-streaming that programs import, beside those that stoker has; see docs/from/mosaicml.md.

from stoker.compat import _encodings, download_file, get_rank, reader_from_json, streams_registry

All names of ``stoker`` are here, too. Needs torch, as mosaicml-streaming does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import stoker
from stoker.cluster import World as _OwnWorld
from stoker.errors import ConfigError
from stoker.formats.mds.encodings import Encoding as _OwnEncoding
from stoker.formats.mds.encodings import encoding_names, get_encoding, register_encoding
from stoker.formats.registry import get_format
from stoker.index.index import INDEX_NAME, Index
from stoker.loaders.dataloader import StreamingDataLoader as _OwnDataLoader
from stoker.storage import open_store
from stoker.storage.files.file_errors import file_errors
from stoker.streams.registry import streams_registry

__all__ = [
    "Encoding",
    "StreamingDataLoader",
    "World",
    "barrier",
    "dataframe_to_mds",
    "download_file",
    "get_local_rank",
    "get_local_world_size",
    "get_rank",
    "get_world_size",
    "reader_from_json",
    "streams_registry",
]


def __getattr__(name: str) -> Any:
    return getattr(stoker, name)


distributed = storage = sys.modules[__name__]  # from streaming.base import distributed


# -- encodings -------------------------------------------------------------------------------------------------------------


class _Encoding(_OwnEncoding):
    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise TypeError(f"expected {expected_type}, got {type(data)}")


class _Encodings(MutableMapping[str, Any]):
    """Encodings by name; one that is set under a name is registered, also in the place of a built-in one."""

    def __getitem__(self, name: str) -> Any:
        if name not in encoding_names():
            raise KeyError(name)
        return partial(get_encoding, name)

    def __setitem__(self, name: str, encoding: Any) -> None:
        register_encoding(name, encoding, replace=True)

    def __delitem__(self, name: str) -> None:
        raise ConfigError(f"_encodings: {name!r} can not be taken away; set another in its place")

    def __iter__(self) -> Iterator[str]:
        return iter(encoding_names())

    def __len__(self) -> int:
        return len(encoding_names())


Encoding = _Encoding
_encodings: Final = _Encodings()


# -- ranks ---------------------------------------------------------------------------------------------------------------


class _World(_OwnWorld):
    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> _World:
        found = _OwnWorld.detect(environ)
        return cls(found.rank, found.world_size, found.local_world_size, found.source)

    @property
    def num_ranks(self) -> int:
        return self.world_size

    @property
    def ranks_per_node(self) -> int:
        return self.local_world_size

    @property
    def rank_of_node(self) -> int:
        return self.rank % self.local_world_size

    @property
    def node(self) -> int:
        return self.rank // self.local_world_size

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.local_world_size


World: Final = _World


def get_rank() -> int:
    """Rank of this process."""
    return World.detect().rank


def get_world_size() -> int:
    """Number of ranks."""
    return World.detect().world_size


def get_local_rank() -> int:
    """Rank of this process on its node."""
    return World.detect().rank_of_node


def get_local_world_size() -> int:
    """Number of ranks on this node."""
    return World.detect().local_world_size


def barrier() -> None:
    """Wait for all ranks, where there is a process group."""
    from torch import distributed as group

    if group.is_available() and group.is_initialized():
        group.barrier()


# -- loading and files -----------------------------------------------------------------------------------------------------


class _StreamingDataLoader(_OwnDataLoader):
    num_samples_yielded = 0
    """Samples that this rank has got since iteration began, as the lengths of batches tell them."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.num_samples_yielded = 0
        for batch in super().__iter__():
            first: Any = batch
            if isinstance(batch, Mapping):
                first = next(iter(batch.values()), ())
            elif isinstance(batch, list | tuple):
                first = batch[0] if len(batch) else ()
            self.num_samples_yielded += len(first)
            yield batch


StreamingDataLoader: Final = _StreamingDataLoader


def download_file(remote: str | None, local: str, timeout: float = 60.0) -> None:
    """Copy a file of a store to a path, whole or not at all.

    Raises:
        ConfigError: there is no remote.
        ObjectNotFoundError, StorageError: it is not there, or can not be read.
    """
    if not remote:
        raise ConfigError("download_file needs the URL or the path of the file: remote is empty")
    folder, _, name = remote.rpartition("/")
    path = Path(local)
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    store = open_store(folder or ("/" if remote.startswith("/") else "."), stall_timeout=timeout)
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            store.download(name, part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


class _Shard:
    """An open shard of a directory, as an entry of its index tells it: ``len``, samples by number, iteration."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        index = Index.from_json(json.dumps({"version": 2, "shards": [entry]}).encode(), str(folder / INDEX_NAME))
        (self._info,) = index.shards
        self._folder = folder
        self._reader: Any = None
        self.samples = self.size = self._info.samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> Any:
        if not -self.samples <= number < self.samples:
            raise IndexError(f"sample {number} is not in a shard of {self.samples}")
        reading = get_format(self._info.format)
        if self._reader is None:
            files = [(self._folder / file.basename).read_bytes() for file in self._info.raw]
            self._reader = reading.open(self._info, files, where=str(self._folder / self._info.raw[0].basename))
        return reading.read_one(self._reader, number % self.samples, None)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self.samples))


def reader_from_json(dirname: str, split: str | None, obj: Mapping[str, Any]) -> _Shard:
    """A shard whose raw files lie in a directory, by its entry in ``index.json``.

    Raises:
        IndexFileError, FormatError: the entry is not valid.
    """
    return _Shard(Path(dirname, split or ""), obj)


def dataframe_to_mds(*_: Any, **__: Any) -> NoReturn:
    """Spark's tables are read where they lie.

    Raises:
        ConfigError: always; names the way.
    """
    raise ConfigError(
        "dataframe_to_mds: write the DataFrame as Parquet, dataframe.write.parquet(path), and read that as it is, "
        "StreamingDataset(path), or convert it, stoker.convert(path, out)"
    )
