"""Values as a reader hands them out, through the caller's function, to values that the column's encoding takes."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.concurrency.user_code import pass_exits
from stoker.conversion.schema import Reading
from stoker.display import with_article
from stoker.errors import ConfigError, EncodingError, TransformError
from stoker.formats.common.container import fixed_kind
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.formats.one_file import SIGNATURES
from stoker.formats.parquet.columns import list_dtype
from stoker.formats.unstacked import rows_of
from stoker.lazy import named_object
from stoker.reading.bad_samples import BadSamples
from stoker.storage.files.regular import read_regular
from stoker.streams.compare import null_mask
from stoker.types import Array, Batch, Column, Sample

Transform: TypeAlias = Callable[[Sample], Sample | list[Sample] | None]


@dataclass(frozen=True, slots=True)
class SampleHandling:
    """The options of a conversion that act on samples.

    ``bad_samples``: the limits of bad samples, which are left out; ``None``: they are errors. No part of the identity: what
    is written of the good samples is the same.
    """

    transform: Transform | None
    decode: bool
    fill: Mapping[str, Any]
    drop_nulls: bool
    bad_samples: BadSamples | None

    @property
    def identity(self) -> dict[str, Any]:
        """Its part of the identity of a conversion, for JSON."""
        return {
            "transform": identity_of(self.transform),
            "decode": self.decode,
            "fill": repr(sorted(self.fill.items())),
            "drop_nulls": self.drop_nulls,
        }

    def prepared(self, batch: Batch, allowed: Collection[str] | None) -> tuple[Batch, Array | None]:
        """Samples as they are written: nulls filled, or the samples that have any left out. NaN and NaT are nulls, too.

        Also gives which rows are left (int64), or ``None`` for all. Other nulls than NaN and NaT are an
        :class:`UnfitValueError`, unless their column is ``allowed`` to have some. With ``None``, samples as a transform gets
        them, which may well mend nulls: they are only filled.
        """
        kept: Array | None = None
        made: Batch = {}
        for name, values in batch.items():
            made[name] = values
            missing = null_mask(values)
            if missing is None:
                continue
            if name in self.fill:
                made[name] = _filled(values, missing, self.fill[name], name)
            elif allowed is None:
                continue
            elif self.drop_nulls:
                kept = ~missing if kept is None else kept & ~missing
            elif name not in allowed and not isinstance(values, np.ndarray):
                row = next((row for row, value in enumerate(values) if value is None), None)
                if row is not None:
                    raise UnfitValueError(
                        f"it is null: fill={{{name!r}: ...}} gives nulls a value, drop_nulls=True leaves such samples out",
                        row=row,
                        column=name,
                    )
        if kept is None:
            return made, None
        rows = np.flatnonzero(kept)
        return {name: rows_of(values, rows) for name, values in made.items()}, rows


def load_transform(given: Transform | str | None) -> Transform | None:
    """The function itself, or what ``package.module:function`` names."""
    if given is None or callable(given):
        return given
    found = named_object(given, "transform=")
    if not callable(found):
        raise ConfigError(f"transform={given!r} is {with_article(type(found).__name__)}, not a function")
    made: Transform = found
    return made


def identity_of(transform: Transform | None) -> str:
    """Identity of a function: its name and a digest of its source. A resumed conversion compares it."""
    if transform is None:
        return ""
    inner = inspect.unwrap(getattr(transform, "func", transform))
    name = f"{getattr(inner, '__module__', '')}:{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    try:
        text = inspect.getsource(inner if not hasattr(inner, "__code__") else inner.__code__)
    except (OSError, TypeError):
        try:
            text = inspect.getsource(type(inner))
        except (OSError, TypeError):
            text = ""
    bound = repr((getattr(transform, "args", ()), getattr(transform, "keywords", {}))) if inner is not transform else ""
    module = name.partition(":")[0]
    name = name if module not in ("__main__", "__mp_main__") else f"__main__:{name.partition(':')[2]}"
    return f"{name}#{hashlib.sha256((text + bound).encode()).hexdigest()[:16]}"


def apply(transform: Transform, sample: Sample, where: Callable[[], str]) -> list[Sample]:
    """Apply the function to a sample: any number of samples."""
    try:
        made = transform(sample)
    except BaseException as error:
        pass_exits(error)
        raise TransformError(f"{where()}: the transform raised {type(error).__name__}: {error}") from error
    if made is None:
        return []
    several = [made] if isinstance(made, Mapping) else made
    if not isinstance(several, list | tuple) or not all(isinstance(one, Mapping) for one in several):
        raise EncodingError(
            f"{where()}: the transform returned {with_article(type(made).__name__)}, not a sample (a dict), a list of "
            "samples or None"
        )
    return list(several)


_WHOLE: Final = "int", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "str_int"
_FLOATS: Final = "float16", "float32", "float64", "str_float"


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """A column, from the source to the destination.

    Attributes:
        encoding: as an MDS index names it.
        reading: what is done to the values that the reader hands out.
        arrow: the ``pyarrow.DataType`` of the source, kept where the destination is Parquet.
        chosen: whether the encoding was chosen by the caller, so that values are made to fit it.
        folder: of the source, where paths of files begin; only for ``"file"``.
    """

    name: str
    source: str
    encoding: str
    reading: Reading = "plain"
    arrow: Any = None
    chosen: bool = False
    folder: str = ""


def adapted(values: Column, plan: ColumnPlan) -> Column:
    """The values of a column, as its encoding takes them; ``None`` stays.

    ``row`` and ``column`` of an :class:`UnfitValueError` say which value can not be made what it should be.
    """
    if plan.arrow is not None:
        return values
    if plan.reading == "text":
        values = _texts(values)
    elif plan.reading == "file":
        values = _each(values, plan, lambda value: _file(value, plan.folder))
    elif plan.reading == "decode":
        values = _decoded(values, plan)
    elif plan.reading == "picture":
        values = _each(values, plan, _picture)
    if plan.chosen or plan.reading == "array":
        values = _cast(values, plan)
    return values


def _filled(values: Column, missing: Array, value: Any, name: str) -> Column:
    if not isinstance(values, np.ndarray):
        return [value if null else one for one, null in zip(values, missing.tolist(), strict=True)]
    filled = values.copy()
    try:
        filled[missing] = value
    except (ValueError, TypeError, OverflowError) as error:
        told = f"fill={{{name!r}: {value!r}}}: the column holds {values.dtype}, and can not hold this value: {error}"
        raise UnfitValueError(told, row=int(missing.argmax()), column=name) from None
    return filled


def _each(values: Column, plan: ColumnPlan, make: Callable[[Any], Any]) -> list[Any]:
    made: list[Any] = []
    for row, value in enumerate(values):
        try:
            made.append(None if value is None else make(value))
        except (ValueError, TypeError, OverflowError) as error:
            raise UnfitValueError(str(error), row=row, column=plan.name) from error
    return made


def _texts(values: Column) -> list[Any]:
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "m":
            return [None if text == "NaT" else text for text in values.astype(str).tolist()]
        return [None if text == "NaT" else text for text in np.datetime_as_string(values).tolist()]
    return [
        None
        if value is None
        else value
        if isinstance(value, str)
        else value.isoformat()
        if hasattr(value, "isoformat")
        else str(np.datetime64(0, "ns") + value).partition("T")[2]  # a time of day, of nanoseconds
        if isinstance(value, np.timedelta64)
        else str(value)
        for value in values
    ]


def _file(value: Any, folder: str) -> bytes:
    """The bytes of an image or a sound as Hugging Face's ``datasets`` keep them."""
    if isinstance(value, bytes):
        return value
    data, path = value.get("bytes"), value.get("path")
    if data is not None:
        return bytes(data)
    if not path:
        raise UnfitValueError("it has neither bytes nor a path")
    if "://" in path:
        raise UnfitValueError(f"its bytes are not in the dataset, but at {path!r}: download them into it first")
    try:
        return read_regular(os.path.join(folder, path))
    except OSError as error:
        raise UnfitValueError(
            f"its bytes are not in the dataset, but in a file that can not be read: {error}"
        ) from None


