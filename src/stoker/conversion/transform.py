"""The caller's function that maps samples."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stoker.concurrency.user_code import pass_exits
from stoker.display import with_article
from stoker.errors import ConfigError, EncodingError, TransformError
from stoker.types import Sample

Transform: TypeAlias = Callable[[Sample], Sample | list[Sample] | None]


def load_transform(given: Transform | str | None) -> Transform | None:
    """The function itself, or what ``package.module:function`` names. The current directory is searched, too.

    Raises:
        ConfigError: there is no such function.
    """
    if given is None or callable(given):
        return given
    module, colon, name = given.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"transform={given!r}: expected package.module:function")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"transform={given!r} can not be imported: {error}") from error
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
    """Apply the function to a sample: any number of samples.

    Raises:
        TransformError: it raised an error; names the sample.
        EncodingError: it returned something else; names the sample.
    """
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
