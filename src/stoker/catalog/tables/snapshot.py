"""A version of a table: its data files, and what its log says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.formats.common.inspect_header import Partition
from stoker.storage import join_url


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
