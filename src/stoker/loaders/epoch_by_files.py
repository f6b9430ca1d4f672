"""An epoch of token files: which files a rank has, how many of them are done, and from which one it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from stoker.arguments import at_least, checked
from stoker.cluster import LoaderWorker
from stoker.errors import ConfigError
from stoker.order.sample_order import DataRank, EpochPosition, Plan
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.state.resume import Progress, ResumeState
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.order.division import Granularity
from stoker.tokens.order.token_order import RankFiles
from stoker.tokens.sources.source import SkippedFile, TokenSource


class EpochByFiles:
    """Base of a loader of token files: its files, and its way through an epoch, counted in files."""

    batch_size: int
    _builder: BlockBuilder
    _sources: Mapping[str, TokenSource] = MappingProxyType({})
    """The sources of a mixture, by name."""
    _rank_files: RankFiles | None = None
    _rank_finder: DataRankFinder
    _resume: ResumeState
    _progress: Progress | None
    """Of the epoch that is being delivered, or was last."""
    _ahead: bool
    """Whether its consumer asks for each batch before it hands out the one before."""
    _exhausted: int | None
    """The epoch that has been delivered, until the next one begins."""
    _running: Iterator[LMBatch] | None
    """The iteration from which :meth:`next_batches` takes."""
    _only_ends: bool
    """Whether the next iteration is only to end an epoch."""

    def plan(self, start: EpochPosition) -> Plan:
        """This rank's batches from ``start`` to the end of its epoch."""
        return self._resume.sample_order.run(start, self._data_rank()).plan

    def _batches(self) -> Iterator[LMBatch]:
        raise NotImplementedError

    @property
    def total_files(self) -> int:
        """Number of files that have rows, of all ranks."""
        return sum(len(source.groups.files) for source in self._builder.sources)

    @property
    def _files(self) -> RankFiles:
        if self._rank_files is None:
            raise ConfigError(
                "ranks divide the rows of a mixture, not its files: count batches instead, or read one source alone"
            )
        return self._rank_files

    @property
    def my_files(self) -> tuple[str, ...]:
        """The files of this rank: all, where rows are divided; else those of which it has something."""
        names = self._builder.sources[0].groups.files
        return tuple(names[number] for number in self._files.of(self._data_rank()).files.tolist())

    @property
    def num_files(self) -> int:
        """Number of :attr:`my_files`."""
        return self._files.of(self._data_rank()).files.size

    @property
    def granularity(self) -> Granularity:
        """The unit that ranks of this world share out whole: file, row group or row."""
        return self._files.division(self._data_rank()).granularity

    @property
    def skipped_files(self) -> Sequence[SkippedFile]:
        """Files that were left out, and why."""
        return tuple(chain.from_iterable(source.skipped for source in self._builder.sources))

    @property
    def tokens(self) -> int:
        """Tokens of the files that this rank has in an epoch; where rows are divided, about."""
        return self._files.tokens(self._data_rank())

    def next_batches(self) -> list[LMBatch] | None:
        """The batches of the next file, or ``None`` at the epoch's end, until :meth:`reset_epoch`.

        Files are mixed, and batches cross from file to file: so these are a file's share of the epoch, and only without
        shuffling the file's own. All of them are in memory at once.
        """
        if self._exhausted is not None:
            return None
        if self._running is None:
            self._running = self._batches()
        batches: list[LMBatch] = []
        begin = self.current_file_index
        for batch in self._running:
            batches.append(batch)
            if self.current_file_index > begin:
                break
        return batches or None

    @property
    def current_epoch(self) -> int:
        """Number of the epoch that is being delivered, or comes next."""
        if self._exhausted is not None:
            return self._exhausted
        return self._resume.upcoming().epoch if self._progress is None else self._progress.point.epoch

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether all of the epoch has been delivered, and the next has not begun."""
        if self._exhausted is not None:
            return True
        progress = self._progress
        return progress is not None and progress.batches >= len(progress.plan)

    @property
    def current_file_index(self) -> int:
        """The number of :attr:`my_files` that have had their share of the epoch."""
        files = self._files
        if self._exhausted is not None:
            return self.num_files
        if self._progress is not None:
            return files.done(self._data_rank(), self._progress.point, self._progress.plan, self._progress.batches)
        point = self._resume.upcoming()
        if not point.position:
            return 0
        return files.done(self._data_rank(), point, self.plan(point), 0)

    @checked
    def reset_epoch(self, epoch: int) -> None:
        """Let the next iteration deliver this epoch from its beginning. One that is running ends with a ``StateError``."""
        at_least(0, epoch=epoch)
        self._go_to(EpochPosition(epoch))

    @checked
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver this epoch, as trainers say; see :meth:`stoker.StreamingDataset.set_epoch`.

        Unlike :meth:`reset_epoch` it does not undo a state that was loaded.
        """
        self._rank_finder.division()  # a wrapper that can not work with this loader says so here, before it iterates
        upcoming = self._resume.upcoming()
        self._resume.set_epoch(epoch)
        if self._resume.upcoming() != upcoming:
            self._reset()

    @checked
    def resume_from(self, file_index: int) -> None:
        """Go on in the current epoch where :attr:`current_file_index` was ``file_index``, to the batch.

        The next iteration begins there; one that is running ends with a ``StateError``. Call it on all ranks. Where their
        files differ in size they are out of step then; states are the better way.
        """
        epoch, data_rank, part = self.current_epoch, self._data_rank(), self._files.of(self._data_rank())
        if file_index >= part.files.size:
            self._go_to(EpochPosition(epoch + 1))
            self._exhausted = epoch
            return
        rounds = self._files.division(self._data_rank()).rounds
        row = part.begin(file_index, rounds.size(data_rank.rank))
        self._go_to(EpochPosition(epoch, rounds.position_of_round(row // data_rank.batch_size * data_rank.batch_size)))

    def _reset(self) -> None:
        """Forget the epoch that is under way."""
        self._progress = self._exhausted = self._running = None
        self._only_ends = False

    def _data_rank(self) -> DataRank:
        if self._rank_finder.division() is not None:
            return self._alone  # a wrapper divides whole batches
        return self._rank_finder.data_rank(self.batch_size)

    def _early_data_rank(self) -> DataRank | None:
        """The data rank before iteration starts; ``None`` where it is not known yet."""
        if self._rank_finder.division() is not None:
            return self._alone
        return self._rank_finder.early_data_rank(self.batch_size)

    @property
    def _alone(self) -> DataRank:
        return DataRank(batch_size=self.batch_size)

    def _go_to(self, point: EpochPosition) -> None:
        self._load(self._resume.state(point, self._early_data_rank() or self._alone))

    def _load(self, state: Mapping[str, Any]) -> None:
        data_rank = self._early_data_rank()
        # What is not known yet is checked when iteration starts.
        self._resume.load(state, LoaderWorker.detect(), data_rank or self._alone, check=data_rank is not None)
        self._reset()
