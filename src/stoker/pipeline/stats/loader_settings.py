"""The settings by which a traced loader gets faster: each loader notes those that it has, and a profile names no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stoker.concurrency.spans.recorder import recorder

if TYPE_CHECKING:
    from stoker.pipeline.transforms import EpochReaderSettings
    from stoker.reading.shard_pool import ShardPool

SettingsByLoader = Mapping[str, Mapping[str, Any]]
"""A loader's class to its settings: as they are written, such as ``"read=ReadOptions(read_threads=)"``, to their values."""

_OUTERMOST_FIRST: Final = (
    "StreamingDataLoader",
    "LMStream",
    "StreamingShardLoader",
    "StreamingParquetLoader",
    "StreamingDataset",
)

_SIMPLE: Final = (bool, int, str, type(None))
"""Types of values that are noted as they are, others as text."""


def note_settings(loader: str, settings: Mapping[str, Any]) -> None:
    """Note the settings of a loader that begins to iterate, where a trace runs.

    Args:
        loader: its public class.
        settings: as in :data:`SettingsByLoader`; a method that is called instead is written ``"batches()"``.
    """
    running = recorder()
    if running is not None:
        running.note_loader(
            loader, {name: one if isinstance(one, _SIMPLE) else str(one) for name, one in settings.items()}
        )


def note_dataset(pool: ShardPool, settings: EpochReaderSettings, *, ahead: bool, by_sample: bool) -> None:
    """Note the settings of a ``StreamingDataset`` that begins to be read, where a trace runs.

    Args:
        pool: its shards.
        settings: how they are read.
        ahead: whether threads read ahead, and not the thread that leases work.
        by_sample: whether it is iterated over by samples that batches could have.
    """
    if recorder() is None:
        return
    amounts, options = settings.amounts, pool.options
    noted: dict[str, Any] = {
        "read=ReadOptions(download_threads=)": options.download_threads,
        "read=ReadOptions(run_in=)": options.run_in,
        "columns=": None if settings.columns is None else ", ".join(settings.columns),
        "cache_limit=": amounts.limit,
    }
    if amounts.held:
        noted["cache="] = "memory"
    elif not amounts.near:
        noted["local="] = pool.caches[0].root
    if options.run_in != "threads":
        noted["read=ReadOptions(read_processes=)"] = options.read_processes
    if ahead and options.run_in != "processes":
        noted["read=ReadOptions(read_threads=)"] = options.read_threads
    if ahead:
        noted["predownload="] = amounts.predownload
    if by_sample:
        noted["batches()"] = None
    note_settings("StreamingDataset", noted)


@dataclass(frozen=True, slots=True)
class LoaderSetting:
    """A setting of a loader, and its value.

    Attributes:
        loader: its public class.
        written: as its user writes it.
        value: as it is now; ``None``: not given.
    """

    loader: str
    written: str
    value: Any

    def __str__(self) -> str:
        return f"{self.written} of the {self.loader}"

    @property
    def now(self) -> str:
        """The setting and its value."""
        return f"{self} ({'not given' if self.value is None else f'now {self.value!r}'})"


class LoaderSettings:
    """The settings of all loaders that one rank has iterated over.

    Args:
        noted: of each of its processes, its consumer's first.
    """

    def __init__(self, noted: Iterable[SettingsByLoader] = ()) -> None:
        self._noted: dict[str, dict[str, Any]] = {}
        for one in noted:
            for loader, settings in one.items():
                self._noted[loader] = {**settings, **self._noted.get(loader, {})}

    @property
    def loaders(self) -> tuple[str, ...]:
        """The classes of the loaders."""
        return tuple(self._noted)

    def __iter__(self) -> Iterator[LoaderSetting]:
        """All, those of the loader first that the consumer iterates over."""
        for loader in _OUTERMOST_FIRST:
            for written, value in self._noted.get(loader, {}).items():
                yield LoaderSetting(loader, written, value)

    def find(self, name: str) -> LoaderSetting | None:
        """The setting of an argument, or of a method whose name ends in ``()``; ``None``: no loader has it."""
        wanted = name if name.endswith("()") else f"{name}="
        return next((one for one in self if one.written == wanted or one.written.endswith(f"({wanted})")), None)
