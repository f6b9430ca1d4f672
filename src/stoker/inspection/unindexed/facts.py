"""Inspects files without an index by their headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.catalog.unindexed.find_files import side_by_side
from stoker.errors import FormatError
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.parquet.footer.facts import storage_of
from stoker.inspection.facts import ColumnFacts, DatasetFacts, shape_of
from stoker.inspection.previews import LARGEST, preview_files
from stoker.inspection.read_files import FileReader
from stoker.inspection.render import Shown
from stoker.inspection.unindexed.files import SeparateFiles, disagreements
from stoker.storage import ObjectInfo


def inspect_unindexed(
    source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any], samples: int, *, count: bool
) -> DatasetFacts:
    """Look at files of one format; see :func:`stoker.inspection.inspect`.

    Raises:
        FormatError: no file can be read.
    """
    of = SeparateFiles(source, files, name, settings)
    notes: list[str] = []
    looked = of.found if count or not of.whole else of.found[:1]
    if len(looked) < len(of.found):
        notes.append(f"only the first of {len(of.found)} files was looked at; count=True or --count reads all")

    def inspect(file: ObjectInfo) -> UnindexedFile | FormatError:
        try:
            map_it = of.whole or (of.local and not of.reader.row_groups and not of.reader.single)
            return of.inspect(file, files.read(file.key) if map_it else None)
        except FormatError as error:
            return error

    outcomes = side_by_side([partial(inspect, file) for file in looked], "inspect")
    read = [one for one in outcomes if isinstance(one, UnindexedFile)]
    bad = [one for one in outcomes if isinstance(one, FormatError)]
    if bad and not read:
        raise bad[0]
    specs = ((one.key, one.spec) for one in read if one.samples)
    notes += [*map(str, bad), *(said for _, said in islice(disagreements(of.reader, specs, files.store.url_of), 1))]
    preview, said = _preview(files, of, read, samples)
    counted = len(looked) == len(of.found)
    sizes = [sum(one.size for one in of.files_of(file)) for file in of.found]
    columns: Mapping[str, str] = next((one for one in read if one.samples), read[0]).spec["columns"]
    raw_bytes, codecs = storage_of(read) if of.reader.row_groups else (None, ())
    return DatasetFacts(
        url=source.told if source.keys or source.given else files.store.url,
        format=name,
        indexed=False,
        files=sum(len(of.files_of(file)) for file in of.found),
        shards=sum(one.shards for one in read) if counted else None,
        samples=sum(one.samples for one in read) if counted else None,
        columns=tuple(ColumnFacts(column, kind, shape_of(kind)) for column, kind in columns.items()),
        stored_bytes=sum(sizes),
        raw_bytes=raw_bytes,
        compression=codecs,
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(*notes, *said),
        preview=tuple(preview),
    )


def _preview(
    files: FileReader, of: SeparateFiles, read: Sequence[UnindexedFile], samples: int
) -> tuple[list[Mapping[str, Shown]], list[str]]:
    """The first samples, and what hindered."""
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for one in read if samples else ():
        where = files.store.url_of(one.key)
        first = next(of.describe(one), None)
        if first is not None and not of.local and sum(file.bytes for file in first.stored) > LARGEST:
            return shown, [*notes, f"no samples are shown: the first shard of {where} would have to be fetched whole"]
        for info, data in of.fetch_shards(one):
            more, said = preview_files(info, data, samples - len(shown), where)
            shown += more
            notes += said
            if not more or len(shown) >= samples:
                return shown, notes
    return shown, notes
