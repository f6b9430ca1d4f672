"""``StreamingParquetLoader``: batches for language models from token files, on any number of ranks."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, Literal, Unpack

from stoker.arguments import at_least, checked, must_be
from stoker.catalog.unindexed.files_location import Files
from stoker.cluster import LoaderWorker, World
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.recorder import WaitClock, note_settings
from stoker.concurrency.threads import close_at_exit
from stoker.errors import ConfigError
from stoker.formats.base import IN_READ_OPTIONS, ReadOptions
from stoker.loaders.dataset_methods.opened import BatchSize
from stoker.loaders.iterable import WHOLE_BATCHES, TorchIterable, refuse_collating
from stoker.loaders.protocol import CloseOnExit
from stoker.loaders.sources_by_name import SourcesByName
from stoker.loaders.trainers.consumers import reads_ahead
from stoker.loaders.trainers.lightning_progress import follow_lightning, load_for_lightning, saved_by_lightning
from stoker.order.global_batches import Remainder
from stoker.order.mixture.schedule import Schedule
from stoker.order.sample_order import EpochPosition, Run
from stoker.order.step import ranks_asked
from stoker.pipeline.ranks.data_rank import DataRankFinder, Replication
from stoker.pipeline.state.resume import Progress, ResumeState
from stoker.pipeline.stats.stats import StreamStats
from stoker.reading.bad_samples import BadSampleLog, BadSamples, OnBadSample
from stoker.reading.sample_errors import SampleLocation
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.base import LayoutName, make_layout
from stoker.tokens.layouts.bin_packing import TooLong
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.layouts.good_rows import GoodRows, document_location, documents_of_step
from stoker.tokens.order.division import Granularity
from stoker.tokens.order.mixture import SourceWeights, TokenMixture
from stoker.tokens.order.token_order import RankFiles, TokenSampleOrder, tell_of_remainder
from stoker.tokens.settings import LMOptions, LMSettings, ShardConfig
from stoker.tokens.sources.parquet import check_options
from stoker.tokens.sources.source import Shared, TokenSource
from stoker.types import Ids, StorageOptions
from stoker.units import parse_bytes, parse_count

__all__ = ["ShardConfig", "StreamingParquetLoader"]

_PARTS: Final = 8
_MOST_PARTS: Final = 1 << 14


class StreamingParquetLoader(SourcesByName, CloseOnExit, TorchIterable[LMBatch]):
    """Makes batches for language models from the token column of Parquet files, or from other token files.

    Iterating gives this rank's batches of the next epoch as :class:`~stoker.tokens.batch.LMBatch`. Only footers are
    read to locate tokens; a row group is decoded while the one before it is delivered. A loader can be passed to torch's
    ``DataLoader`` with ``batch_size=None``, but each of its workers then decodes everything that the rank reads: to read
    faster, raise ``read_threads`` instead.

    Args:
        source: Parquet files: a directory, URL prefix, file, pattern or list; Megatron's ``.bin`` or ``.idx``; or a
            :class:`~stoker.tokens.sources.source.TokenSource`, such as :class:`~stoker.tokens.sources.source.RawSource`.
            Or a dict of several such by name, which are mixed: see docs/tokens/mixtures.md.
        shard: this rank and the seed, in one object. Default: ``world`` and ``seed``.
        batch_size: rows in a batch of one rank.
        seq_len: tokens in a row.
        format: ``"delta"`` or ``"iceberg"``: ``source`` is a table, of which the files of one version are read.
        column: the token column. Default: ``input_ids``, ``token_ids`` or ``tokens``.
        layout: ``"concat"``: documents joined, and cut at every ``seq_len`` tokens; ``"pack"``: whole documents side by
            side; ``"pad"``: a document a row, too long ones are an error; ``"truncate"``: likewise, but they are cut.
        granularity: the unit that ranks do not share: ``"file"`` (by name, file i is of rank ``i % world_size``),
            ``"row_group"``, or ``"row"``. Default: the first of these with at least one unit for each rank and no rank more
            than 5 % above the mean; if that is not ``"file"``, it is logged.
        shuffle: mix files, row groups and rows anew in every epoch; otherwise the order of files. An epoch's order depends on
            the seed and its number alone. But for ``"row"``, a rank has the same files or row groups in every epoch.
        seed: of the order, where ``shard`` has none; default 42.
        weights: of a mixture: each source's share of all tokens, by name, or a :class:`~stoker.Schedule` of shares, whose
            times are counted in tokens. Default: all tokens of each source, once.
        unit: what weights are shares of: ``"tokens"``, or ``"samples"``, which are documents.
        repeat: instead of weights, how often an epoch has the tokens of a source, by name; 1 where it is not named.
        most_epochs: with weights, how often training has the tokens of a source at most, by its name. Then its share goes
            to the other sources.
        epoch_tokens: tokens of an epoch of a mixture, such as ``"10b"``. Default: as many as all sources have. Each source
            continues where it stopped in the epoch before.
        num_canonical_nodes: the number of parts into which the rows of each source of a mixture are divided, independently
            of the world size; best a multiple of the number of ranks, or a divisor. Default: 8. A rank that reads
            several parts has a block of each in memory; ranks that share a part decode the same blocks.
        too_long: with ``"pack"``, the handling of documents longer than ``seq_len``: ``"split"``, ``"truncate"`` or
            ``"error"``.
        shuffle_tokens: size of the shuffle buffer: row groups are combined until they have about this many tokens, and their
            rows are shuffled together. More shuffles better if files have few, large row groups, and takes more memory.
        remainder: the handling of ranks with different numbers of rows: ``"pad"`` repeats rows of a rank, ``"drop"`` stops
            all ranks when the first has no more rows; with both, all ranks take equally many steps, and this is logged.
            ``"uneven"`` does neither.
        read: :class:`~stoker.formats.base.ReadOptions`: ``read_threads`` row groups are decoded at once, ahead of the one
            that is delivered (default 1); ``download_threads``; ``cache="memory"`` holds row groups of remote files in memory
            while processes of the node read them, and writes them nowhere. The others have no meaning here.
        local: directory of the cache for remote files; default below ``$STOKER_CACHE`` or ``~/.cache/stoker``.
        cache_limit: bytes that this cache may take.
        storage_options: credentials and settings for remote files.
        format_options: ``{"on_bad_files": "skip"}`` leaves damaged files out, and lists them in :attr:`skipped_files`; of a
            table also which version, see docs/formats.md.
        world, replication: this rank, as for :class:`~stoker.StreamingDataset`, where ``shard`` is not given.
        on_bad_sample: what becomes of rows of which tokens can not be read, as pages or row groups are damaged, or tokens are
            no ids: an error (``"raise"``), ``"skip"``, ``"replace"`` by another row, or :class:`~stoker.BadSamples` with
            limits and a file that lists them. See docs/tokens/bad_rows.md.
        **options: labels, padding and dtype, as :class:`~stoker.tokens.settings.LMSettings` has them: ``labels``, ``pad_id``,
            ``eos_id``, ``cross_document_labels``, ``reset_positions``, ``ignore_index``, ``dtype``, ``vocab_size``. Layouts
            other than ``"concat"`` need ``pad_id``; without it, ``"concat"`` leaves out the tokens that do not fill the last
            row of a rank.

    Raises:
        ConfigError: arguments that make no sense, no token column, or fewer files than ranks where ``granularity="file"``.
        StorageError, CorruptDataError, FormatError, IndexFileError: files can not be read, are damaged, or disagree.
    """

    batch_size = BatchSize()
    instead_of_index = "iterate over it; a StreamingDataset of the same files has documents by id, dataset[i]"

    @checked(
        decode_threads="it is read=ReadOptions(read_threads=...)",
        **{
            **IN_READ_OPTIONS,
            "ids": "batch.document_ids has the numbers of documents, and where() tells where they lie",
            **dict.fromkeys(
                ("quarantine", "subset"),
                "rows are cut of many documents, which are left out where they are documents: in an LMStream over a "
                "StreamingDataset(subset=, read=ReadOptions(quarantine=))",
            ),
        },
        on_bad_files='it is format_options={"on_bad_files": "skip"}',
    )
    def __init__(
        self,
        source: Files | TokenSource | Mapping[str, Files | TokenSource],
        shard: ShardConfig | None = None,
        batch_size: int = 8,
        seq_len: int = 2048,
        *,
        format: Literal["parquet", "delta", "iceberg"] = "parquet",  # noqa: A002 - as StreamingDataset calls it
        column: str | None = None,
        layout: LayoutName = "concat",
        granularity: Granularity | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        weights: Mapping[str, float] | Schedule | None = None,
        repeat: Mapping[str, float] | None = None,
        epoch_tokens: int | str | None = None,
        unit: Literal["tokens", "samples"] = "tokens",
        most_epochs: Mapping[str, float] | None = None,
        num_canonical_nodes: int | None = None,
        too_long: TooLong = "split",
        shuffle_tokens: int | str = 1 << 22,
        remainder: Remainder = "pad",
        read: ReadOptions = ReadOptions(),
        local: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        storage_options: StorageOptions | None = None,
        format_options: Mapping[str, Any] | None = None,
        world: World | None = None,
        replication: Replication | None = None,
        on_bad_sample: OnBadSample | BadSamples = "raise",
        **options: Unpack[LMOptions],
    ) -> None:
        threads = _check_read(read)
        if shard is not None:
            if world is not None or replication is not None or seed is not None:
                raise ConfigError("shard= says which rank this is, and the seed: give no world, replication or seed")
            world = World(shard.rank, shard.world_size, source="ShardConfig")
        self._rows = make_layout(layout, LMSettings(seq_len, **options), too_long)
        self._bad_samples = BadSamples.of(on_bad_sample)
        self._warned: set[bytes] = set()
        self._rows.salvage = self._bad_samples is not None
        self.batch_size = batch_size
        BatchSize.fix(self, "this loader")
        self._threads = threads
        self._counts = Counts()
        self._rank_finder = DataRankFinder(world, replication, compare=read.compare_ranks)
        self._rank_finder.early_data_rank(batch_size)
        held = read.cache == "memory"
        self._opening = format, format_options, local
        self._open_options: dict[str, Any] = {
            "column": column,
            "storage_options": storage_options,
            "cache_limit": None if cache_limit is None else parse_bytes(cache_limit, "cache_limit"),
            "in_memory": held,
            "fetch_threads": read.download_threads,
            "counts": self._counts,
            "salvage": self._rows.salvage,
        }
        self._noted: dict[str, Any] = {
            "read=ReadOptions(read_threads=)": threads,
            "read=ReadOptions(download_threads=)": read.download_threads,
            "cache_limit=": cache_limit,
            **({"read=ReadOptions(cache=)": read.cache} if held else {"local=": local}),
        }
        chosen = (shard.seed if shard is not None else 42 if seed is None else seed) if shuffle else None
        self._settings = chosen, min(max(1, parse_count(shuffle_tokens, "shuffle_tokens")), 1 << 62), remainder
        order: TokenSampleOrder | TokenMixture
        if isinstance(source, Mapping):
            by_row = granularity in (None, "row")
            must_be("left out for a mixture, whose rows are divided among ranks", by_row, granularity=granularity)
            tokens = None if epoch_tokens is None else parse_count(epoch_tokens, "epoch_tokens")
            fits = num_canonical_nodes is None or 1 <= num_canonical_nodes <= _MOST_PARTS
            must_be(f"from 1 to {_MOST_PARTS}", fits, num_canonical_nodes=num_canonical_nodes)
            self._parts = num_canonical_nodes or _PARTS
            self._given = SourceWeights(weights, repeat, tokens, unit, most_epochs)
            self._given.check(list(source))
            self._sources = {name: self._open(files, name) for name, files in sorted(source.items())}
            self._builder, order = self._mixed(self._sources, self._given)
        else:
            mixing = {"weights": weights, "repeat": repeat, "epoch_tokens": epoch_tokens, "most_epochs": most_epochs}
            must_be("left out without a mixture", unit == "tokens", unit=unit)
            for name, value in {**mixing, "num_canonical_nodes": num_canonical_nodes}.items():
                if value is not None:
                    raise ConfigError(f"{name}= needs a mixture: pass the sources as a dict, {{name: files, ...}}")
            self._builder = BlockBuilder([self._open(source)], self._rows)
            order = self._builder.sample_order(granularity, *self._settings)
            self._rank_files = RankFiles(order)
        needed = {name: self._open_options[name] for name in ("column", "storage_options", "cache_limit")}
        check_options(self._builder.sources, **needed, local=local, cache=held)
        self._resume = ResumeState(order, "begin the next one with reset_epoch()")
        self._reset()
        if self._rank_files is not None and self._rank_finder.launched() is not None:
            self._rank_files.division(
                self._data_rank()
            )  # says early what does not fit; otherwise the first iteration does

    # -- files and sizes -------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """This process's rank and world."""
        return self._rank_finder.world

    @property
    def remainder(self) -> Remainder:
        """Treatment of ranks that do not have equally many rows."""
        return self._settings[2]

    @property
    def seq_len(self) -> int:
        """Tokens a row."""
        return self._builder.settings.seq_len

    @property
    def steps(self) -> int:
        """Batches of this rank in a whole epoch."""
        return len(self.plan(EpochPosition(self._resume.upcoming().epoch)))

    def __len__(self) -> int:
        return self.steps

    # -- lineage ---------------------------------------------------------------------------------------------------

    @checked
    def ids_of(
        self, step: int, rank: int | None = None, epoch: int | None = None, *, since_resume: bool = False
    ) -> Ids:
        """The numbers of the documents of which a step's rows have tokens, as ``batch.document_ids`` has them.

        Where documents begin shows in their row groups: those of this step are read, whatever comes before it.

        Args:
            step: number of the batch, from 0, counted from the epoch's beginning.
            rank: of those that read different rows; default: all, one after the other.
            epoch: number of the epoch; default: the one that was begun last, or that the next iteration begins.
            since_resume: count ``step`` from where the iteration of that epoch began: after a resume, where the state was
                taken, and of a mixture that was changed, where it was.

        Returns:
            int64, rising within each rank.

        Raises:
            ConfigError: there is no such step, rank or epoch, or no such number after a resume with other global batches.
        """
        at_least(0, step=step, epoch=epoch)
        mine = self._data_rank()
        point = self._resume.upcoming() if self._progress is None else self._progress.point
        if epoch is not None and epoch != point.epoch:
            point = EpochPosition(epoch)
        return documents_of_step(
            self._builder,
            lambda at, number: self._resume.run(at, replace(mine, rank=number)),
            ranks_asked(rank, mine.world_size),
            point,
            step,
            self.batch_size,
            None if self._bad_samples is None else self._bad_samples.on_bad_sample,
            since_resume=since_resume,
        )

    def where(self, document: int) -> SampleLocation:
        """The file of a document, its row group (``shard``, counted through all files of a source) and its row there.

        Raises:
            IndexError: there is no such document.
        """
        return document_location(self._builder, document)

    # -- the epoch -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LMBatch]:
        """This rank's (and loader worker's) batches of the next epoch, or of the rest of one that was resumed."""
        load_for_lightning(self)
        refuse_collating(LMBatch, WHOLE_BATCHES)
        self._running = None
        if self._only_ends:
            self._only_ends = False
            return iter(())
        return close_at_exit(self._batches())

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of this run, to resume from on any number of ranks: JSON-serialisable, the same on all ranks.

        It counts what this object has delivered; in a ``DataLoader``'s workers, what each has, for a loader that saves their
        states apart. Around a ``DataLoader`` use :meth:`state_after`.
        """
        worker, data_rank = LoaderWorker.detect(), self._data_rank()
        if worker.token is not None:
            return self._resume.worker_state(worker, data_rank)
        progress = self._progress
        untrained, ended = saved_by_lightning(self)
        if progress is not None and self._exhausted is None:
            untrained = max(untrained, int(self._ahead))
            if ended or (untrained and progress.batches):
                return self.state_after(progress.point, max(0, progress.batches - untrained), ended=ended)
        return self._resume.state(self._resume.here(), data_rank)

    def compare_ranks(self, start: EpochPosition, left: int) -> None:
        """See that all ranks read the same from ``start`` on; see :class:`~stoker.formats.base.ReadOptions`.

        Args:
            start: where an iteration begins.
            left: batches that were delivered in the one before.
        """
        self._rank_finder.compare(self._resume.sample_order, start, self._data_rank(), self._resume.loads, left)

    def upcoming(self) -> EpochPosition:
        """The position at which the next iteration begins."""
        return self._resume.upcoming()

    @property
    def states_loaded(self) -> int:
        """Number of states loaded and of epochs asked for. Each ends the iterations that were running."""
        return self._resume.loads

    @property
    def order_number(self) -> int:
        """A number that rises when the order of rows changes, which copies in workers that live on do not take."""
        return self._resume.order_number

    def state_after(self, start: EpochPosition, batches: int, *, ended: bool = False) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``, and has ``ended``."""
        return self._resume.state_after(start, batches, self._data_rank(), ended=ended)

    def load_state_dict(self, state: Mapping[str, Any], *, change_streams: bool = False) -> None:
        """Make the next iteration resume where ``state`` was taken, with any number of ranks and rows a batch.

        An iteration that is running ends with a ``StateError``. Weights of a mixture that were changed in the run hold on.

        Args:
            state: of :meth:`state_dict`.
            change_streams: for a mixture: use the sources and weights that this loader was made with, instead of those in
                the state. Each source continues with the rows that it has not delivered yet.

        Raises:
            StateError: it belongs to other data, or to other settings of the order; says what differs.
        """
        if change_streams:
            self._check_mixture()
            self._change(state, self._sources, self._given, goes_on=False)
        else:
            self._load(state)
        self._only_ends = follow_lightning(self, self._steps)

    def _steps(self) -> tuple[int, int]:
        """Batches of the epoch that comes next, and those of it that are left."""
        upcoming = self.upcoming()
        return len(self.plan(upcoming.epoch_begin())), len(self.plan(upcoming))

    def stats(self) -> StreamStats:
        """Statistics of reading, and of the tokens that were delivered; see :class:`~stoker.StreamStats`."""
        return StreamStats.of(self._counts)

    def close(self) -> None:
        """Release all files. Iterating again opens them."""
        self._running = None
        for source in self._builder.sources:
            source.close()

    # -- within ----------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[LMBatch]:
        ahead = reads_ahead()  # which looks at what called this generator
        while (progress := (yield from self._batches_until_change(ahead=ahead))) is not None:
            if not self._resume.continues(progress):  # the change was behind the last batch
                self._exhausted = progress.point.epoch
                return

    def _batches_until_change(self, *, ahead: bool) -> Generator[LMBatch, None, Progress | None]:
        worker, data_rank = LoaderWorker.detect(), self._data_rank()
        self._rank_finder.check_thread(self._rank_finder.division())
        point, begun, _ = self._resume.begin(worker, data_rank)
        if point.partial:
            raise ConfigError(
                "the state was taken inside a batch, as states of this loader never are: give what its state_dict() returned"
            )
        if worker.token is None:
            self.compare_ranks(point, self._resume.batches_before)
        note_settings("StreamingParquetLoader", {"batch_size=": self.batch_size, **self._noted})
        run = self._resume.run(point, data_rank)
        tell_of_remainder(run.plan, point, drops=self.remainder == "drop")
        progress = self._resume.deliver(point, run.plan, begun)
        self._exhausted = None
        for source in self._builder.sources:
            if isinstance(source, Shared):
                source.share(worker.count * self._rank_finder.world.local_world_size)
        self._progress, self._ahead, number = progress, ahead, begun
        batches = self._read(run, worker, begun)
        with closing(batches):
            waits, look = WaitClock(), 0
            waits.begin()
            for together in batches:
                waits.end(self.batch_size * (len(together) - 1) + len(together[-1]))
                for batch in together:
                    progress.batch()
                    number += 1
                    self._counts.token_batch(
                        batch.num_tokens, batch.input_ids.size, batch.cut_documents, batch.cut_tokens
                    )
                    yield batch
                    if self._resume.is_changed(progress):
                        return progress
                    progress.check()
                    if number >= look:
                        look = number + waits.at_hand()
                    del batch
                del together  # frees its memory for the next ones
                waits.begin()
        waits.at_hand()
        waits.flush()
        progress.finished = True
        if worker.token is None and self._progress is progress:
            self._exhausted = point.epoch
        return None

    def _read(self, run: Run, worker: LoaderWorker, begun: int) -> Generator[list[LMBatch], None, None]:
        """The batches that are left, where some rows are bad without these or with others in their places."""
        if self._bad_samples is None:
            return self._builder.batch_lists(run, worker, begun, self.batch_size, self._threads)
        kind = self._bad_samples.on_bad_sample
        division = self._rank_finder.division()
        if kind == "skip" and division is not None and division.sends:
            raise ConfigError(
                f"on_bad_sample='skip' makes batches shorter, and {division.wrapper} sends each rank a part of them: use "
                "'replace', or dispatch_batches=False"
            )
        log = BadSampleLog(self._bad_samples, self._counts, warned=self._warned)
        good = GoodRows(self._builder, run, kind, log)
        return good.batch_lists(worker, begun, self.batch_size, self._threads)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None, "_progress": None}

    def __repr__(self) -> str:
        tokens = sum(int(source.groups.tokens.sum()) for source in self._builder.sources)
        return (
            f"<StreamingParquetLoader of {tokens} tokens in {self.total_files} files, "
            f"{self.batch_size} x {self.seq_len}, {self._builder.layout.name}>"
        )


def _check_read(read: ReadOptions) -> int:
    """Threads that decode; see that nothing is asked for that has no meaning for tokens."""
    default = ReadOptions()
    for name in ("ids", "quarantine", "allow_unsafe_types", "views", "decoded_limit", "run_in"):
        if getattr(read, name) != getattr(default, name):
            raise ConfigError(
                f"StreamingParquetLoader: ReadOptions({name}=) has no meaning for tokens, which are decoded into batches: "
                "leave it out"
            )
    at_least(1, read_threads=read.read_threads)  # which decode row groups
    return read.read_threads or 1
