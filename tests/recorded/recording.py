"""How a run is recorded: begun, stopped, resumed in another world until the epoch's end, and into the next epoch.

The digests are of what comes, step by step, in all ranks. What a run refuses is recorded as well: the error's class and text.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import StokerError

__all__ = ["Recorded", "Run", "close_all", "digest_of", "numbers_of_samples"]

_NEXT: Final = 3
"""Steps of the epoch after the one that was resumed."""
_MOST: Final = 60
"""Steps of an epoch, at the most: some loaders never end."""
Recorded = dict[str, Any]


def _feed(digest: Any, value: Any) -> None:
    """Add a value, with its type, to a digest."""
    if type(value).__module__ == "torch" and hasattr(value, "numpy"):
        digest.update(b"tensor")
        value = value.numpy()
    if isinstance(value, dict):
        digest.update(b"{%d" % len(value))
        for name, one in value.items():
            _feed(digest, name)
            _feed(digest, one)
    elif isinstance(value, list | tuple):
        digest.update(b"[%d" % len(value))
        for one in value:
            _feed(digest, one)
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        if value.dtype.hasobject:
            _feed(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    else:
        plain = bytes(value) if isinstance(value, memoryview | bytearray) else value
        digest.update(f"{type(plain).__name__} {plain!r};".encode())


def digest_of(value: Any) -> str:
    """Twelve hexadecimal digits of a value."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()[:12]


def numbers_of_samples(item: Any) -> list[Any]:
    """Which samples a rank has of a step, where a column tells."""
    if isinstance(item, list):
        return [numbers_of_samples(one) for one in item]
    for column in ("x", "u", "id", "input_ids"):
        if isinstance(item, dict) and column in item:
            found: list[Any] = np.asarray(item[column]).ravel().tolist()
            return found
    return []


def _count(item: Any) -> int:
    if item is None or isinstance(item, list):
        return len(item or ())
    return max((len(column) for column in item.values() if not isinstance(column, dict | int)), default=0)


def close_all(readers: Iterable[Any]) -> None:
    """Close the readers of all ranks."""
    for reader in readers:
        reader.close()


class Run(ABC):
    """A run: what is read, by whom, and how its state is kept.

    Args:
        root: folder of the data.
        scratch: an empty folder of this run's own.
        stop: steps before it is stopped.

    Attributes:
        elastic: whether any rank's state is that of all ranks, which others can go on with.
    """

    elastic = True

    def __init__(self, root: Path, scratch: Path, stop: int) -> None:
        self.root = root
        self.scratch = scratch
        self.stop = stop
        self.log = scratch / "bad.jsonl"

    @abstractmethod
    def readers(self, phase: int) -> list[Any]:
        """The datasets or loaders of all ranks, before (0) and after (1) the stop."""

    @abstractmethod
    def stay(self) -> None:
        """Let the world after the stop be the one before it."""

    @abstractmethod
    def steps(self, reader: Any) -> Iterator[Any]:
        """What a reader delivers in an epoch, or in the rest of one: dicts of columns, or lists of samples."""

    def saved(self, reader: Any) -> Any:
        """The state of a reader."""
        return json.loads(json.dumps(reader.state_dict()))

    def load(self, reader: Any, state: Any) -> None:
        """Resume from a state."""
        reader.load_state_dict(state)

    def counts(self, readers: Sequence[Any]) -> Recorded:
        """What the readers' statistics say of samples, where nothing is read ahead: what is counts when it is read."""
        return {}

    def record(self) -> Recorded:
        """Run it, and say what came."""
        try:
            return self._recorded() | self._listed()
        except StokerError as error:
            return {"refused": self.failed(error)}

    def _recorded(self) -> Recorded:
        first = self.readers(0)
        found: Recorded = {"length": _length(first[0]), "begun": self._phase(first, self.stop)}
        try:
            states = [self.saved(reader) for reader in first]
        except StokerError as error:
            return found | {"not saved": self.failed(error)}
        finally:
            close_all(first)
        found["state"] = digest_of(json.dumps(list(map(_lasting, states)), sort_keys=True))
        second: list[Any] = []
        try:
            second = self._resumed(repeat(states[0]) if self.elastic else states)
        except StokerError as error:
            found["not resumed elsewhere"] = self.failed(error)
            self.stay()
            try:
                second = self._resumed(states)
            except StokerError as again:
                return found | {"not resumed": self.failed(again)}
        found["resumed"] = self._phase(second, _MOST)
        if "ended" in found["resumed"]:
            found["next epoch"] = self._phase(second, _NEXT)
        found |= self.counts(second)
        close_all(second)
        return found

    def _resumed(self, states: Iterable[Any]) -> list[Any]:
        readers = self.readers(1)
        try:
            for reader, state in zip(readers, states, strict=False):
                self.load(reader, state)
        except StokerError:
            close_all(readers)
            raise
        return readers

    def _phase(self, readers: Sequence[Any], most: int) -> Recorded:
        """Read all ranks, step by step: what came, and how it ended."""
        found: Recorded = {}
        steps: list[list[Any]] = []
        delivering = [self.steps(reader) for reader in readers]
        try:
            while len(steps) < most:
                step = [next(one, None) for one in delivering]
                if all(one is None for one in step):
                    found["ended"] = True
                    break
                steps.append(step)
        except Exception as error:
            found["error"] = self.failed(error)
        return found | {
            "steps": len(steps),
            "samples": sum(_count(item) for step in steps for item in step),
            "ids": digest_of([[numbers_of_samples(item) for item in step] for step in steps]),
            "values": digest_of(steps),
        }

    def _listed(self) -> Recorded:
        """The bad samples that were listed."""
        lines = sorted(map(self.masked, self.log.read_text().splitlines())) if self.log.exists() else []
        return {"listed": [len(lines), digest_of(lines)]} if lines else {}

    def failed(self, error: BaseException) -> str:
        """An error as it is recorded."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        text = (
            lines[-1] if "Traceback" in str(error) else str(error)
        )  # of a worker, whose error holds where it was raised
        return self.masked(f"{type(error).__name__}: {text}")

    def masked(self, text: str) -> str:
        """A text without the folders of this run."""
        for folder, word in ((self.scratch, "SCRATCH"), (self.root, "DATA")):
            text = text.replace(str(folder), word)
        return re.sub(r"(/[0-9a-f]{24})+", "/CACHE", text)


def _lasting(state: Any) -> Any:
    """A state without the time, and the versions of files, which are this run's own copies."""
    if isinstance(state, list):
        return list(map(_lasting, state))
    if not isinstance(state, dict):
        return state
    return {name: _lasting(value) for name, value in state.items() if name not in ("time", "versions")}


def _length(reader: Any) -> Any:
    try:
        return len(reader)
    except (StokerError, TypeError) as error:
        return type(error).__name__
