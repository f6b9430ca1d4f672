"""What Parquet files' footers tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from stoker.cache.range_fetch import fetch_part
from stoker.catalog.unindexed.found_files import FilesLocation, find_files
from stoker.catalog.unindexed.parquet_footers import BadFile, FooterReader
from stoker.catalog.unindexed.parquet_shards import describe_row_groups
from stoker.formats.parquet.footer.facts import CODEC, UNCOMPRESSED, FileFacts
from stoker.inspection.facts import ColumnFacts, DatasetFacts, shape_of
from stoker.inspection.previews import LARGEST, preview_files
from stoker.inspection.read_files import FileReader
from stoker.inspection.render import Shown
from stoker.storage import is_local

__all__ = ["inspect_parquet"]

_THREADS: Final = 16
# Numbers of CompressionCodec in parquet.thrift of the Parquet format.
_CODECS: Final = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")


def inspect_parquet(source: FilesLocation, files: FileReader, samples: int) -> DatasetFacts:
    """Look at Parquet files; see :func:`stoker.inspection.inspect`."""
    footers = FooterReader(files.store, None, None, threads=_THREADS)
    _, _, found = find_files(source, lambda _: files.store)
    found = footers.sized(found)
    read = footers.read(found, [{}] * len(found), skip_bad=True)
    facts = [one for one in read if isinstance(one, FileFacts)]
    notes = [f"{files.store.url_of(one.key)}: {one.problem}" for one in read if isinstance(one, BadFile)]
    filled = [one for one in facts if len(one.rows)]
    kinds: dict[str, str] = {}
    for one in filled[:1] or facts[:1]:
        kinds = {column.name: column.type for column in one.schema.columns}
    others = [one for one in filled if {column.name: column.type for column in one.schema.columns} != kinds]
    if others:
        notes.append(f"{files.store.url_of(others[0].key)} has other columns than {files.store.url_of(filled[0].key)}")
    preview, said = _preview(filled, kinds, files, samples)
    codecs = {int(number) for one in filled for number in np.unique(one.chunks[:, :, CODEC])}
    sizes = [file.size for file in found]
    return DatasetFacts(
        url=source.given or files.store.url,
        format="parquet",
        indexed=False,
        files=len(found),
        shards=sum(len(one.rows) for one in facts),
        samples=sum(int(one.rows.sum()) for one in facts),
        columns=tuple(ColumnFacts(name, kind, shape_of(kind)) for name, kind in kinds.items()),
        stored_bytes=sum(sizes),
        raw_bytes=sum(int(one.chunks[:, :, UNCOMPRESSED].sum()) for one in facts),
        compression=tuple(_CODECS[number] for number in sorted(codecs) if 0 < number < len(_CODECS)),
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(*notes, *said),
        preview=tuple(preview),
    )


def _preview(
    filled: Sequence[FileFacts], kinds: Mapping[str, str], files: FileReader, samples: int
) -> tuple[list[Mapping[str, Shown]], list[str]]:
    """Samples of the first row groups."""
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for one in filled:
        for info in describe_row_groups([one], {one.key: ()}, kinds, in_place=False):
            if len(shown) >= samples:
                return shown, notes
            (file,) = info.raw
            part = file.part
            assert part is not None  # as all that describe_row_groups makes
            where = files.store.url_of(one.key)
            if file.bytes > LARGEST and is_local(files.store.url) is None:
                return shown, [f"no samples are shown: the first row group of {where} would have to be fetched"]
            data = files.fetched(lambda path, part=part: fetch_part(files.store, part, path))  # type: ignore[misc]
            more, said = preview_files(info, [data], samples - len(shown), where)
            shown += more
            notes += said
            if not more:
                return shown, notes
    return shown, notes
