"""Tables: detected by the files of their logs, and a version's data files.

A table's Parquet files alone hold rows that were deleted or replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.errors import ConfigError, StokerError
from stoker.formats.common.inspect_header import Partition
from stoker.storage import Store, is_local, join_url

_MARKS: Final = re.compile(
    r"(?P<folder>(?:.*/)?)(?:"
    r"(?P<delta>_delta_log/[^/]+)"
    r"|(?P<iceberg>metadata/(?:[^/]+\.metadata\.json(?:\.gz)?|version-hint\.text))"
    r"|(?P<hudi>\.hoodie/[^/]+)"
    r"|(?P<lance>_versions/[^/]+\.manifest)"
    r")"
)
_PARTITION: Final = re.compile(r"[^/]+=[^/]*")
_NAMES: Final = {"delta": "Delta Lake", "iceberg": "Iceberg", "hudi": "Hudi", "lance": "Lance"}
_FOLDERS: Final = ("_delta_log", "metadata", ".hoodie", "_versions")
# Those that are looked for above remote folders, at a request each.
_REMOTE: Final = _FOLDERS[:2]
TABLE_FORMATS: Final = ("delta", "iceberg", "lance")
"""Kinds of tables that are read."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A version of a table.

    Attributes:
        files: its data files, in the order of their names.
        columns: the names of its columns, in order.
        version: in words, which version it is.
        remedy: the option that opens this version again.
        partitions: values of columns that the log tells, by file; empty where the files hold all columns.
    """

    files: FilesLocation
    columns: tuple[str, ...]
    version: str
    remedy: str
    partitions: Mapping[str, Partition] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        """Its data files, each by its path or URL."""
        return [join_url(self.files.root, key) for key in self.files.keys or ()]

    @property
    def told(self) -> str:
        """The version for states, and how to open it."""
        return f"{self.version} (format_options={self.remedy})"


@dataclass(frozen=True, slots=True)
class TableMark:
    """A table that a listing shows.

    ``kind``: ``delta``, ``iceberg``, ``hudi`` or ``lance``. ``folder``: the table's, relative to what was listed; empty for
    that itself.
    """

    kind: str
    folder: str


def table_of(keys: Iterable[str]) -> TableMark | None:
    """The first table that is among some files; ``None`` where there is none."""
    for key in keys:
        match = _MARKS.fullmatch(key)
        if match:
            kind = match.lastgroup
            assert kind is not None
            return TableMark(kind, match["folder"].rstrip("/"))
    return None


def refuse_table(mark: TableMark, root: str) -> None:
    """Refuse to read files of a table as they are."""
    where = f"{root}/{mark.folder}".rstrip("/")
    name = _NAMES[mark.kind]
    told = f"{where} is a table of {name}, whose files alone hold rows that were deleted or replaced"
    if mark.kind in TABLE_FORMATS:
        raise ConfigError(f'{told}: open {where!r} with format="{mark.kind}"')
    raise ConfigError(f"{told}: {name} is not read here. Export the version that you mean to Parquet files")


def refuse_inside(root: str, open_root: Callable[[str], Store]) -> None:
    """Refuse to read files in a folder of a table, such as one of its partitions.

    Local folders are looked at up to the file system's root; of remote ones, those above ``name=value`` and ``data``.
    ConfigError if the folder is a table's; says how to open the table.
    """
    directory = is_local(root)
    for folder in directory.parents if directory is not None else ():
        if mark := _local_mark(folder):
            refuse_table(mark, str(folder))
    if directory is not None or root.startswith(("http://", "https://", "memory://")):
        return
    parent, inside = root.rstrip("/"), False
    while (last := parent.rpartition("/")[2]) and (_PARTITION.fullmatch(last) or (last == "data" and not inside)):
        parent, inside = parent.rpartition("/")[0], True
    for name in _REMOTE if inside and parent.count("/") > 2 else ():
        if mark := _remote_mark(parent, name, open_root):
            refuse_table(mark, parent)


def _local_mark(folder: Path) -> TableMark | None:
    for name in _FOLDERS:
        try:
            found = table_of(f"{name}/{entry}" for entry in os.listdir(folder / name))
        except OSError:
            continue
        if found:
            return found
    return None


def _remote_mark(parent: str, folder: str, open_root: Callable[[str], Store]) -> TableMark | None:
    try:
        return table_of(f"{folder}/{item.key}" for item in open_root(f"{parent}/{folder}").list())
    except StokerError:  # a folder that may be listed, in one that may not
        return None
