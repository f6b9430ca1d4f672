"""The description of a synthetic dataset: :class:`DatasetSpec`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from stoker.arguments import checked
from stoker.digests import hash_names
from stoker.display import unknown_name
from stoker.errors import ConfigError
from stoker.formats.format import Format
from stoker.formats.registry import format_name, get_format
from stoker_bench.generation.columns import IMAGES, NUMBERS, Column, check_stdev
from stoker_bench.generation.files import GENERATED, GeneratedFiles

Content = Literal["random", "tokens", "text", "images"]

_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LEVELS: Final = {"zstd": 22, "gz": 9, "gzip": 9}
_MOST_PAGE: Final = 1 << 30
_MOST_FILES: Final = 1 << 31


@checked
@dataclass(frozen=True)
class DatasetSpec:
    """A synthetic dataset: everything that its bytes depend on.

    Attributes:
        format: ``mds``, ``parquet``, ``npy``, ``npz``, ``hdf5``, ``tfrecord``, ``tar``, ``arrow``, ``jpeg``, ``png``,
            ``jsonl``, ``csv``, ``megatron`` or ``files``.
        files: number of files; with ``valid_files``, those of training. Of ``megatron``, pairs of files.
        samples_per_file: 1 for ``jpeg``, ``png`` and ``files``.
        columns: the columns, as :class:`Column` or as text for :meth:`Column.parse`. Default: one, of ``content``.
        record_bytes: bytes of a sample where there are no columns; default what ``dims`` and ``dtype`` give.
        stdev: standard deviation of ``record_bytes``, at most that. In formats of arrays samples of a file have one size.
        dims: shape of a sample where there are no columns; of an image, the most height and width.
        dtype: NumPy type of a sample where there are no columns.
        content: ``random`` bytes (floating-point numbers are finite, below 2), ``tokens`` (ids of Zipf's law), ``text``
            (ASCII words), ``images`` (JPEG or PNG that decode).
        vocabulary: number of token ids.
        compression: see ``docs/generate.md`` for the names that a format has; ``None`` for none.
        valid_files: files for validation. Where there are any, files lie in ``train/`` and ``valid/``.
        subfolders: number of folders that files are spread over; 0 for none.
        prefix: begin of the files' names.
        seed: another makes other bytes.
        compressibility: 2.0 for random content that compresses to half its size.
        duplication: 2.0 for random content of which each 64 KiB piece is there twice on average, in the same file.
        row_group_size: Parquet: rows of a row group; Arrow: rows of a record batch. Default: about 64 MiB, and 16 MiB.
        page_bytes: Parquet: bytes of a page, of at least one value.
        hdf5_chunks: rows of an HDF5 chunk; default 0 for datasets that are contiguous.
        image_quality: of JPEG, 1 to 95.
        hashes: names of hashes that the index or manifest holds of each file.
        dlio: whether DLIO's readers want the files: an NPZ array is named ``x``, and Parquet columns begin with a dictionary
            page, which is empty.

    Raises:
        ConfigError: values contradict each other or the format; names the field.
    """

    format: str = "parquet"
    files: int = 1
    samples_per_file: int = 1
    columns: tuple[Column | str, ...] = ()
    record_bytes: int | None = None
    stdev: int = 0
    dims: tuple[int, ...] = ()
    dtype: str = "uint8"
    content: Content = "random"
    vocabulary: int = 50257
    compression: str | None = None
    valid_files: int = 0
    subfolders: int = 0
    prefix: str = "part"
    seed: int = 0
    compressibility: float = 1.0
    duplication: float = 1.0
    row_group_size: int | None = None
    page_bytes: int = 1 << 20
    hdf5_chunks: int = 0
    image_quality: int = 90
    hashes: tuple[str, ...] = ("xxh3_64",)
    dlio: bool = False
    fields: tuple[Column, ...] = field(init=False, repr=False)
    """The columns as they are made, in the order of their names."""

    def __post_init__(self) -> None:
        for name in ("columns", "dims", "hashes"):  # lists are as good
            object.__setattr__(self, name, tuple(getattr(self, name)))
        form = _generated(self.format)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value!r}: expected an integer of at least {least}")
        for name in ("compressibility", "duplication"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 1 <= value <= 1000):
                raise ConfigError(f"{name}={value!r}: expected a ratio of 1 (none) to 1000")
        self._check(form)
        columns = self._columns(form)
        for column in columns:
            column.check()
            if column.tokens and self.vocabulary - 1 > np.iinfo(column.dtype).max:
                raise ConfigError(f"column {column.name!r}: {self.vocabulary:,} token ids do not fit {column.dtype}")
        if len({column.name.lower() for column in columns}) != len(columns):
            raise ConfigError(f"columns: two have the same name: {', '.join(column.name for column in columns)}")
        object.__setattr__(self, "fields", tuple(sorted(columns, key=lambda column: column.name)))
        self._check_columns(form)

    @property
    def form(self) -> GeneratedFiles:
        """The kinds of files that are made of the format."""
        return _generated(self.format)

    @property
    def samples(self) -> int:
        """Samples of all files."""
        return (self.files + self.valid_files) * self.samples_per_file

    def identity(self) -> dict[str, Any]:
        """The spec as plain JSON values. Two specs with the same make the same bytes with the same versions of libraries."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        del plain["columns"], plain["record_bytes"], plain["dims"], plain["dtype"]
        if not self.form.arrays:
            del plain["stdev"]
        if not self.dlio:  # as those that were made before
            del plain["dlio"]
        loaded: dict[str, Any] = json.loads(json.dumps(plain))
        return loaded

    def _check(self, form: GeneratedFiles) -> None:
        if self.files + self.valid_files >= _MOST_FILES:
            raise ConfigError(f"files={self.files:,}: at most {_MOST_FILES:,}")
        if self.content != "random" and (self.compressibility, self.duplication) != (1, 1):
            raise ConfigError(f"compressibility and duplication are of random content, not of {self.content}")
        if _format(self.format).single and self.samples_per_file != 1:
            raise ConfigError(
                f"samples_per_file={self.samples_per_file}: a file of format {self.format!r} is one sample"
            )
        if self.compression is not None and self.compression.partition(":")[0] not in form.compressions:
            known = ", ".join(form.compressions) or "none"
            raise ConfigError(f"compression={self.compression!r}: {self.format} is written with: {known}")
        if self.compression is not None and ":" in self.compression:
            name, _, level = self.compression.partition(":")
            if not (level.isdecimal() and form.levels and 1 <= int(level) <= _LEVELS.get(name, 0)):
                raise ConfigError(f"compression={self.compression!r}: {name} has no such level in {self.format}")
        if not _FOLDER.fullmatch(self.prefix):
            raise ConfigError(f"prefix={self.prefix!r}: expected letters, digits, _ and -")
        if self.image_quality > 95:
            raise ConfigError(f"image_quality={self.image_quality}: 1 to 95")
        if self.page_bytes > _MOST_PAGE:
            raise ConfigError(f"page_bytes={self.page_bytes:,}: at most {_MOST_PAGE:,}")
        if self.row_group_size is not None and self.row_group_size < 1:
            raise ConfigError(f"row_group_size={self.row_group_size}: at least 1")
        for name in ("row_group_size", "hdf5_chunks"):
            if getattr(self, name) and name not in form.settings:
                having = [one for one in generated_formats() if name in _generated(one).settings]
                raise ConfigError(f"{name}: {self.format} has no such setting; {' and '.join(having)} have it")
        if unknown := set(self.hashes) - set(hash_names()):
            raise ConfigError(f"hashes: {min(unknown)!r} is unknown; known: {', '.join(hash_names())}")

    def _columns(self, form: GeneratedFiles) -> list[Column]:
        if self.columns:
            if self.record_bytes is not None or self.stdev or self.dims or self.content != "random":
                raise ConfigError("columns say all of a sample: leave record_bytes, stdev, dims and content out")
            return [Column.parse(one) if isinstance(one, str) else one for one in self.columns]
        if self.record_bytes is not None and self.record_bytes < 1:
            raise ConfigError(f"record_bytes={self.record_bytes}: at least 1")
        if self.record_bytes is not None and self.dims:
            raise ConfigError("record_bytes and dims both say how large a sample is: give one")
        if self.content == "images" or form.image:
            if self.record_bytes is not None or self.stdev:
                raise ConfigError("record_bytes and stdev: how large an image is follows from dims and image_quality")
            kind = form.image or ("png" if self.dtype == "png" else "jpeg")
            return [Column(kind if form.extensions else "image", kind, self.dims or (375, 500))]
        if self.content == "text":
            if self.dims:
                raise ConfigError("dims are of numbers and images; of text give record_bytes")
            return [
                Column("txt" if form.extensions else "text", "str", size=self.record_bytes or 1000, stdev=self.stdev)
            ]
        if self.dtype not in NUMBERS:
            raise ConfigError(f"dtype={self.dtype!r} is unknown; known: {', '.join(sorted(NUMBERS))}")
        if self.content == "tokens":
            dtype = ("uint16" if self.vocabulary <= 1 << 16 else "uint32") if self.dtype == "uint8" else self.dtype
            return [Column("input_ids", dtype, self.dims or (self._elements(dtype, 2048),), tokens=True)]
        if self.stdev and not form.arrays:
            return [Column("data", "bytes", size=self.record_bytes or 65536, stdev=self.stdev)]
        name = "x" if self.dlio and self.format == "npz" else "data"
        return [Column(name, self.dtype, self.dims or (self._elements(self.dtype, 65536),))]

    def _elements(self, dtype: str, default: int) -> int:
        size = np.dtype(dtype).itemsize
        if self.record_bytes is None:
            return default
        if self.record_bytes % size:
            raise ConfigError(f"record_bytes={self.record_bytes} is not a multiple of the {size} bytes of {dtype}")
        return self.record_bytes // size

    def _check_columns(self, form: GeneratedFiles) -> None:
        if form.one_column and len(self.fields) > 1:
            names = ", ".join(column.name for column in self.fields)
            raise ConfigError(f"a file of format {self.format!r} holds one column, not {names}")
        for column in self.fields:
            if form.arrays and not column.numeric:
                raise ConfigError(f"column {column.name!r}: {self.format} holds numbers, not {column.dtype}")
            if _format(self.format).text and (
                column.dtype in IMAGES or (column.numeric and column.shape and column.dtype != "uint8")
            ):
                raise ConfigError(
                    f"column {column.name!r}: {self.format} holds numbers, bytes and str, not arrays or images"
                )
            if form.image and (column.dtype != form.image or len(self.fields) > 1):
                raise ConfigError(f"format {self.format!r} holds images, and no columns of one's own")
            if form.dtypes and (column.dtype not in form.dtypes or len(column.shape) > 1):
                raise ConfigError(
                    f"column {column.name!r}: {self.format} holds sequences of {', '.join(form.dtypes)}, not {column.dtype}"
                )
        if self.stdev and form.arrays and self.columns:
            raise ConfigError("stdev is of record_bytes, not of columns")
        for column in self.fields if form.arrays else ():
            check_stdev(f"column {column.name!r}", column.width or 0, self.stdev)


def generated_formats() -> tuple[str, ...]:
    """Names of formats of which synthetic files are made."""
    return tuple(GENERATED)


def _format(name: str) -> Format:
    return get_format(format_name(name))


def _generated(name: str) -> GeneratedFiles:
    """The description of the files that are made of a format.

    Raises:
        ConfigError: there is no such format, or none of its files are made.
    """
    found = GENERATED.get(format_name(name))
    if found is None:
        raise ConfigError(unknown_name("format", name, generated_formats()))
    return found


_LEAST: Final = {
    "files": 1,
    "samples_per_file": 1,
    "stdev": 0,
    "vocabulary": 2,
    "valid_files": 0,
    "subfolders": 0,
    "seed": 0,
    "page_bytes": 1024,
    "hdf5_chunks": 0,
    "image_quality": 1,
}
