"""Quarantine: samples which a run leaves out, by lines of a file that are added while training goes on, or by values."""

from __future__ import annotations

import json
import os
import reprlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from stoker.display import counted
from stoker.errors import ConfigError, ObjectNotFoundError, StateError
from stoker.integers import is_count
from stoker.order.left_out import Exclusion
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.subsets import POSITIONS, QuarantineSource, SkipIds, SkipSteps
from stoker.storage.files.regular import read_regular
from stoker.types import Ids

_PATIENCE: Final = 1.0
"""Seconds to wait for the end of a line that somebody is writing."""
_FORMS: Final = (
    'an id; {"sample": id}, with more keys as ids_of and where() return them; {"epoch": 0, "steps": [first, end], '
    '"global_batch": samples of all ranks in a step}; or {"epoch": 0, "positions": [first, end]}'
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The lines that hold. ``lines``: the first so many. ``digest``: xxh64 of them, as a signed number."""

    lines: int
    digest: int

    def as_dict(self) -> dict[str, Any]:
        """As states hold it."""
        return {"lines": self.lines, "xxh64": f"{self.digest & (1 << 64) - 1:016x}"}

    @classmethod
    def read(cls, found: Any) -> Mark:
        """The mark of a state. StateError if it is none."""
        try:
            lines, digest = found["lines"], int(found["xxh64"], 16)
            if not is_count(lines) or not 0 <= digest < 1 << 64:
                raise ValueError(found)
        except (KeyError, TypeError, ValueError):
            raise StateError(f"this state's quarantine should have lines and xxh64, found {found!r}") from None
        return cls(lines, digest - (digest >> 63 << 64))


class Quarantine:
    """The samples that lines name, up to one of them.

    ConfigError if there is no such file. ``source``: the file: in each line an id, as ``dataset[id]`` takes it, or an object
    of JSON. Or values, which are as good as the lines that they stand for: a state of the one can be resumed with the other.
    """

    def __init__(self, source: QuarantineSource) -> None:
        self._path: Path | None = None
        self._fixed: list[bytes] = []
        if isinstance(source, str | os.PathLike):
            if "://" in os.fspath(source):
                raise ConfigError(
                    f"quarantine={str(source)!r}: give the path of a file, as each machine has it, and no URL"
                )
            self._path = Path(os.path.abspath(os.path.expanduser(os.fspath(source))))
            self.told = f"quarantine={str(self._path)!r}"
        else:
            values = [source] if isinstance(source, SkipIds | SkipSteps) else list(source)
            self._fixed = [line for value in values for line in _lines_of(value)]
            self.told = f"quarantine={reprlib.repr(values)}"
        self._parsed: tuple[Mark, Ids, dict[int, list[tuple[int, int]]]] | None = None
        self._lines()

    def newest(self, before: Mark | None = None) -> Mark:
        """All lines that there are now.

        ConfigError if lines of that were changed or removed, or the file can not be read. ``before``: what held until now,
        which is still to hold.
        """
        lines = self._lines()
        if before is not None:
            self.check(before, lines)
        return _mark(lines)

    def check(self, mark: Mark, lines: list[bytes] | None = None) -> list[bytes]:
        """See that the lines are there that a mark is of. ConfigError if they are not. Gives these lines."""
        lines = self._lines() if lines is None else lines
        if len(lines) < mark.lines or _mark(lines[: mark.lines]) != mark:
            instead = (
                "add lines at its end, change and remove none, and let all ranks read the same file"
                if self._path
                else "add a further SkipIds or SkipSteps at the list's end, change none, and give all ranks the same"
            )
            raise ConfigError(
                f"{self.told} has {counted(len(lines), 'line')}, and the first {mark.lines} of them are not those that this "
                f"run has left samples out by, on this rank or another: {instead}"
            )
        return lines[: mark.lines]

    def left_out(
        self, table: ShardTable, url_of: Callable[[int], str | None], epoch: int, mark: Mark | None = None
    ) -> Exclusion:
        """The samples that an epoch leaves out.

        Args:
            table: where the ids of each shard begin.
            url_of: the URL of a shard.
            epoch: its number.
            mark: the lines that hold; default: all.

        Raises:
            ConfigError: a line is not understood, or names a sample that is not there or lies elsewhere.
        """
        lines = self._lines() if mark is None else None
        mark = _mark(lines) if lines is not None else mark
        assert mark is not None
        if self._parsed is None or self._parsed[0] != mark:
            ids, ranges = _parse(self._where, self.check(mark, lines), table, url_of)
            self._parsed = mark, ids, ranges
        _, ids, ranges = self._parsed
        begins: list[int] = []
        ends: list[int] = []
        for begin, end in sorted(ranges.get(epoch, ())):
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return Exclusion(ids, np.array(begins, np.int64), np.array(ends, np.int64))

    def _where(self, number: int) -> str:
        """A line, for messages."""
        return f"{self.told}, line {number}" if self._path else self.told

    def _lines(self) -> list[bytes]:
        if self._path is None:
            return self._fixed
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                content = read_regular(self._path)
            except ObjectNotFoundError as error:
                raise ConfigError(f"{self.told} can not be read: {error}") from error
            except OSError as error:
                raise ConfigError(
                    f"{self.told} can not be read: {error}. Make an empty file where nothing is left out yet"
                ) from error
            if not content or content.endswith(b"\n"):
                return content.split(b"\n")[:-1]
            if time.monotonic() > until:
                raise ConfigError(
                    f"{self.told}: the last line does not end, so that it may be half of one: end it with a newline"
                )
            time.sleep(0.05)


def check_quarantine(state: Mapping[str, Any], quarantine: Quarantine | None) -> Mark | None:
    """The lines that a state's run has left samples out by; ``None`` where it says nothing of it.

    StateError if there is no quarantine here, or it has no longer these lines.
    """
    if "quarantine" not in state:
        return None
    mark = Mark.read(state["quarantine"])
    if quarantine is None:
        if not mark.lines:
            return None
        raise StateError(
            f"this state's run leaves samples out by {counted(mark.lines, 'line')} of a quarantine: give quarantine= with "
            "them, too"
        )
    try:
        quarantine.check(mark)
    except ConfigError as error:
        raise StateError(f"this state was taken with other lines: {error}") from None
    return mark


def _lines_of(value: SkipIds | SkipSteps) -> list[bytes]:
    if isinstance(value, SkipSteps):
        return [json.dumps(value.as_dict()).encode()]
    return [str(number).encode() for number in value.ids.tolist()]


def _mark(lines: list[bytes]) -> Mark:
    digest = xxhash.xxh64_intdigest(b"".join(line + b"\n" for line in lines))
    return Mark(len(lines), digest - (digest >> 63 << 64))


def _parse(
    where: Callable[[int], str], lines: list[bytes], table: ShardTable, url_of: Callable[[int], str | None]
) -> tuple[Ids, dict[int, list[tuple[int, int]]]]:
    """Ids, rising, and ranges of positions by epoch."""
    ids: list[int] = []
    ranges: dict[int, list[tuple[int, int]]] = {}
    described: list[tuple[int, int, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if isinstance(found, dict) and (
                len({"sample", "steps", "positions"} & found.keys()) > 1 or {"sample", "epoch"} <= found.keys()
            ):
                raise ValueError(found)
            if isinstance(found, dict) and "sample" not in found:
                epoch, begin, end = _range(found)
                ranges.setdefault(epoch, []).append((begin, end))
                continue
            sample = found["sample"] if isinstance(found, dict) else found
            if type(sample) is not int:
                raise TypeError(sample)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                f"{where(number)}: expected {_FORMS}; found {line[:80].decode(errors='replace')!r}"
            ) from None
        if not 0 <= sample < table.total:
            raise ConfigError(f"{where(number)}: sample {sample} is not in a dataset of {table.total} samples")
        ids.append(sample)
        if isinstance(found, dict):
            described.append((number, sample, found))
    urls = _ShardUrls(table, url_of)
    for number, sample, found in described:
        _check_described(where(number), found, table, urls, sample)
    return np.unique(np.array(ids, np.int64)), ranges


def _range(found: dict[str, Any]) -> tuple[int, int, int]:
    """Epoch, and the positions of a range. ValueError or KeyError if it is none."""
    kind = "steps" if "steps" in found else "positions"
    each = found["global_batch"] if kind == "steps" else 1
    begin, end = found[kind]
    numbers = (found["epoch"], begin, end, each)
    if not all(type(one) is int and one >= 0 for one in numbers) or not begin < end or not 0 < end * each < POSITIONS:
        raise ValueError(found)
    return int(found["epoch"]), int(begin * each), int(end * each)


class _ShardUrls:
    """Compares the URLs of lines with those of the shards of a dataset.

    The dataset may have been copied since a line was written, so that a URL that no shard has is good if the file's name is
    the shard's. The URL of another shard is not: streams may be listed in another order.
    """

    def __init__(self, table: ShardTable, url_of: Callable[[int], str | None]) -> None:
        self._table = table
        self._url_of = url_of
        self._all: frozenset[str] | None = None

    def told(self, shard: int) -> str:
        """The URL of a shard, for messages."""
        url = self._url_of(shard)
        return "" if url is None else f", {url}"

    def agree(self, told: str, shard: int) -> bool:
        """Whether a shard may be the one that a line tells of."""
        url = self._url_of(shard)
        if url is None or _stored(told) == _stored(url):
            return True
        if _names(url).isdisjoint(_names(told)):
            return False
        if self._all is None:
            self._all = frozenset(_stored(self._url_of(other) or "") for other in range(len(self._table)))
        return _stored(told) not in self._all


def _check_described(where: str, found: dict[str, Any], table: ShardTable, urls: _ShardUrls, sample: int) -> None:
    """See that a sample lies where a line says. ConfigError if it lies elsewhere, so that the line is of other data."""
    shards, rows = table.locate(np.array([sample], np.int64))
    shard, row = int(shards[0]), int(rows[0])
    other = bool(found.get("url")) and not urls.agree(str(found["url"]), shard)
    if found.get("row", row) != row or found.get("shard", shard) not in (shard, None) or other:
        raise ConfigError(
            f"{where}: sample {sample} of this dataset lies in row {row} of shard {shard}{urls.told(shard)}, and by "
            f"the line in row {found.get('row')} of shard {found.get('shard')}, {found.get('url')}: it is of other data"
        )


def _names(url: str) -> set[str]:
    """The names of a shard's file in a URL as errors have it: ``.../a.mds``, or ``CACHE/a.mds (from .../a.mds.zstd)``."""
    return {one.removesuffix(")").rpartition("/")[2] for one in url.split(" (from ")}


def _stored(url: str) -> str:
    """The URL of a shard where it is stored, of a URL as errors have it; a path is absolute."""
    copy, _, stored = url.rpartition(" (from ")
    url = (stored.removesuffix(")") if copy else url).removeprefix("file://")
    return url if "://" in url else os.path.abspath(url)
