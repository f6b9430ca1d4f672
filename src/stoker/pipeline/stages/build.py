"""Makes the work of chunks from the settings of a dataset: the stages of its chain, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.errors import ConfigError
from stoker.order.sample_order import Run
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.chunks.work import ChunkWork
from stoker.pipeline.stages.read import ReadBeside, ReadColumns, ReadSamples, may_hold_images, read_lazily
from stoker.pipeline.stages.stage import ChunkStage
from stoker.pipeline.transforms import (
    EpochReaderSettings,
    Override,
    TransformOf,
    bind_batch_steps,
    make_transforms,
)
from stoker.reading.projection import batch_parts, split_steps, stored_names
from stoker.reading.row_reader import RowReader
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool
from stoker.reading.steps import Beside, Step, TokenizeColumn

if TYPE_CHECKING:  # the chains of most datasets need none of it, and a stage is imported where it is made
    from stoker.pipeline.joins.leading import LeadingJoins
    from stoker.pipeline.joins.other_reader import OtherReader, Pairs
    from stoker.pipeline.stages.join import Join, Layout


def make_work(
    pool: ShardPool,
    run: Run | None,
    settings: EpochReaderSettings,
    epoch: int,
    *,
    as_columns: bool,
    override: Override | None = None,
) -> ChunkWork:
    """The work of the chunks of a run.

    Args:
        run: the rank's batches, and where their samples lie; ``None`` where no sample replaces another.
        settings: see :class:`~stoker.pipeline.transforms.EpochReaderSettings`.
        epoch: its number, for the random numbers of a chain.
        as_columns: whether batches are asked for, and not samples.
        override: a method of a subclass, where it is a stage: it has samples as all steps but those of batches make them.
    """
    tolerant = settings.bad_samples is not None
    on_bad_sample = "raise" if settings.bad_samples is None else settings.bad_samples.on_bad_sample
    filters = any(step.drops or step.makes_several for step in settings.all_steps)
    reading = _Reading(pool, settings, epoch, None)
    parts = batch_parts(settings.steps) if as_columns else [settings.steps]
    work: ChunkWork | None = None
    for part in parts:
        first = work is None
        steps, batch_steps = split_steps(part, of_samples=first and override is not None) if as_columns else (part, ())
        if work is None:
            whole = as_columns and override is None and all(isinstance(step, TokenizeColumn) for step in steps)
            stages = reading.stages(whole=whole, loads=tolerant, steps=steps, keeps_dtypes=as_columns)
            if override is not None:
                from stoker.pipeline.stages.functions import Overrides

                stages.append(Overrides(reading.rows, override))
        else:
            from stoker.pipeline.stages.functions import SamplesOfBatch

            stages = [SamplesOfBatch(work.columns), *reading.after_batch(steps)]
        of_samples = not first or not whole
        if tolerant and of_samples:
            from stoker.pipeline.stages.functions import LoadImages

            stages.append(LoadImages(reading.rows))
        work = ChunkWork(
            reading.rows,
            stages,
            on_bad_sample=on_bad_sample,
            run=run,
            as_columns=as_columns,
            whole=whole,
            filters=filters or not first,
            batch_steps=bind_batch_steps(pool, batch_steps) if batch_steps else None,
            one_batch=any(step.takes_batch for step in settings.steps),
            names=reading.names,
            as_stored=stored_names(steps, reading.names()) if filters and first and not whole else {},
            stored_stages=partial(reading.stages, whole=True, loads=tolerant),
            made=bool(steps) or override is not None,
            leading=reading.leading,
            lazily=reading.lazily(tolerant=tolerant) if not as_columns and override is None and not filters else None,
        )
    assert work is not None
    return work


class _Reading:
    """Makes the stages that read the samples of a dataset, up to the first function of its chain.

    ``pool``: its open shards. ``settings``: say what is read. ``epoch``: number of the epoch, for random numbers. ``names``:
    the columns that are needed, of those that it reads; ``None``: all.
    """

    def __init__(self, pool: ShardPool, settings: EpochReaderSettings, epoch: int, names: Sequence[str] | None) -> None:
        self._pool, self._settings, self._epoch = pool, settings, epoch
        self.leading: LeadingJoins | None = None
        self._joins: list[tuple[int, str]] = []
        self._layout: Layout | None = None
        self._named: tuple[str, ...] | None = None
        # What is applied to each sample as it is read; ``None``: nothing.
        self._functions: TransformOf | None = None
        self._alone = True
        self._beside: ReadBeside | None = None
        if not settings.joins:
            columns = settings.stored
            if names is not None:
                columns = [name for name in names if name != pool.ids] or list(pool.index.columns[:1])
            self.rows = RowReader(pool, columns)
            return
        layout = tuple(one for one in settings.layout if names is None or one[0] in names)
        self._named = tuple(name for name, _, _ in layout)
        own_keys = [join.key[1] for join in settings.joins if join.key is not None and not join.key[0]]
        columns = settings.stored
        if columns is not None:
            columns = list(dict.fromkeys([*columns, *(key for key in own_keys if key != pool.ids)]))
        self.rows = RowReader(pool, columns)
        self._lead(layout)

    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.rows.names if self._named is None else self._named

    def _lead(self, layout: Sequence[tuple[str, int, str]]) -> None:
        """Make the joins that the chain begins with. Columns have names of their own until all are there."""
        from stoker.pipeline.joins.leading import LeadingJoins
        from stoker.pipeline.stages.join import Layout

        joins, pool = self._settings.joins, self._pool
        names: dict[tuple[int, str], str] = {(0, name): name for name in self.rows.names}
        taken = {*self.rows.names}
        wanted = [(source, theirs, name) for name, source, theirs in layout if source]
        wanted += [(*join.key, join.key[1]) for join in joins if join.key is not None and join.key[0]]
        for source, theirs, name in sorted(wanted, key=lambda one: one[0]):
            if (source, theirs) not in names:
                inner = name
                while inner in taken:
                    inner = f".{inner}"
                names[source, theirs] = inner
                taken.add(inner)
        readers: list[OtherReader] = []
        for number, join in enumerate(joins, 1):
            pairs = tuple((inner, theirs) for (source, theirs), inner in names.items() if source == number)
            readers.append(other_reader(join.step, pairs if join.known else None, self._epoch))
            if join.known:
                self._joins.append((number - 1, "" if join.key is None else names[join.key]))
        self.leading = LeadingJoins(pool, joins, readers)
        final = [(name, names[source, theirs]) for name, source, theirs in layout]
        self._layout = Layout(final, list(names.values()))

    def stages(
        self, *, whole: bool, loads: bool, steps: Sequence[Step] = (), keeps_dtypes: bool = False
    ) -> list[ChunkStage]:
        """The stages that read samples and apply steps of the chain to each.

        ``whole``: whether samples are read as columns. ``loads``: whether images are loaded, as one that does not load is a
        bad sample. ``steps``: of samples. ``keeps_dtypes``: whether columns are made of the samples: numbers of other
        datasets keep their dtype, where no function has these samples before. A function has numbers of the types that it has
        of samples one by one.
        """
        made = self._of_steps(steps, first=self.leading is None and not whole, keeps_dtypes=keeps_dtypes)
        self._alone = not whole and not made
        return [*self._read(whole=whole, loads=loads), *made]

    def after_batch(self, steps: Sequence[Step]) -> list[ChunkStage]:
        """The stages that apply steps to samples which were made of the rows of a batch, and become columns again."""
        return self._of_steps(steps, later=True, keeps_dtypes=True)

    def _of_steps(
        self, steps: Sequence[Step], *, first: bool = False, later: bool = False, keeps_dtypes: bool
    ) -> list[ChunkStage]:
        """The stages of steps, but for functions that are applied as samples are read, where these are the ``first``."""
        made: list[ChunkStage] = []
        begin = 0
        for number, step in enumerate((*steps, None)):
            if step is not None and not step.together:
                continue
            group = steps[begin:number]
            if group:
                table, identity = self._pool.index.table, self._settings.identity
                made_of = make_transforms(table, identity, group, self._epoch, later=later or bool(begin))
                if made or not first:
                    from stoker.pipeline.stages.functions import Functions

                    made.append(Functions(self.rows, made_of))
                else:
                    self._functions = made_of
            first = False
            if isinstance(step, TokenizeColumn):
                from stoker.pipeline.stages.tokenize import Tokenize

                made.append(Tokenize(self.rows, step))
            elif step is not None and not isinstance(step, Beside):
                raise ConfigError(f"{step.told}: together is for steps of stoker's own: leave it out")
            elif step is not None:
                functions_follow = any(following.calls_user_code for following in steps[number + 1 :])
                made.append(self._late_join(step, keeps_dtypes=keeps_dtypes and not functions_follow))
            begin = number + 1
        return made

    def lazily(self, *, tolerant: bool) -> Callable[[Chunk], SampleRun | None] | None:
        """A function that reads samples as they are asked for, where reading is the only stage; ``None``: it is not.

        ``tolerant``: whether a bad sample is no error: then no images are left to be loaded, which may be bad ones.
        """
        if not self._alone or (tolerant and may_hold_images(self._pool, self._settings.columns)):
            return None
        return partial(read_lazily, self.rows, self._functions) if self._beside is None else self._beside.lazily

    def _read(self, *, whole: bool, loads: bool) -> list[ChunkStage]:
        read: list[ChunkStage] = [
            ReadColumns(self.rows, loads=loads) if whole else ReadSamples(self.rows, self._functions)
        ]
        if self.leading is None:
            return read
        from stoker.pipeline.stages.join import Join, LeaveOutUnmatched

        for number, key in self._joins:
            step, reader = self.leading.joins[number].step, self.leading.readers[number]
            read.append(Join(step, self.rows, reader, key, number=number))
        if self._layout is not None:
            read.append(self._layout)
        if not whole:
            self._beside = ReadBeside(self.rows, read)
            read = [self._beside]
        return [LeaveOutUnmatched(self.leading), *read] if self.leading.leave_out else read

    def _late_join(self, step: Beside, *, keeps_dtypes: bool) -> Join:
        from stoker.pipeline.joins.other_dataset import OtherDataset
        from stoker.pipeline.stages.join import Join

        assert isinstance(step.other, OtherDataset)
        names = step.other.columns
        pairs = None if names is None else tuple((step.prefix + one, one) for one in names if one != step.on[1])
        reader = other_reader(step, pairs, self._epoch)
        return Join(step, self.rows, reader, step.on[0], number=None, keeps_dtypes=keeps_dtypes)


def other_reader(step: Beside, pairs: Pairs | None, epoch: int) -> OtherReader:
    """A reader of the other dataset of a zip or join."""
    from stoker.pipeline.joins.other_dataset import OtherDataset
    from stoker.pipeline.joins.other_reader import OtherReader

    assert isinstance(step.other, OtherDataset)
    return OtherReader(step.other, pairs, step.on[1] or None, epoch, _other_stages)


def _other_stages(
    pool: ShardPool, settings: EpochReaderSettings, epoch: int, names: Sequence[str] | None, whole: bool
) -> Sequence[ChunkStage]:
    """The stages of another dataset: of its stored columns, or without names also of the functions of its own chain."""
    reading = _Reading(pool, settings, epoch, names)
    loads = pool.reads_cut and may_hold_images(pool, settings.columns)
    stages = reading.stages(whole=whole, loads=loads, steps=settings.steps if names is None else ())
    if not loads or whole:
        return stages
    from stoker.pipeline.stages.functions import LoadImages

    return [*stages, LoadImages(reading.rows)]
