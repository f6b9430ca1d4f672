"""Text to be tokenized: found in Parquet, JSON lines or plain files, and handed out in blocks, always the same."""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from stoker.catalog.splits import refuse_splits
from stoker.catalog.unindexed.files_location import check_exists
from stoker.errors import ConfigError, CorruptDataError, FormatError, ObjectNotFoundError
from stoker.formats.text.json import lines_remedy
from stoker.index.index import INDEX_NAME
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.regular import open_regular, read_regular
from stoker.storage.files.walk import is_in_cache, walk_files
from stoker.storage.job_record import file_version
from stoker.storage.versions import local_version

Kind = Literal["parquet", "jsonl", "text"]

_KINDS: Final[dict[str, Kind]] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".jsonl.gz": "jsonl",
    ".json.gz": "jsonl",
    ".ndjson.gz": "jsonl",
}
# Files with these ends often lie beside data to tell of it. They count where there is nothing else.
_TELLING: Final = (".json", ".txt", ".text", ".md")
_PLAIN: Final = (".txt", ".text", ".md")
_NAMES: Final = ("text", "content")
# About as much text as a process tokenizes in a fifth of a second.
_BLOCK: Final = 1 << 20
_LONGEST_LINE: Final = 1 << 28
_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of text. ``version``: see :func:`~stoker.storage.job_record.file_version`."""

    path: str
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some documents that follow on each other in one file.

    Attributes:
        first: number of the first row or line, from 0; lines are told of from 1.
        texts: documents, ``None`` where a row has none; or lines of JSON, not parsed yet.
        key: of the text in the lines of JSON; ``None`` where texts are texts.
        size: about the bytes of the file that this is.
    """

    where: str
    first: int
    texts: Sequence[str | None] | Sequence[bytes]
    key: str | None
    size: int

    def documents(self) -> Sequence[str | None]:
        """The texts, parsed."""
        if self.key is None:
            return self.texts  # type: ignore[return-value]
        return [self._parse(number, line) for number, line in enumerate(self.texts, self.first + 1) if line.strip()]  # type: ignore[union-attr]

    def _parse(self, number: int, line: Any) -> str | None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            remedy = lines_remedy(line) or "repair the file"
            raise FormatError(f"{self.where}, line {number} is not JSON ({error}): {remedy}") from None
        if not isinstance(row, dict) and (remedy := lines_remedy(line)):
            raise FormatError(f"{self.where}, line {number} is not an object: {remedy}")
        if not isinstance(row, dict) or self.key not in row:
            has = f"has the keys {', '.join(row)}, not" if isinstance(row, dict) else "is not an object, and so has no"
            raise FormatError(f"{self.where}, line {number} {has} {self.key!r}: name the text's key with column=")
        text = row[self.key]
        if text is not None and not isinstance(text, str):
            raise FormatError(f"{self.where}, line {number}: {self.key!r} is {type(text).__name__}, not text")
        return text


