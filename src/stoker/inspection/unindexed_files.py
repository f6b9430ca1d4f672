"""Files without an index, each opened and read by itself, without a cache: what they hold, and whether they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.catalog.unindexed.find_files import HEADERS_AT_ONCE, find_files
from stoker.catalog.unindexed.inspect_headers import StoreSource, span_array
from stoker.catalog.unindexed.open_files import unindexed_format
from stoker.errors import ConfigError, CorruptDataError, FormatError, MissingPackageError, StokerError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.checks import most_unpacked
from stoker.formats.common.compression import codec_of, parse_compression
from stoker.formats.common.file_shards import SpanDetail, UnindexedFile
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, MappedSource, only_settings
from stoker.formats.format import Format
from stoker.formats.parquet.facts import storage_of
from stoker.inspection.checks import Checker, CheckPlan, FileReader, Outcome, Problem, Task
from stoker.inspection.facts import LARGEST, ColumnFacts, DatasetFacts, Shown, preview_files, shape_of
from stoker.storage import ObjectInfo, is_local
from stoker.storage.transfer import side_by_side
from stoker.types import Buffer

# Of remote files, row groups that follow each other are fetched together until they have so many bytes.
_TOGETHER: Final = 16 << 20


class SeparateFiles:
    """Files of one format.

    ConfigError if files of this format are not read without an index. ObjectNotFoundError if there are none. ``settings``:
    what the format's ``inspect_header`` understands.

    Attributes:
        whole: whether all of a file is read to tell what it holds, of any of them.
    """

    def __init__(self, source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any]) -> None:
        self.reader = unindexed_format(name)
        listed = find_files(source, lambda _: files.store, self.reader).sized()
        self.found: Sequence[ObjectInfo] = listed.files
        self.local = is_local(files.store.url) is not None
        self.whole = self.reader.whole or any(self._codec(file) is not None for file in self.found)
        self._beside = listed.beside
        self._files = files
        self._settings = settings = {name: one for name, one in settings.items() if name != "on_bad_files"}
        only_settings(settings, self.reader.settings, name)
        names = [file.key for file in self.found]
        self._single = HeaderFacts(1, self.reader.inspect_names(names, settings)) if self.reader.single else None

    def files_of(self, file: ObjectInfo) -> tuple[ObjectInfo, ...]:
        """A file and those that belong to it."""
        return (file, *self._beside.get(file.key, ()))

    def inspect(self, file: ObjectInfo, data: Buffer | None = None) -> UnindexedFile:
        """Inspect a file.

        Args:
            data: its bytes; ``None`` to read what is needed of them.

        Raises:
            StokerError: it is damaged, or can not be read.
        """
        where = self._files.store.url_of(file.key)
        unpacked: int | None = None
        if (codec := self._codec(file)) is not None:
            data = self._unpack(codec, file.key, self._files.read(file.key) if data is None else data)
            unpacked = len(data)
        source: ByteSource = StoreSource(self._files.store, file.key, file.size, where)
        if data is not None:
            source = MappedSource(data, where)
        try:
            facts = self._single or self.reader.inspect_header(source, self._settings)
        except StokerError as error:
            raise error if where in str(error) else type(error)(f"{where}: {error}") from error
        except Exception as error:  # of another package's format
            raise CorruptDataError(f"{where}: {type(error).__name__}: {error}") from error
        beside = self._beside.get(file.key, ())
        return UnindexedFile(file, facts.samples, facts.spec, span_array(facts), beside, unpacked)

    def shards(self, one: UnindexedFile, data: Sequence[Buffer]) -> Iterator[tuple[ShardInfo, list[Buffer]]]:
        """A file's shards, each with the bytes to open. CorruptDataError if the data ends before the last shard does."""
        if (codec := self._codec(one.file)) is not None:
            data = [self._unpack(codec, one.key, data[0])]
        for info in self.describe(one):
            start, end = _window_of(info.raw[-1])
            yield info, [*data[:-1], data[-1] if (start, end) == (0, len(data[-1])) else data[-1][start:end]]

    def row_groups(self, one: UnindexedFile) -> Iterator[tuple[tuple[int, int], list[ShardInfo]]]:
        """Row groups that follow each other, with the window of the file that they lie in: one, or some of a remote file.

        CorruptDataError if row groups contradict each other.
        """
        together: list[ShardInfo] = []
        start = end = 0
        for info in self.describe(one):
            first, last = _window_of(info.raw[0])
            low, high = min(start, first), max(end, last)
            if together and (self.local or high - low > _TOGETHER):
                yield (start, end), together
                together = []
            start, end = (low, high) if together else (first, last)
            together.append(info)
        if together:
            yield (start, end), together

    def fetch_shards(self, one: UnindexedFile) -> Iterator[tuple[ShardInfo, list[Buffer]]]:
        """A file's shards, each with the bytes to open, of which no more are read than it has.

        StokerError if they can not be read.
        """
        if self._codec(one.file) is not None:
            yield from self.shards(one, [self._files.read(one.key)])
            return
        for info in self.describe(one):
            yield info, [self._window(file) for file in info.raw]

    def _window(self, file: FileInfo) -> Buffer:
        assert file.part is not None  # as all files that are described without an index
        return self._files.window(file.part.key, *file.part.window, version=file.part.version)

    def describe(self, one: UnindexedFile) -> Iterator[ShardInfo]:
        """The shards of a file, as they are mapped where it lies; the same windows are fetched of a remote one.

        CorruptDataError if the data ends before the last shard does, or shards contradict each other.
        """
        return self.reader.describe_shards([one] if one.samples else [], one.spec, in_place=True)

    def _codec(self, file: ObjectInfo) -> str | None:
        return codec_of(file.key) if self.reader.packed else None

    def _unpack(self, codec: str, key: str, data: Buffer) -> Buffer:
        """Decompress a file."""
        try:
            return bytes(parse_compression(codec).decompress_unsized(memoryview(data), most_unpacked(len(data))))
        except CorruptDataError as error:
            raise CorruptDataError(f"{self._files.store.url_of(key)}: {error}") from None