def _picture(value: Any) -> Any:
    if not bytes(value[:8]).startswith((SIGNATURES["jpeg"], SIGNATURES["png"])):
        raise UnfitValueError(f"expected the bytes of a JPEG or PNG file, got {describe(value)}")
    return value


def _decoded(values: Column, plan: ColumnPlan) -> Column:
    """Values of a Parquet file that stoker wrote, which names each column's encoding."""
    encoding = get_encoding(plan.encoding)
    if encoding.size is not None:
        dtype, shape = fixed_kind(encoding)
        if isinstance(values, np.ndarray) and values.dtype != object:
            stored = np.ascontiguousarray(values, dtype).reshape(len(values), -1)
            return encoding.decode_fixed(stored.view(np.uint8).reshape(len(values), encoding.size))
        return _each(values, plan, lambda value: np.asarray(value, dtype).reshape(shape))
    if encoding.verbatim or plan.encoding in ("jpeg", "png", "str") or list_dtype(encoding) is not None:
        return values
    return _each(
        values, plan, lambda value: encoding.decode(value.encode() if isinstance(value, str) else bytes(value))
    )


def _cast(values: Column, plan: ColumnPlan) -> Column:
    """Values made to fit an encoding, where nothing of them is lost by that."""
    name = plan.encoding
    if name.startswith("ndarray:"):
        _, dtype, *rest = name.split(":")
        if dtype == "bfloat16":
            return values
        shape = tuple(int(size) for size in rest[0].split(",")) if rest else None
        if isinstance(values, np.ndarray) and values.ndim > 1:
            values = _exact(values, dtype)
            return (
                values.reshape(len(values), *shape) if shape and values.size == _count(shape, len(values)) else values
            )
        return _each(values, plan, lambda value: _array(value, dtype, shape))
    if isinstance(values, np.ndarray):
        if name in _WHOLE and values.dtype.kind == "f" and not np.array_equal(values, np.trunc(values)):
            row = int(np.flatnonzero(values != np.trunc(values))[0])
            raise UnfitValueError(f"{values[row]} is not a whole number", row=row, column=plan.name)
        if name in _WHOLE and values.dtype.kind in "fbmM":
            return values.astype(np.int64)
        return [str(value) for value in values.tolist()] if name == "str" else values
    if name in _WHOLE:
        return _each(values, plan, _whole)
    if name in _FLOATS:
        return _each(values, plan, float)
    if name == "str":
        return _each(values, plan, _text)
    if name in ("jpeg", "png"):
        return _each(values, plan, lambda value: _image(value, name))
    if name == "bytes":
        return _each(values, plan, lambda value: value.encode() if isinstance(value, str) else value)
    return values


def _whole(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError(f"{value!r} is not a whole number")
    return number


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _image(value: Any, kind: str) -> bytes:
    """The file of an image; one of another kind is decoded, and encoded as this one."""
    encoding = get_encoding(kind)
    try:
        return encoding.encode(value)
    except UnfitValueError:
        return encoding.encode(encoding.decode(bytes(value)))


def _array(value: Any, dtype: str, shape: Sequence[int] | None) -> Array:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError("a list of lists of different lengths is not an array: declare the column json") from None
    if not array.size:
        array = array.astype(dtype)
    elif array.dtype.kind not in "biuf":
        raise ValueError(f"expected an array of {dtype}, got {describe(value)}")
    array = _exact(array, dtype)
    return array.reshape(shape) if shape is not None and array.size == _count(shape, 1) else array


def _exact(array: Array, dtype: str) -> Array:
    """The array in another dtype; floats may be rounded, whole numbers not changed."""
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        made = array.astype(wanted)
    if wanted.kind in "iub" and not np.array_equal(made, array):
        raise UnfitValueError(f"its numbers do not fit {dtype}")
    return made


def _count(shape: Sequence[int], rows: int) -> int:
    return int(np.prod(shape, dtype=np.int64)) * rows
