"""Row groups of Parquet files as shards: what each is read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.base import NO_HASHES, FileInfo, FilePart, ShardInfo
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import Partition
from stoker.formats.parquet.footer.facts import CODEC, COMPRESSED, MAGIC, START, UNCOMPRESSED, FileFacts, RowGroup
from stoker.formats.parquet.footer.schema import FileSchema
from stoker.storage.versions import stable_version

# Row groups of one file are fetched together until they have so many bytes.
_FETCH_TOGETHER: Final = 16 << 20
# Numbers of CompressionCodec in parquet.thrift of the Parquet format.
_CODECS: Final = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")


def describe_row_groups(
    files: Sequence[UnindexedFile],
    kinds: Mapping[str, str],
    encodings: Mapping[str, str],
    partitions: Mapping[str, Partition],
    *,
    in_place: bool,
    apart: bool = False,
) -> Iterator[ShardInfo]:
    """A description of each row group that may be read.

    Args:
        files: the files.
        kinds: names and types of the columns to read.
        encodings: names and encodings of those whose values are decoded.
        partitions: what the folders of each file tell, by its key.
        in_place: whether the files are mapped where they lie.
        apart: fetch each row group by itself, however small.

    Raises:
        CorruptDataError: chunks of a file overlap.
    """
    spec: dict[str, Any] = {"columns": dict(kinds), "layout": ("parquet", tuple(kinds.items()))}
    if encodings:
        spec |= {"encodings": encodings, "layout": (*spec["layout"], tuple(encodings.items()))}
    schemas: dict[int, FileSchema] = {}
    for file in files:
        schema = schemas.get(id(file.spec))
        if schema is None:
            schema = schemas[id(file.spec)] = FileSchema.from_spec(file.spec)
        one = FileFacts.of(file, schema)
        chosen = tuple((name, value) for name, value in partitions.get(file.key, ()) if name in kinds)
        indices, rows = np.flatnonzero(one.possible).tolist(), one.rows.tolist()
        for part, together in _windows(one, indices) if in_place else _fetched(one, indices, apart):
            for index in together:
                yield ShardInfo("parquet", rows[index], (part,), (), None, spec, RowGroup(one, index, chosen))


def storage_of(files: Sequence[UnindexedFile]) -> tuple[int, tuple[str, ...]]:
    """Bytes of files' columns when they are decompressed, and the names of the codecs that they are compressed with."""
    chunks = [FileFacts.of(one, FileSchema.from_spec(one.spec)).chunks for one in files]
    codecs = {int(number) for one in chunks for number in np.unique(one[:, :, CODEC])}
    names = tuple(_CODECS[number] for number in sorted(codecs) if 0 < number < len(_CODECS))
    return sum(int(one[:, :, UNCOMPRESSED].sum()) for one in chunks), names


def _windows(facts: FileFacts, indices: Sequence[int]) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups one by one, each with the window of the file that holds its chunks."""
    if facts.chunks.shape[1]:
        starts = facts.chunks[:, :, START].min(axis=1).tolist()
        ends = (facts.chunks[:, :, START] + facts.chunks[:, :, COMPRESSED]).max(axis=1).tolist()
    else:  # nothing is read but what the directory's name tells
        starts = ends = [0] * len(facts.rows)
    for index in indices:
        start, end = starts[index], ends[index]
        part = FilePart(facts.key, facts.size, facts.version, (start,), (end,), in_place=True)
        yield FileInfo(facts.key, end - start, NO_HASHES, part), (index,)


def _fetched(facts: FileFacts, indices: Sequence[int], apart: bool) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups that share a file of the cache, with this file."""
    sizes = facts.chunks[:, :, COMPRESSED].sum(axis=1).tolist()
    together: list[int] = []
    total = 0
    for index in indices:
        together.append(index)
        total += sizes[index]
        if apart or total >= _FETCH_TOGETHER:
            yield _file(facts, together), together
            together, total = [], 0
    if together:
        yield _file(facts, together), together


def _file(facts: FileFacts, indices: Sequence[int]) -> FileInfo:
    """A file of the cache that holds the chunks of some row groups."""
    chunks = facts.chunks[indices]
    starts = np.sort(chunks[:, :, START], axis=None)
    order = np.argsort(chunks[:, :, START], axis=None, kind="stable")
    ends = starts + chunks[:, :, COMPRESSED].ravel()[order]
    if (starts[1:] < ends[:-1]).any():
        raise CorruptDataError(f"{facts.key}: column chunks overlap: write the file again")
    # Chunks that touch are one range.
    apart = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate([[0], apart + 1])] if len(starts) else np.zeros(1, dtype=np.int64)
    lasts = ends[np.concatenate([apart, [len(ends) - 1]])] if len(ends) else np.zeros(1, dtype=np.int64)
    part = FilePart(
        facts.key,
        facts.size,
        facts.version,
        tuple(firsts.tolist()),
        tuple(lasts.tolist()),
        in_place=False,
        head=MAGIC,  # to pyarrow a dictionary that begins at the first byte is none, so nothing does
    )
    digest = hashlib.sha256(
        repr((part.size, stable_version(part.version), part.starts, part.ends)).encode()
    ).hexdigest()[:16]
    name = f"{facts.key}/{facts.numbers[indices[0]]}-{facts.numbers[indices[-1]]}-{digest}.chunks"
    return FileInfo(name, len(MAGIC) + int((lasts - firsts).sum()), NO_HASHES, part)
