"""Base of the loaders of this folder: one class is the kind of loader, and an object of it reads for one rank."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, Self

from stoker.display import counted
from stoker.errors import ConfigError
from stoker_bench.loaders.base import LoaderJob, LoaderReport, OpenLoader
from stoker_bench.settings.workload import Workload


class RankLoader(OpenLoader):
    """A loader, as :class:`~stoker_bench.loaders.base.LoaderUnderTest` and its open form describe it.

    To add one, write a subclass in a module of this folder and name it in ``stoker_bench.loaders._OWN``.

    Attributes:
        name: for ``--loader``.
        formats: names of the formats that it reads, the usual one first; empty for all.
        packages: modules that it imports, each with what to install for it.
        subfolder: of the data set, where files of its own lie that it reads in the place of the generated ones.
        recorded: packages whose versions the result has.
        heeds: those of ``reader.decode``, ``reader.checksums`` and ``dataset.resize_bytes`` that it can follow; else they are
            refused.
        batching_workers: whether each process makes batches of its own, and leaves out its own last one.
        directories: whether it reads directories alone, and no object stores.
        whole_files: whether each rank reads files that are its own, so that there must be as many as ranks.
        window: samples that are shuffled at once, where ``reader.options.shuffle_window`` does not say.
        job: what the rank is to read.
        options: ``reader.options`` without ``shuffle_window``, for loaders that have a window.
        workers: processes or threads that read ahead.
        notes: what a reader of the result should know.
    """

    name: ClassVar[str]
    formats: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[tuple[str, str], ...]] = ()
    recorded: tuple[str, ...] = ()
    subfolder: ClassVar[str] = ""
    heeds: ClassVar[frozenset[str]] = frozenset()
    batching_workers: ClassVar[bool] = False
    directories: ClassVar[bool] = False
    whole_files: ClassVar[bool] = False
    window: int = 0

    def __init__(self, job: LoaderJob) -> None:
        self.check(job.workload, job.world.world_size)
        self.job, self.workers, self.notes = job, job.threads, list[str]()
        self.options: dict[str, Any] = dict(job.workload.reader.options)
        if self.window:
            self.window = int(self.options.pop("shuffle_window", self.window))

    @classmethod
    def check(cls, workload: Workload, ranks: int) -> None:
        """See :class:`~stoker_bench.loaders.base.LoaderUnderTest`."""
        dataset, reader = workload.dataset, workload.reader
        if cls.formats and dataset.format not in cls.formats:
            raise ConfigError(
                f"the loader {cls.name} reads {', '.join(cls.formats)}, not {dataset.format!r}: "
                "set dataset.format, and generate it"
            )
        if not reader.decode and "reader.decode" not in cls.heeds:
            raise ConfigError(f"reader.decode: false: the loader {cls.name} always decodes samples")
        if reader.checksums and "reader.checksums" not in cls.heeds:
            raise ConfigError(f"reader.checksums: the loader {cls.name} compares those that its own packages compare")
        if dataset.resize_bytes and "dataset.resize_bytes" not in cls.heeds:
            raise ConfigError(f"dataset.resize_bytes: the loader {cls.name} hands samples over as they are")
        if cls.whole_files and dataset.files < ranks:
            raise ConfigError(
                f"{counted(dataset.files, 'file')} for {counted(ranks, 'rank')}: the loader {cls.name} gives each rank whole "
                "files: take fewer accelerators, or more files (dataset.files)"
            )

    @classmethod
    def available(cls) -> str | None:
        """See :class:`~stoker_bench.loaders.base.LoaderUnderTest`."""
        absent = {module: package for module, package in cls.packages if not importlib.util.find_spec(module)}
        if not absent:
            return None
        names = " and ".join(module if "[" in package else package for module, package in absent.items())
        are = "is" if len(absent) == 1 else "are"
        return f"{names} {are} not installed: pip install {' '.join(dict.fromkeys(absent.values()))}"

    @classmethod
    def open(cls, job: LoaderJob) -> Self:
        """See :class:`~stoker_bench.loaders.base.LoaderUnderTest`."""
        return cls(job)

    def report(self) -> LoaderReport:
        return LoaderReport(
            self._decoded(),
            self._parallel(),
            self._order(),
            self._fetched(),
            self._versions(),
            tuple(self.notes),
            max(1, self.workers) if self.batching_workers else 1,
            self._reading_began(),
        )

    def _decoded(self) -> Literal["arrays", "bytes", "none"]:
        return "arrays" if self.job.workload.reader.decode else "bytes"

    def _parallel(self) -> str:
        return f"{self.workers} processes" if self.workers else "none: in the training process"

    def _order(self) -> str:
        if not self.job.shuffled:
            return "by number"
        return f"files shuffled, samples in a window of {self.window}" if self.window else "shuffled"

    def _fetched(self) -> int | None:
        return None

    def _reading_began(self) -> float | None:
        return None

    def _versions(self) -> dict[str, str]:
        found = {}
        for package in self.recorded:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
        return found