def _window_of(file: FileInfo) -> tuple[int, int]:
    assert file.part is not None  # as all files that are described without an index
    return file.part.window


def disagreements(
    reader: Format, specs: Iterable[tuple[str, Mapping[str, Any]]], url_of: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Key and message of each file whose columns do not go with those of the files before it.

    ``specs``: key of each file that has samples, and what it says of its columns.
    """
    first, agreed = "", None
    for key, spec in specs:
        if agreed is None:
            first, agreed = key, spec
            continue
        try:
            agreed = reader.agree(agreed, spec)
        except ValueError as error:
            yield key, f"{url_of(first)} and {url_of(key)} can not be read together: {error}"


def inspect_unindexed(
    source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any], samples: int, *, count: bool
) -> DatasetFacts:
    """Look at files of one format; see :func:`stoker.inspection.inspect`. FormatError if no file can be read."""
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

    outcomes = side_by_side([partial(inspect, file) for file in looked], HEADERS_AT_ONCE, "inspect")
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
        files=sum(len(of.files_of(file)) for file in of.found),
        shards=sum(one.shards for one in read) if counted else None,
        samples=sum(one.samples for one in read) if counted else None,
        columns=tuple(ColumnFacts(column, kind, shape_of(kind)) for column, kind in columns.items()),
        stored_bytes=sum(sizes),
        raw_bytes=raw_bytes,
        compression=codecs,
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


def plan_unindexed(checker: Checker, source: FilesLocation, name: str, settings: Mapping[str, Any]) -> CheckPlan:
    """List the checks. A header is read when its file's turn comes.

    ConfigError if files of this format are not read without an index. ObjectNotFoundError if there are none. ``settings``:
    what the format's ``inspect_header`` understands.
    """
    files = SeparateFiles(source, checker.files, name, settings)
    plan = CheckPlan(name, [])
    quick = checker.level == "quick"
    if quick and files.reader.row_groups:
        plan.notes.append("quick: of Parquet files the footers are checked, and no page")
    if not files.reader.single:
        plan.finish = partial(_disagreements, checker, files.reader)
    plan.tasks = [
        Task(
            0 if quick else sum(one.size for one in files.files_of(file)),
            partial(_check, checker, files, number, file),
        )
        for number, file in enumerate(files.found)
    ]
    return plan


def _check(checker: Checker, files: SeparateFiles, number: int, file: ObjectInfo, out: Outcome) -> None:
    """Check one file, with those that belong to it."""
    reader, quick = files.reader, checker.level == "quick"
    if quick and files.whole:
        out.notes.append(f"quick: files of format {reader.name!r} are not opened, for that would take all of them")
        out.shards = 1
        return
    data: list[Buffer] = []
    if not quick and not reader.row_groups:
        found = _read_whole(checker, files.files_of(file), number, out)
        if found is None:
            return
        data = found
    try:
        one = files.inspect(file, data[0] if data else None)
        out.samples, out.shards = one.samples, one.shards
        if one.samples and not reader.single:
            out.spec = (one.key, one.spec)
        last = one.files[-1]
        if one.beside and len(one.spans) and one.spans[-1, 1] < last.size:
            over = last.size - int(one.spans[-1, 1])
            out.notes.append(f"{checker.files.store.url_of(last.key)}: its last {over:,} bytes belong to no sample")
        if reader.row_groups and not quick:
            _check_row_groups(checker, files, one, number, out)
        first = number if reader.single else None
        for info, parts in files.shards(one, data) if data else ():
            before = info.detail.first if isinstance(info.detail, SpanDetail) else 0
            checker.content(info, parts, one.key, out, shard=number, first=first, before=before)
    except (MissingPackageError, ConfigError):
        raise
    except StokerError as error:
        kind: Any = "structure" if isinstance(error, ValueError) else "unreadable"
        out.problems.append(checker.problem(kind, file.key, str(error), number))


def _read_whole(checker: Checker, files: Sequence[ObjectInfo], number: int, out: Outcome) -> list[Buffer] | None:
    """Bytes of some files; ``None``, and a problem, where one can not be read or has another size."""
    data: list[Buffer] = []
    for file in files:
        read = checker.read(file.key, number, out)
        if read is None:
            return None
        if len(read) != file.size:
            url = checker.files.store.url_of(file.key)
            message = f"{url} has {len(read)} bytes, and had {file.size} when it was listed"
            out.problems.append(checker.problem("size", file.key, message, number))
            return None
        data.append(read)
    return data


def _check_row_groups(checker: Checker, files: SeparateFiles, one: UnindexedFile, number: int, out: Outcome) -> None:
    """Check the row groups of a file, of which no more than one, or some of a remote file, are read at a time."""
    where, before = checker.files.store.url_of(one.key), 0
    for (start, end), together in files.row_groups(one):
        if checker.stop.is_set():
            return
        data: Buffer | None = None
        try:
            data = checker.files.window(one.key, start, end, version=one.file.version)
            out.bytes += len(data)
        except (StokerError, OSError, ValueError) as error:
            out.problems.append(checker.problem("unreadable", one.key, f"{where}: {error}", number))
        for info in together:
            part = info.raw[0].part
            if data is not None and part is not None:
                first, last = part.window
                some: Any = data if part.window == (start, end) else memoryview(data)[first - start : last - start]
                checker.content(info, [some], one.key, out, shard=number, before=before)
            before += info.samples


def _disagreements(checker: Checker, reader: Format, outcomes: Sequence[Outcome]) -> list[Problem]:
    """Files whose columns do not go with those of the files before them."""
    numbers = {outcome.spec[0]: number for number, outcome in enumerate(outcomes) if outcome.spec is not None}
    specs = (outcome.spec for outcome in outcomes if outcome.spec is not None)
    found = disagreements(reader, specs, checker.files.store.url_of)
    return [checker.problem("index", key, message, numbers[key]) for key, message in found]
