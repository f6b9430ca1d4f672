"""``Trace``: records where the time of loading goes, in all threads and processes, as a file for Perfetto."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from stoker.arguments import checked
from stoker.cluster import World
from stoker.concurrency.spans.recorder import Recorder, note_settings, record, recorder
from stoker.concurrency.threads import call_at_end
from stoker.errors import ConfigError
from stoker.policy import processor_count

if TYPE_CHECKING:
    from stoker.pipeline.stats.bottleneck import Profile
    from stoker.pipeline.stats.trace_files import TracedProcess, TraceFacts
    from stoker.pipeline.transforms import EpochReaderSettings
    from stoker.reading.shard_pool import ShardPool
    from stoker.storage.files.locked_folder import LockedFolder

# All loaders can be traced, and few are: what is done with a trace is imported where it is.

logger = logging.getLogger(__name__)

# The trace that runs in this process.
_running: Trace | None = None


@cache
def _write_at_end() -> None:
    """Have the trace that runs at the interpreter's exit written: nobody left its block."""

    def end() -> None:
        if _running is not None:
            _running.__exit__(None, None, None)

    call_at_end(end)


class Trace:
    """Records the work of stoker during a ``with`` block, in this process and in those that it starts meanwhile.

    At the end of the block the file is written: open it at https://ui.perfetto.dev. It has a span for each time that a thread
    lists, fetches, decompresses, opens, decodes, transforms, collates, sends or waits. DataLoader workers take part where
    they are started inside the block. Where the block ends with an error, the file ``partial.trace.json`` has what was
    recorded until then, and an earlier ``trace.json`` stays as it is; there is none where no sample was asked for. Where
    nobody leaves the block, as that of a generator that is not read to its end, the file is written at the interpreter's
    exit. What is recorded lies in a folder ``.trace.json.*`` beside the file meanwhile: that of a process that was killed
    stays, until the next trace of that name begins.

    >>> with stoker.Trace("trace.json") as trace:  # doctest: +SKIP
    ...     for batch in dataset.batches():
    ...         train(batch)
    >>> print(trace.profile().sentence)  # doctest: +SKIP

    Args:
        path: of the file; a name that ends in ``.gz`` is compressed. Of several ranks each writes its own:
            ``trace.json`` becomes ``trace.rank3.json``.
        world: this process's rank and world; default, found when the block begins.

    Raises:
        ConfigError: the file can not be written, or another trace runs in this process.
    """

    @checked
    def __init__(self, path: str | os.PathLike[str], *, world: World | None = None) -> None:
        self._given, self._world = Path(path), world
        self._text = os.fspath(path)
        self._recorder: Recorder | None = None
        self._folder: LockedFolder | None = None
        self._origin = 0
        self._processes: list[TracedProcess] = []
        self._facts: TraceFacts | None = None
        self._failed = False

    @property
    def path(self) -> Path:
        """The file; after a block that ended with an error, that of what was recorded until then."""
        world, path = self._world, self._given
        if world is not None and world.world_size > 1:
            name, dot, endings = path.name.partition(".")
            path = path.with_name(f"{name}.rank{world.rank}{dot}{endings}")
        return path.with_name(f"partial.{path.name}") if self._failed else path

    def __enter__(self) -> Self:
        global _running
        from stoker.pipeline.stats.trace_files import TraceFacts
        from stoker.storage.files.locked_folder import LockedFolder

        running = recorder()
        if running is not None:
            raise ConfigError(f"a trace runs in this process already, with its files in {running.folder}: end it first")
        self._world = self._world or World.detect()
        self._failed = False
        if "://" in self._text:
            raise ConfigError(
                f"the trace {self._text} can not be written: give a path, as it is a file of this machine"
            )
        if self.path.is_dir():  # not only told when all is recorded
            raise ConfigError(f"the trace {self.path} can not be written: a directory is there; name a file in it")
        try:
            self._folder = LockedFolder(self.path.parent, f".{self.path.name}.")
        except OSError as error:
            raise ConfigError(f"the trace {self.path} can not be written: {error.strerror or error}") from error
        self._facts = TraceFacts(self._world.rank, self._world.world_size, time.time_ns(), processor_count())
        self._origin = time.perf_counter_ns()
        self._recorder, self._pid = Recorder(os.fspath(self._folder.path)), os.getpid()
        record(self._recorder)
        _running = self
        _write_at_end()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        global _running
        from stoker.pipeline.stats.trace_files import read_recorded, write_trace

        running, self._recorder = self._recorder, None
        if running is None:  # written at the interpreter's exit
            return
        assert self._facts is not None
        assert self._folder is not None
        if recorder() is running:
            record(None)
        if _running is self:
            _running = None
        folder = self._folder.path
        if not folder.is_dir() or self._pid != os.getpid():  # a forked child leaves the block of its parent
            return
        self._failed = error is not None and not isinstance(error, GeneratorExit)
        try:
            running.close()
            self._processes = read_recorded(folder, self._facts.rank, self._origin)
            if not self._failed or any(one.has_read for one in self._processes):
                write_trace(self.path, self._processes, self._facts, folder)
                if error is not None and self._failed:
                    error.add_note(f"the trace until then is in {self.path}")
        except OSError as problem:
            said = f"the trace {self.path} can not be written: {problem.strerror or problem}"
            if not self._failed:
                raise ConfigError(said) from problem
            logger.warning("%s", said)
        finally:
            self._folder.remove()
        if any(one.full for one in self._processes):
            logger.warning("the trace %s lacks its end: there were too many spans, or the disk is full", self.path)

    def profile(self) -> Profile:
        """Times by stage, and the bottleneck, of this rank; after the block.

        Raises:
            ConfigError: the block has not ended, or nothing was read in it.
        """
        from stoker.pipeline.stats.bottleneck import find_bottleneck

        if self._facts is None or self._recorder is not None:
            raise ConfigError("profile() is for a trace that has ended: leave its with block first")
        return find_bottleneck(self._processes, self._facts.cores)


def profile_traces(paths: Sequence[str | os.PathLike[str]]) -> Profile:
    """Times by stage, and the bottleneck, of traces that were written: those of all ranks of a run, or of some.

    ConfigError if one can not be read, is no trace of stoker, or two are of one rank.
    """
    from stoker.pipeline.stats.bottleneck import find_bottleneck
    from stoker.pipeline.stats.trace_files import read_trace

    processes: list[TracedProcess] = []
    ranks: dict[int, Path] = {}
    cores = 1
    for path in map(Path, paths):
        found, facts = read_trace(path)
        if facts.rank in ranks:
            raise ConfigError(f"{ranks[facts.rank]} and {path} are both of rank {facts.rank}: give those of one run")
        ranks[facts.rank] = path
        processes += found
        cores = max(cores, facts.cores)
    return find_bottleneck(processes, cores)


def note_dataset(pool: ShardPool, settings: EpochReaderSettings, *, ahead: bool, by_sample: bool) -> None:
    """Note, for a trace, the settings of a ``StreamingDataset`` that begins to be read.

    ``pool``: its shards. ``settings``: how they are read. ``ahead``: whether threads read ahead, and not the thread that
    leases work. ``by_sample``: whether it is iterated over by samples that batches could have.
    """
    amounts, options = settings.amounts, pool.options
    noted: dict[str, Any] = {
        "read=ReadOptions(download_threads=)": options.download_threads,
        "read=ReadOptions(run_in=)": options.run_in,
        "columns=": None if settings.columns is None else ", ".join(settings.columns),
        "cache_limit=": amounts.limit,
    }
    if amounts.held:
        noted["read=ReadOptions(cache=)"] = "memory"
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
