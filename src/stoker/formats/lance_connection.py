"""The package ``lance``, as the helper process has it: the only module that imports it.

Lance keeps threads of its own, which ``fork()`` does not copy, and warns that it is not safe in a child of a process that
has loaded it. So no process of the user's opens one; each that reads has a helper, which was not forked.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.concurrency.forks import ProcessLocal
from stoker.display import redact_url
from stoker.errors import (
    ConfigError,
    DatasetChangedError,
    FormatError,
    ObjectNotFoundError,
    StokerError,
    StorageError,
    import_option,
)
from stoker.types import Ids

_BLOB_ENCODING: Final = b"lance-encoding:blob"
_BLOB: Final = "lance.blob.v2"
_EXTENSION: Final = b"ARROW:extension:name"
_OWN: Final = "lance."
# Kinds of blobs that lie in the table: within a file, in one of several blobs, in one of its own. 3 is a URI.
_OWN_BLOBS: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class LanceFragment:
    """A fragment of a version.

    Attributes:
        rows: rows that are not deleted.
        bytes: of its data files; 0 where the table does not tell.
        identity: another for other files, and for other rows that are deleted.
    """

    id: int
    rows: int
    bytes: int
    identity: str


@dataclass(frozen=True, slots=True)
class LanceFacts:
    """A version of a table.

    Attributes:
        schema: Arrow's, serialised; blobs are bytes in it.
        blobs: columns of blobs, which are read one by one.
        unread: columns whose values are not read, and why.
        mark: another for another content.
    """

    version: int
    fragments: tuple[LanceFragment, ...]
    schema: bytes
    blobs: tuple[str, ...]
    unread: Mapping[str, str]
    mark: str


class LanceConnection(ProcessLocal):
    """An open version of a table. Thread-safe.

    ``url``: path or URL of the table. ``version``: number or tag; ``None`` for the latest. ``options``: settings of the
    store, as text. ``mark``: of the version that is meant; empty to take what is there.
    """

    def __init__(self, url: str, version: int | str | None, options: Mapping[str, str], mark: str = "") -> None:
        self.url, self.version, self.options, self.mark = url, version, dict(options), mark
        self._lock = threading.Lock()
        self._dataset: Any = None
        self._facts: LanceFacts | None = None

    # -- what the version is ---------------------------------------------------------------------------------------

    def facts(self) -> LanceFacts:
        """The version's facts.

        ObjectNotFoundError if there is no such table or version, DatasetChangedError if the version is another than the one
        that is meant, MissingPackageError if ``lance`` is not installed.
        """
        with self._lock:
            if self._facts is None or not self.mark:  # the latest may be another by now
                lance = import_option("lance", "tables of Lance need the package pylance", "stoker[lance]")
                told = "" if self.version is None else f" of version {self.version}"
                try:
                    dataset = lance.dataset(self.url, version=self.version, storage_options=self.options or None)
                    facts = _facts_of(dataset, self.url)
                except Exception as error:  # noqa: BLE001 - lance raises many types
                    raise _named(error, f"{self.url}: the table{told} can not be opened", self.url) from None
                if self.mark and facts.mark != self.mark:
                    raise DatasetChangedError(
                        f"{self.url}: version {facts.version} of the table has changed since the dataset was opened: the "
                        "table was rewritten in place. Open the dataset again"
                    )
                self._dataset, self._facts = dataset, facts
            return self._facts

    # -- rows ------------------------------------------------------------------------------------------------------

    def take(self, path: str, numbers: Ids, columns: Sequence[str]) -> int:
        """Write rows to a file, as an Arrow stream. ``numbers``: of the rows in the version, rising; int64, shape ``(n,)``.

        Gives bytes of the file.
        """
        import pyarrow as pa

        facts = self.facts()
        plain = [name for name in columns if name not in facts.blobs]
        rows = numbers.tolist()
        try:
            taken = self._dataset.take(rows, columns=plain) if plain else pa.table({})
            found = {name: taken[name] if name in plain else self._blobs(name, rows) for name in columns}
        except Exception as error:  # noqa: BLE001 - lance raises many types
            raise self._failed(error) from None
        return self._write(path, pa.table(found), len(rows))

    def _blobs(self, name: str, rows: list[int]) -> Any:
        import pyarrow as pa

        for number, where in zip(rows, self._dataset.take(rows, columns=[name])[name].to_pylist(), strict=True):
            if where and (where.get("blob_uri") or where.get("kind", 0) not in _OWN_BLOBS):
                raise ConfigError(
                    f"{self.url}: column {name!r} of row {number} is a blob elsewhere ({redact_url(where['blob_uri'])}), and "
                    'only those of the table are read: write it with external_blob_mode="ingest"'
                )
        blobs = self._dataset.read_blobs(name, indices=rows, preserve_order=True)
        return pa.array([value for _, value in blobs], pa.large_binary())

    def scan(self, path: str, fragment: int, first: int, count: int, columns: Sequence[str]) -> int:
        """Write consecutive rows of a fragment to a file, as :meth:`take` does.

        ``first``: number of the first row among those of the fragment that are not deleted. ``columns``: their columns, none
        of them of blobs.
        """
        self.facts()
        try:
            found = (
                self._dataset.get_fragment(fragment)
                .scanner(columns=list(columns), offset=first, limit=count)
                .to_table()
            )
        except Exception as error:  # noqa: BLE001 - lance raises many types
            raise self._failed(error) from None
        return self._write(path, found, count)

    def _failed(self, error: Exception) -> StokerError:
        return _named(
            error,
            f"{self.url}: rows of version {self.version} can not be read. Were its files removed, as by "
            "cleanup_old_versions()?",
            self.url,
        )

    def _write(self, path: str, table: Any, rows: int) -> int:
        import pyarrow as pa

        if table.num_rows != rows:
            raise FormatError(f"{self.url}: {table.num_rows} rows came where version {self.version} has {rows}")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        with open(path, "rb") as file:
            return file.seek(0, 2)


def _facts_of(dataset: Any, url: str) -> LanceFacts:
    import pyarrow as pa

    fragments = []
    digest = hashlib.blake2b(digest_size=16)
    for one in dataset.get_fragments():
        named = one.metadata.to_json()
        if _has_base(named):
            places = ", ".join(sorted(redact_url(base.path) for base in dataset.base_paths().values()))
            raise ConfigError(
                f"{url}: version {dataset.version} of the Lance table has files elsewhere ({places}), as shallow clones do: "
                "make a deep clone of it"
            )
        about = json.dumps(named, sort_keys=True, default=str)
        identity = hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        digest.update(f"{one.fragment_id}\0{identity}\n".encode())
        size = sum(file.file_size_bytes or 0 for file in one.data_files())
        fragments.append(LanceFragment(one.fragment_id, one.count_rows(), size, identity))
    schema = dataset.schema
    blobs, unread = [], {}
    for number, field in enumerate(schema):
        inside = list(_own_types(field))
        if inside == [(field.name, "blob")]:
            blobs.append(field.name)
            schema = schema.set(number, pa.field(field.name, pa.large_binary()))
        elif inside:
            unread[field.name] = ", ".join(f"{path} is of Lance's type {kind}" for path, kind in inside)
    return LanceFacts(
        dataset.version,
        tuple(fragments),
        schema.serialize().to_pybytes(),
        tuple(blobs),
        unread,
        digest.hexdigest(),
    )


def _has_base(named: Any) -> bool:
    """Whether a fragment in a manifest has a base path, which is a directory of files outside of the table."""
    if isinstance(named, dict):
        return named.get("base_id") is not None or any(map(_has_base, named.values()))
    return isinstance(named, list) and any(map(_has_base, named))


def _own_types(field: Any, parent: str = "") -> list[tuple[str, str]]:
    """Fields of types of Lance's own, at any depth, and the names of the types."""
    path = f"{parent}.{field.name}" if parent else field.name
    metadata = field.metadata or {}
    named = getattr(field.type, "extension_name", metadata.get(_EXTENSION, b"").decode())
    if named == _BLOB or metadata.get(_BLOB_ENCODING) == b"true":
        return [(path, "blob")]
    if named.startswith(_OWN):
        return [(path, named.removeprefix(_OWN))]
    kind = getattr(field.type, "storage_type", field.type)
    return [found for index in range(kind.num_fields) for found in _own_types(kind.field(index), path)]


def _named(error: Exception, what: str, url: str) -> StokerError:
    """An error of lance's as one of stoker's own."""
    if isinstance(error, StokerError):
        return error
    text = f"{what} ({type(error).__name__}: {str(error)[:500]})"
    missing = isinstance(error, FileNotFoundError) or "not found" in str(error).lower()
    return (ObjectNotFoundError if missing else StorageError)(text, url=url)
