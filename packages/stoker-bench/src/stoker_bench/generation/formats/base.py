"""The base of the formats' layouts: a file of the dataset as segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache

from stoker.formats.registry import load
from stoker_bench.generation.ragged import image_versions
from stoker_bench.generation.segments import Segment
from stoker_bench.generation.spec import DatasetSpec


class GeneratedLayout(ABC):
    """The layout of a dataset's files. Threads share it.

    Args:
        spec: the dataset.

    Raises:
        ConfigError: the format can not hold files of this spec.
        MissingPackageError: the format's library is not installed.
    """

    def __init__(self, spec: DatasetSpec) -> None:
        self.spec = spec

    def size(self, number: int) -> int | None:
        """Bytes of a file, before it is compressed as a whole; ``None`` where only making it tells.

        Default: of its segments, for layouts that tell the size of each without making it.
        """
        return sum(map(len, self.segments(number)))

    @abstractmethod
    def segments(self, number: int) -> Iterator[Segment]:
        """A file.

        Args:
            number: its index in :func:`~stoker_bench.generation.file_names`.
        """

    def versions(self) -> dict[str, str]:
        """Libraries whose version the bytes depend on, and that version."""
        return image_versions(self.spec)


@lru_cache(maxsize=8)
def layout_of(spec: DatasetSpec) -> GeneratedLayout:
    """The layout of a dataset."""
    made: GeneratedLayout = load(f"stoker_bench.generation.formats.{spec.form.layout}")(spec)
    return made
