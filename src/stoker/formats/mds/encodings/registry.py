"""Encodings by name: the ones of MDS, stoker's two extensions, and those that users register."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from stoker.arguments import checked
from stoker.display import unknown_name
from stoker.errors import ConfigError, FormatError
from stoker.formats.mds.encodings import arrays, images, scalars, text
from stoker.formats.mds.encodings.base import Encoding

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
_cache: dict[str, Encoding] = {}
_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held the old one


os.register_at_fork(after_in_child=_after_fork_in_child)


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

    Raises:
        FormatError: there is no such encoding, or it does not take these parameters.
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


def others_registered() -> bool:
    """Whether this process knows encodings that are not stoker's own."""
    return bool(_registered)


@checked
def register_encoding(name: str, encoding: type[Encoding] | Encoding, *, replace: bool = False) -> None:
    """Make an encoding of your own known to every writer and reader of this process.

    The index stores only the name, so a program that reads the data registers the same encoding first; other
    readers of MDS refuse such a column. A class that takes parameters (``name:config``) defines
    ``from_config``.

    Args:
        name: what columns are declared with; no colon, not a built-in name.
        encoding: an instance, or a class that is built without arguments.
        replace: allow another encoding in place of one registered before.

    Raises:
        ConfigError: the name is taken or not allowed, or this is not an encoding.
    """
    if not name or ":" in name or name.strip() != name:
        raise ConfigError(f"an encoding's name is not empty and has no colon or outer space, got {name!r}")
    if name in _BUILTINS:
        raise ConfigError(f"{name!r} is a built-in encoding; choose another name for yours")
    instance = encoding() if isinstance(encoding, type) else encoding
    if not isinstance(instance, Encoding):
        raise ConfigError(f"expected a subclass of stoker's Encoding or an instance, got {encoding!r}")
    instance.name = instance.name or name
    with _lock:
        if name in _registered and not replace:
            raise ConfigError(f"encoding {name!r} is registered already; pass replace=True to replace it")
        _registered[name] = _single(instance)
        for cached in [key for key in _cache if key.partition(":")[0] == name]:
            del _cache[cached]
