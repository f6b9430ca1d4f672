"""What files that others wrote, without an index, tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from stoker.catalog.unindexed.found_files import FilesLocation
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.inspection.facts import ColumnFacts, DatasetFacts, shape_of
from stoker.inspection.previews import LARGEST, preview_files
from stoker.inspection.read_files import FileReader
from stoker.inspection.render import Shown
from stoker.inspection.unindexed.files import FileGroup, FormatFiles
from stoker.storage import is_local

__all__ = ["inspect_unindexed"]

_THREADS: Final = 16


def inspect_unindexed(
    source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any], samples: int, *, count: bool
) -> DatasetFacts:
    """Look at files of one format; see :func:`stoker.inspection.inspect`."""
    of = FormatFiles(source, files, name, settings)
    local = is_local(files.store.url) is not None

    def header(one: FileGroup) -> HeaderFacts:
        return of.inspect_header(one, files.read(one.file.key) if local or of.whole else None)

    notes: list[str] = []
    if of.single:
        headers = [HeaderFacts(1, of.single_spec())] * len(of.found)
    else:
        looked = of.found if count or not of.whole else of.found[:1]
        with ThreadPoolExecutor(min(_THREADS, len(looked)), thread_name_prefix="stoker-inspect") as pool:
            headers = list(pool.map(header, looked))
        if len(looked) < len(of.found):
            notes.append(f"only the first of {len(of.found)} files was looked at; count=True or --count reads all")
        notes += _disagreements(of, headers, files)
    preview, said = _preview(files, of, headers, samples)
    counted = len(headers) == len(of.found)
    sizes = [one.size for one in of.found]
    kinds: Mapping[str, str] = headers[0].spec["columns"]
    return DatasetFacts(
        url=source.given or files.store.url,
        format=name,
        indexed=False,
        files=sum(len(one.all) for one in of.found),
        shards=sum(max(1, len(one.pieces)) for one in headers) if counted else None,
        samples=sum(one.samples for one in headers) if counted else None,
        columns=tuple(ColumnFacts(column, kind, shape_of(kind)) for column, kind in kinds.items()),
        stored_bytes=sum(sizes),
        raw_bytes=None,
        compression=(),
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(*notes, *said),
        preview=tuple(preview),
    )


def _disagreements(of: FormatFiles, headers: Sequence[HeaderFacts], files: FileReader) -> list[str]:
    """The first file whose columns do not go with the others'."""
    filled = [(one.file.key, header.spec) for one, header in zip(of.found, headers, strict=False) if header.samples]
    agreed = filled[0][1] if filled else {}
    for key, spec in filled[1:]:
        try:
            agreed = of.reader.agree(agreed, spec)
        except ValueError as error:
            url = files.store.url_of
            return [f"{url(filled[0][0])} and {url(key)} can not be read together: {error}"]
    return []


def _preview(
    files: FileReader, of: FormatFiles, headers: Sequence[HeaderFacts], samples: int
) -> tuple[list[Mapping[str, Shown]], list[str]]:
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for one, header in zip(of.found, headers, strict=False):
        if len(shown) >= samples:
            break
        if not header.samples:
            continue
        where = files.store.url_of(one.file.key)
        if one.size > LARGEST and is_local(files.store.url) is None:
            return shown, [*notes, f"no samples are shown: {where} would have to be fetched whole"]
        for info, data in of.shards(one, header, [files.read(file.key) for file in one.all]):
            more, said = preview_files(info, data, samples - len(shown), where)
            shown += more
            notes += said
            if not more:
                return shown, notes
            if len(shown) >= samples:
                break
    return shown, notes