@dataclass(frozen=True, slots=True)
class Texts:
    """Files of text of one kind, in order.

    ``column``: the column or key of the text; ``None``: to be found. ``strict``: bytes that are not UTF-8 are an error;
    otherwise they are replaced by U+FFFD.
    """

    kind: Kind
    files: tuple[TextFile, ...]
    column: str | None
    strict: bool

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def versions(self) -> dict[str, str]:
        """Path to version of all files, as they were found."""
        return {file.path: file.version for file in self.files}

    def versions_now(self) -> dict[str, str]:
        """The same as they are now, without files that are gone."""
        found = {}
        for file in self.files:
            with contextlib.suppress(ObjectNotFoundError):
                found[file.path] = _source(file.path).version
        return found

    def blocks(self) -> Iterator[TextBlock]:
        """All documents, in order. The same files always give the same blocks, of about 1 MiB."""
        read = {"parquet": self._parquet, "jsonl": self._lines, "text": self._whole}[self.kind]
        for file in self.files:
            yield from read(file)

    def _parquet(self, file: TextFile) -> Iterator[TextBlock]:
        import pyarrow.parquet as pq

        with _parquet_errors(file.path), pq.ParquetFile(file.path) as opened:
            column = _text_column(opened.schema_arrow, self.column, file.path)
            rows, size = max(opened.metadata.num_rows, 1), file.size
            first = 0
            pending: list[str | None] = []
            used = 0
            for batch in opened.iter_batches(_ROWS, columns=[column], use_threads=False):
                for text in batch.column(0).to_pylist():
                    pending.append(text)
                    used += len(text or "")
                    if used >= _BLOCK:
                        yield TextBlock(file.path, first, pending, None, size * len(pending) // rows)
                        first += len(pending)
                        pending, used = [], 0
            if pending:
                yield TextBlock(file.path, first, pending, None, size * len(pending) // rows)

    def _lines(self, file: TextFile) -> Iterator[TextBlock]:
        first = 0
        packed = file.path.lower().endswith(".gz")
        key = self.column
        with file_errors(file.path), open(open_regular(file.path)[0], "rb") as stored:
            opened: Any = gzip.GzipFile(fileobj=stored) if packed else stored
            while lines := _unpacked_lines(opened, file.path) if packed else opened.readlines(_BLOCK):
                if key is None and (found := next((line for line in lines if line.strip()), None)) is not None:
                    key = _text_key(found, file.path)
                size = sum(map(len, lines))
                # What is packed is worth about a third.
                yield TextBlock(file.path, first, lines, key or "text", size // 3 if packed else size)
                first += len(lines)

    def _whole(self, file: TextFile) -> Iterator[TextBlock]:
        with file_errors(file.path):
            data = read_regular(file.path)
        try:
            text = data.decode("utf-8", "strict" if self.strict else "replace")
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{file.path} is not UTF-8 ({error}): leave it out, or pass strict=False to replace such bytes"
            ) from None
        yield TextBlock(file.path, 0, [text], None, file.size)


def find_texts(src: str | os.PathLike[str], *, column: str | None, strict: bool) -> Texts:
    """The files of a file name, a directory or a glob, sorted by name.

    A directory gives its Parquet files or its files of JSON lines (``.jsonl``, ``.ndjson``); without any, its ``.json`` or
    its plain text (``.txt``, ``.text``, ``.md``). Names that begin with ``.`` or ``_`` are left out.
    """
    source = os.fspath(src)
    check_exists(source)
    if os.path.isfile(source):
        found = [source]
    elif os.path.isdir(source):
        with file_errors(source):
            found = [os.path.join(source, name) for name, _ in walk_files(source, _is_shown)]
        found = _of_directory(found, source)
    else:
        found = [path for path in _matches(source) if os.path.isfile(path)]
    if not found:
        raise ObjectNotFoundError(f"{source}: no such file, no file in it, or none that matches", url=source)
    _refuse_index(found)
    kinds = {_kind(path) for path in found}
    if len(kinds) > 1:
        raise ConfigError(
            f"{source} has files of several kinds, {', '.join(sorted(kinds))}: give a glob for one of them"
        )
    (kind,) = kinds
    if kind == "text":
        _refuse_packed(found)
        if column is not None:
            raise ConfigError(f"column={column!r}: {found[0]} is plain text, a document a file, and has no columns")
    return Texts(kind, tuple(_source(path) for path in sorted(found)), column, strict)


def _of_directory(paths: list[str], source: str) -> list[str]:
    """The files of a directory that are its documents."""
    _refuse_index(paths)
    found = [path for path in paths if _kind(path) != "text" and not path.lower().endswith(_TELLING)]
    if not found:
        found = paths
        for path in found:
            if _kind(path) == "text" and not path.lower().endswith(_PLAIN):
                _refuse_packed([path])
                raise ConfigError(
                    f"{path}: in a directory only {', '.join((*_KINDS, *_PLAIN))} are known as text. Name files of other "
                    f"kinds by a pattern, such as {source.rstrip('/')}/**/*.txt: each is a document then"
                )
    if found:
        keys = (os.path.relpath(path, source) for path in found)
        refuse_splits(keys, source.rstrip("/"), folders_only=_kind(found[0]) == "text")
    return found


def _refuse_index(paths: list[str]) -> None:
    """Check that files are not of a dataset with an index, whose shards are no text."""
    for path in paths:
        if os.path.basename(path) == INDEX_NAME:
            folder = os.path.dirname(path) or "."
            raise ConfigError(
                f"{folder} is a dataset with an {INDEX_NAME}, whose shards are not read as text: make Parquet of it first "
                f"(stoker convert {folder} OUT --to parquet), and tokenize that"
            )


def _matches(pattern: str) -> list[str]:
    """Files that a glob finds outside of the caches below its first part."""
    root = os.path.dirname(pattern)
    while glob.has_magic(root):
        root = os.path.dirname(root)
    return [path for path in glob.glob(pattern, recursive=True) if not is_in_cache(path, root)]


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


@contextlib.contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    """Turn errors of pyarrow into ours: of the file's storage, which have a number, and of its bytes."""
    import pyarrow as pa

    with file_errors(path):
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise CorruptDataError(f"{path} can not be read as Parquet ({error}): is it whole?") from error


def _unpacked_lines(opened: Any, path: str) -> list[bytes]:
    """Lines of a compressed file, about a block; a plain one's take no more memory than the file has bytes."""
    lines: list[bytes] = []
    size = 0
    while size < _BLOCK:
        try:
            line = opened.readline(_LONGEST_LINE + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CorruptDataError(f"{path} can not be unpacked ({error}): is it whole?") from error
        if not line:
            break
        if len(line) > _LONGEST_LINE:
            raise CorruptDataError(
                f"{path} has a line of more than {_LONGEST_LINE:,} bytes: damaged, or made to fill memory; if it is right, "
                "unpack the file"
            )
        lines.append(line)
        size += len(line)
    return lines


def _kind(path: str) -> Kind:
    name = os.path.basename(path).lower()
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), "text")


def _refuse_packed(paths: list[str]) -> None:
    for path in paths:
        if path.lower().endswith((".gz", ".zst", ".bz2", ".xz", ".zip", ".tar")):
            raise ConfigError(f"{path} is packed: unpack it first. Only JSON lines are read from .gz")


def _source(path: str) -> TextFile:
    with file_errors(path):
        status = os.stat(path)
    return TextFile(path, status.st_size, file_version(status.st_size, local_version(status)))


def _text_column(schema: Any, wanted: str | None, path: str) -> str:
    """The text column of an Arrow schema: the one that is asked for, or one called ``text``, or the only one."""
    texts = [field.name for field in schema if "string" in str(field.type) and "list" not in str(field.type)]
    if wanted is not None:
        if wanted not in schema.names:
            raise FormatError(f"{path} has no column {wanted!r}; it has {', '.join(schema.names)}")
        if wanted not in texts:
            raise FormatError(f"{path}: column {wanted!r} holds {schema.field(wanted).type}, not text")
        return wanted
    return _chosen(texts, path)


def _text_key(line: bytes, path: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return _NAMES[0]  # told of where the line is parsed
    if not isinstance(row, dict):
        return _NAMES[0]
    texts = [name for name, value in row.items() if isinstance(value, str) or (value is None and name in _NAMES)]
    return _chosen(texts, path, " in the first line")


def _chosen(texts: Sequence[str], path: str, where: str = "") -> str:
    """Of columns or keys of text, the one called ``text`` or ``content``, or the only one."""
    found = next((name for name in _NAMES if name in texts), None)
    if found is None and len(texts) != 1:
        have = ", ".join(texts) or "no texts"
        raise FormatError(f"{path}: which of {have}{where} is the text? Name it with column=")
    return found or texts[0]
