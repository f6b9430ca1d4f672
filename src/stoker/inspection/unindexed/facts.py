"""What files that others wrote, without an index, tell of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from stoker.catalog.unindexed.found_files import FilesLocation
from stoker.formats.common.container import Survey
from stoker.inspection.facts import ColumnFacts, DatasetFacts, shape_of
from stoker.inspection.previews import LARGEST, preview_files
from stoker.inspection.read_files import FileReader
from stoker.inspection.render import Shown
from stoker.inspection.unindexed.files import FileGroup, ForeignFiles
from stoker.storage import is_local

__all__ = ["inspect_foreign"]

_THREADS: Final = 16


def inspect_foreign(
    source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any], samples: int, *, count: bool
) -> DatasetFacts:
    """Look at files of one format; see :func:`stoker.inspection.inspect`."""
    of = ForeignFiles(source, files, name, settings)
    local = is_local(files.store.url) is not None

    def survey(one: FileGroup) -> Survey:
        return of.survey(one, files.read(one.file.key) if local or of.whole else None)

    notes: list[str] = []
    if of.single:
        surveys = [Survey(1, of.single_spec())] * len(of.found)
    else:
        looked = of.found if count or not of.whole else of.found[:1]
        with ThreadPoolExecutor(min(_THREADS, len(looked)), thread_name_prefix="stoker-inspect") as pool:
            surveys = list(pool.map(survey, looked))
        if len(looked) < len(of.found):
            notes.append(f"only the first of {len(of.found)} files was looked at; count=True or --count reads all")
        notes += _disagreements(of, surveys, files)
    preview, said = _preview(files, of, surveys, samples)
    counted = len(surveys) == len(of.found)
    sizes = [one.size for one in of.found]
    kinds: Mapping[str, str] = surveys[0].spec["columns"]
    return DatasetFacts(
        url=source.given or files.store.url,
        format=name,
        indexed=False,
        files=sum(len(one.all) for one in of.found),
        shards=sum(max(1, len(one.pieces)) for one in surveys) if counted else None,
        samples=sum(one.samples for one in surveys) if counted else None,
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


def _disagreements(of: ForeignFiles, surveys: Sequence[Survey], files: FileReader) -> list[str]:
    """The first file whose columns do not go with the others'."""
    filled = [(one.file.key, survey.spec) for one, survey in zip(of.found, surveys, strict=False) if survey.samples]
    agreed = filled[0][1] if filled else {}
    for key, spec in filled[1:]:
        try:
            agreed = of.reader.agree(agreed, spec)
        except ValueError as error:
            url = files.store.url_of
            return [f"{url(filled[0][0])} and {url(key)} can not be read together: {error}"]
    return []


def _preview(
    files: FileReader, of: ForeignFiles, surveys: Sequence[Survey], samples: int
) -> tuple[list[Mapping[str, Shown]], list[str]]:
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for one, survey in zip(of.found, surveys, strict=False):
        if len(shown) >= samples:
            break
        if not survey.samples:
            continue
        where = files.store.url_of(one.file.key)
        if one.size > LARGEST and is_local(files.store.url) is None:
            return shown, [*notes, f"no samples are shown: {where} would have to be fetched whole"]
        for info, data in of.shards(one, survey, [files.read(file.key) for file in one.all]):
            more, said = preview_files(info, data, samples - len(shown), where)
            shown += more
            notes += said
            if not more:
                return shown, notes
            if len(shown) >= samples:
                break
    return shown, notes
