"""Arguments of a conversion, checked before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from stoker.conversion.open_source import Url
from stoker.conversion.sinks import ShardSettings, target_writer
from stoker.display import counted
from stoker.errors import ConfigError
from stoker.formats.registry import format_name
from stoker.reading.bad_samples import VARIABLE, BadSamples, OnBadSample
from stoker.storage import is_local
from stoker.writing.base import check_hash_names, check_size_limit

_LARGEST: Final = 1 << 30


def check_work(processes: int | None, shard_samples: int | None) -> None:
    """Check that there can be work."""
    if processes is not None and processes < 1:
        raise ConfigError(f"processes={processes}: at least 1")
    if shard_samples is not None and shard_samples < 1:
        raise ConfigError(f"shard_samples={shard_samples}: at least 1")


def settings_of(
    to: str,
    compression: str | None,
    hashes: str | Sequence[str] | None,
    size_limit: int | str,
    shard_samples: int | None,
) -> ShardSettings:
    """Settings of the shards; see :func:`~stoker.conversion.convert.convert`."""
    limit = check_size_limit(size_limit)
    if limit is None or limit > _LARGEST:
        raise ConfigError(f"size_limit={size_limit!r}: above 0, and at most 1 GiB, as shards are made in memory")
    to = format_name(to)
    names = () if hashes is None and not target_writer(to).indexed else tuple(check_hash_names(hashes))
    return ShardSettings(to, compression, names, limit, shard_samples)


def check_bad_samples(given: OnBadSample | BadSamples) -> BadSamples | None:
    """The treatment of bad samples; ``None`` where they are errors."""
    settings = BadSamples.of(given)
    if settings is not None and settings.on_bad_sample == "replace":
        raise ConfigError(
            "on_bad_sample='replace': a conversion writes each sample once, so none can stand in the place of another. Use "
            f"'skip', which leaves bad ones out, or 'raise' (the argument, or {VARIABLE} in the environment)"
        )
    return settings


def check_listed(settings: BadSamples | None, bad: int, destination: str) -> None:
    """Check that a finished conversion is one that was asked for.

    Bad samples that it left out are an error where none may be, or where they are not in the list.
    """
    if bad and settings is None:
        raise ConfigError(
            f"{destination} holds a finished conversion that left out {counted(bad, 'bad sample')}, which "
            "on_bad_sample='raise' does not allow: convert to another place, or remove what is there"
        )
    if bad and settings is not None and settings.file is not None and not os.path.getsize(settings.file):
        raise ConfigError(
            f"{destination} holds a finished conversion that left out {counted(bad, 'bad sample')}, and "
            f"{os.fspath(settings.file)} does not list them: name the list that it wrote, or convert to another place"
        )


def parts_of(split: Mapping[str, float | Fraction] | None) -> tuple[tuple[str, Fraction, Fraction], ...]:
    """Name and bounds of each part of a split; one part without a name where there is none."""
    if split is None:
        return (("", Fraction(0), Fraction(1)),)
    parts: list[tuple[str, Fraction, Fraction]] = []
    low = Fraction(0)
    for name, share in split.items():
        if not name or not name.strip("._") or "/" in name or name.startswith((".", "_")):
            raise ConfigError(f"split: {name!r} can not be the name of a directory")
        try:
            exact = share if isinstance(share, Fraction) else Fraction(str(share))
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"split: {name!r} has the share {share!r}: expected a number above 0") from None
        if exact <= 0:
            raise ConfigError(f"split: {name!r} has the share {share!r}: expected a number above 0")
        parts.append((name, low, low + exact))
        low += exact
    if low != 1:
        raise ConfigError(f"split: the shares make {float(low):g}, not 1")
    return tuple(parts)


def target_of(source: Url | Sequence[Url], destination: Url) -> str:
    """The destination, absolute."""
    local = is_local(destination)
    target = os.path.abspath(local) if local is not None else os.fspath(destination).rstrip("/")
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        folder = is_local(one)
        root = os.path.abspath(folder) if folder is not None else os.fspath(one).rstrip("/")
        if target == root or target.startswith(f"{root}/"):
            raise ConfigError(f"the destination {target} lies in the source: convert to another place")
    return target
