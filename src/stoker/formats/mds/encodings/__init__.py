"""The encodings of MDS columns, values to bytes and back, by name: the ones of MDS, and those that users register.

Two names go beyond MDS: ``bool`` and ``bfloat16``, also as ``ndarray:bool:...`` and
``ndarray:bfloat16:...``. They are written under these names, so the reference reader refuses such a
column with an error and can not misread it; use ``uint8`` and ``float32`` where it must read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import EllipsisType
from typing import Any, Final

from stoker.arguments import checked
from stoker.concurrency.forks import ProcessLock
from stoker.display import unknown_name
from stoker.errors import ConfigError, FormatError
from stoker.formats.mds.encodings import arrays, images, scalars, text
from stoker.formats.mds.encodings.base import Encoding, RawColumn, UnfitValueError

__all__ = [
    "Encoding",
    "RawColumn",
    "UnfitValueError",
    "encoding_names",
    "get_encoding",
    "register_encoding",
]


_Factory = Callable[[str], Encoding]
"""Builds an encoding from its configuration: what follows the first colon of its name, or ``""``."""

_CACHE_LIMIT = 4096


def _single(encoding: Encoding) -> _Factory:
    def build(config: str) -> Encoding:
        return type(encoding).from_config(config) if config else encoding

    return build


def _builtins() -> dict[str, _Factory]:
    raw, jpeg, png = images.RawImage(), images.ImageFile("jpeg"), images.ImageFile("png")
    plain: list[Encoding] = [
        text.Bytes(),
        text.Str(),
        scalars.Int(),
        *(scalars.IntScalar(f"{sign}int{bits}") for sign in ("u", "") for bits in (8, 16, 32, 64)),
        *(scalars.FloatScalar(f"float{bits}") for bits in (16, 32, 64)),
        text.StrInt(),
        text.StrFloat(),
        text.StrDecimal(),
        raw,
        jpeg,
        png,
        *(images.ImageList(element) for element in (raw, jpeg, png)),
        images.JpegArray("jpeg_array"),
        images.JpegArray("jpegarray"),
        text.Pickle(),
        text.Json(),
        scalars.Bool(),
        scalars.BFloat16(),
    ]
    factories = {encoding.name: _single(encoding) for encoding in plain}
    factories["ndarray"] = arrays.parse_ndarray
    return factories


_BUILTINS = _builtins()
_registered: dict[str, _Factory] = {}
# Those registered in place of built-in ones.
_replaced: dict[str, _Factory] = {}
_cache: dict[str, Encoding] = {}
_lock = ProcessLock()
_generation = 0


def encoding_names() -> list[str]:
    """Names of all known encodings, without parameters, sorted."""
    return sorted({*_BUILTINS, *_registered})


# Types as they are called elsewhere.
_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("string", "text", "large_string", "utf8"), "str"),
    **dict.fromkeys(("integer", "long"), "int"),
    **dict.fromkeys(("float", "single"), "float32"),
    **dict.fromkeys(("half",), "float16"),
    **dict.fromkeys(("double",), "float64"),
    **dict.fromkeys(("boolean",), "bool"),
    **dict.fromkeys(("binary", "large_binary", "blob"), "bytes"),
    **dict.fromkeys(("list", "dict", "struct", "object"), "json"),
    **dict.fromkeys(("array", "numpy", "tensor"), "ndarray"),
    **dict.fromkeys(("image", "jpg"), "jpeg"),
}


def get_encoding(name: str) -> Encoding:
    """The encoding that a column's entry in the index names, such as ``int`` or ``ndarray:uint16:2048``.

    FormatError if there is no such encoding, or it does not take these parameters.
    """
    found = _cache.get(name)
    if found is not None:
        return found
    base, colon, config = name.partition(":")
    factory = _BUILTINS.get(base) or _registered.get(base)
    if factory is None or (colon and not config):
        raise FormatError(
            f"{unknown_name('encoding', name, encoding_names(), _ELSEWHERE.get(base.lower()))}. "
            "Register your own with stoker.formats.mds.encodings.register_encoding before writing or reading."
        )
    try:
        encoding = factory(config)
    except ValueError as error:
        raise FormatError(f"encoding {name!r}: {error}") from error
    with _lock:
        if len(_cache) >= _CACHE_LIMIT:  # names come from files, so their number must not grow without bound
            _cache.clear()
        _cache[name] = encoding
    return encoding


class UnknownEncoding(Encoding):
    """An encoding of a writer's own under a built-in name, which the index tells by its width. Its values can not be read.

    ``name``: as the index has it. ``size``: of each value; ``None`` where they differ.
    """

    def __init__(self, name: str, size: int | None) -> None:
        self.name, self.size = name, size

    def encode(self, value: Any) -> bytes:
        raise NotImplementedError

    @property
    def refusal(self) -> str:
        """The error of reading its values, with the remedy."""
        width = "differing widths" if self.size is None else f"{self.size} bytes"
        return (
            f"{self.name!r} with values of {width} is an encoding of the writer's own under a built-in name: register it, "
            f"register_encoding({self.name.partition(':')[0]!r}, ..., replace=True) of stoker.formats.mds.encodings, or "
            "leave the column out by columns="
        )

    def decode(self, data: bytes) -> Any:  # noqa: ARG002 - as the base class has it
        raise ConfigError(self.refusal)


def mds_encoding(name: str, size: int | EllipsisType | None = ...) -> Encoding:
    """The encoding of a column of MDS, where one that was registered in the place of a built-in one goes first.

    FormatError: see :func:`get_encoding`. ``name``: as :func:`get_encoding` takes it. ``size``: width of its values by the
    index, which tells it from another one of that name; without it, it is to be written.
    """
    base, _, config = name.partition(":")
    if base in _replaced:
        own = _replaced[base](config)
        if size in (own.size, ...):
            return own
    found = get_encoding(name)
    return found if size in (found.size, ...) else _unknown(name, size)


@lru_cache(maxsize=256)
def _unknown(name: str, size: int | None) -> Encoding:
    return UnknownEncoding(name, size)


def others_registered() -> bool:
    """Return whether a user has registered an encoding in this process."""
    return bool(_registered or _replaced)


def registered() -> int:
    """A number that is another when an encoding was registered since."""
    return _generation


@checked
def register_encoding(name: str, encoding: type[Encoding] | Encoding, *, replace: bool = False) -> None:
    """Make an encoding of your own known to every writer and reader of this process.

    The index stores only the name, so a program that reads the data registers the same encoding first; other
    readers of MDS refuse such a column. A class that takes parameters (``name:config``) defines
    ``from_config``.

    Args:
        name: what columns are declared with; no colon.
        encoding: an instance, or a class that is built without arguments.
        replace: allow another encoding in place of one registered before, or of a built-in one: of MDS columns of that name
            whose values have the width of this one, by the index, and of those that are written.

    Raises:
        ConfigError: the name is taken or not allowed, or this is not an encoding.
    """
    if not name or ":" in name or name.strip() != name:
        raise ConfigError(f"an encoding's name is not empty and has no colon or outer space, got {name!r}")
    if name in _BUILTINS and not replace:
        raise ConfigError(
            f"{name!r} is a built-in encoding; choose another name for yours, or pass replace=True, for MDS that a program "
            "of yours has written so"
        )
    instance = encoding() if isinstance(encoding, type) else encoding
    if not isinstance(instance, Encoding):
        raise ConfigError(f"expected a subclass of stoker's Encoding or an instance, got {encoding!r}")
    instance.name = instance.name or name
    global _generation
    with _lock:
        _generation += 1
        if name in _BUILTINS:
            _replaced[name] = _single(instance)
            return
        if name in _registered and not replace:
            raise ConfigError(f"encoding {name!r} is registered already; pass replace=True to replace it")
        _registered[name] = _single(instance)
        for cached in [key for key in _cache if key.partition(":")[0] == name]:
            del _cache[cached]
