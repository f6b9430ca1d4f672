"""Makes what reads samples and what applies the steps of a chain to them, with those that take other datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.joins.chunk_stage import ChunkStage
from stoker.pipeline.joins.join_stage import JoinStage
from stoker.pipeline.joins.joined_reader import JoinedReader
from stoker.pipeline.joins.other_dataset import OtherDataset, OtherReader, Pairs
from stoker.pipeline.joins.texts_stage import TextsStage
from stoker.pipeline.transforms import EpochReaderSettings, TransformOf, make_transforms
from stoker.reading.chain_steps import BESIDE, Step
from stoker.reading.sample_errors import apply_transform, location_at
from stoker.reading.sample_reader import SampleReader, SampleRows
from stoker.reading.samples import SampleRun
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

Stage: TypeAlias = TransformOf | ChunkStage


def make_reader(
    pool: ShardPool, settings: EpochReaderSettings, epoch: int, names: Sequence[str] | None = None
) -> SampleReader:
    """Make a reader of the samples of a dataset, up to the first function of its chain.

    Args:
        pool: its open shards.
        settings: say what is read.
        epoch: number of the epoch, for random numbers of other datasets' chains.
        names: the columns that are needed, of those that it reads; ``None``: all.
    """
    if not settings.joins:
        if names is None:
            return SampleReader(pool, settings.stored)
        return SampleReader(pool, [name for name in names if name != pool.ids] or pool.index.columns[:1])
    layout = tuple(one for one in settings.layout if names is None or one[0] in names)
    readers = []
    for number, join in enumerate(settings.joins, 1):
        pairs = tuple((name, theirs) for name, source, theirs in layout if source == number)
        readers.append(_other_reader(join.step, pairs if join.known else None, epoch))
    return JoinedReader(pool, settings.stored, settings.joins, readers, layout)


def _other_reader(step: Step, pairs: Pairs | None, epoch: int) -> OtherReader:
    assert isinstance(step.other, OtherDataset)
    return OtherReader(step.other, pairs, step.on[1] if step.kind == "join" else None, epoch, make_reader, _apply_steps)


def _apply_steps(
    settings: EpochReaderSettings, pool: ShardPool, epoch: int, run: SampleRun, shards: Ids, rows: Ids
) -> SampleRun:
    """Samples of another dataset as its own chain makes them: they have no position."""
    steps = make_steps(pool, settings, settings.steps, epoch, as_columns=False)
    return run if steps is None else steps.apply(run, np.zeros_like(rows), shards, rows)


class SampleSteps:
    """The steps of a chain that make samples: functions, and zips, joins and tokenizers after them.

    Args:
        pool: the dataset's open shards.
        stages: functions of samples, and stages that take those of a chunk together.
    """

    def __init__(self, pool: ShardPool, stages: Sequence[Stage]) -> None:
        self._pool, self.stages = pool, tuple(stages)

    @property
    def texts(self) -> TextsStage | None:
        """The only stage, where that makes ids of texts, for which no samples are needed; ``None`` where there are others."""
        (stage, *rest) = self.stages
        return stage if isinstance(stage, TextsStage) and not rest else None

    @property
    def functions(self) -> TransformOf | None:
        """The only stage, where samples are made one by one; ``None`` where a stage takes all of a chunk."""
        (stage, *rest) = self.stages
        return None if rest or isinstance(stage, ChunkStage) else stage

    def read(self, reader: SampleReader, positions: Ids, samples: SampleRows) -> SampleRun:
        """Samples, each made when it is asked for, or all at once where a stage takes them together.

        Args:
            reader: of what the steps begin with.
            positions: in the epoch, int64, shape ``(n,)``.
            samples: where they are.

        Raises:
            SampleError: one is bad.
        """
        functions = self.functions
        if functions is not None:
            return reader.iterate(samples, functions(positions, samples.shards, samples.rows))
        return self.apply(reader.iterate(samples), positions, samples.shards, samples.rows)

    def samples(
        self, reader: SampleReader, positions: Ids, samples: SampleRows, *, made: list[Any] | None = None
    ) -> list[Any]:
        """The samples of :meth:`read`, all made; args and errors are the same.

        ``made`` is the list that they are added to, which keeps those before one that has an error; default, a new one.
        """
        functions = self.functions
        if functions is not None:
            return reader.samples(samples, functions(positions, samples.shards, samples.rows), made=made)
        made = [] if made is None else made
        made.extend(self.read(reader, positions, samples).samples)
        return made

    def apply(self, run: SampleRun, positions: Ids, shards: Ids, rows: Ids) -> SampleRun:
        """The same for samples that are read already."""
        origin = partial(location_at, self._pool, shards, rows)
        for stage in self.stages:
            if isinstance(stage, ChunkStage):
                found = list(run.samples)
                stage.apply(found, self._pool, shards, rows, None)
                run = SampleRun.of(found)
            else:
                transform = stage(positions, shards, rows)
                run = SampleRun(apply_transform(transform, run.samples, run.remaining, origin), run.remaining)
        return run


def make_steps(
    pool: ShardPool, settings: EpochReaderSettings, steps: Sequence[Step], epoch: int, *, as_columns: bool
) -> SampleSteps | None:
    """Make steps ready for the samples of an epoch; ``None`` without steps.

    Args:
        pool: the dataset's open shards.
        settings: say what random numbers belong to.
        steps: of samples.
        epoch: number of the epoch.
        as_columns: whether columns are made of the samples: numbers of other datasets keep their dtype, where no function
            has these samples before. A function has numbers of the types that it has of samples one by one.
    """
    table: ShardTable = pool.index.table
    stages: list[Stage] = []
    begin = 0
    for number, step in enumerate((*steps, None)):
        if step is not None and step.kind not in (*BESIDE, "tokenize"):
            continue
        functions = make_transforms(table, settings.identity, steps[begin:number], epoch, later=bool(stages))
        if functions is not None:
            stages.append(functions)
        if step is not None and step.kind == "tokenize":
            stages.append(TextsStage(step))
        elif step is not None:
            assert isinstance(step.other, OtherDataset)
            names = step.other.columns
            pairs = None if names is None else tuple((step.prefix + one, one) for one in names if one != step.on[1])
            last = all(later.function is None for later in steps[number + 1 :])
            stages.append(JoinStage(step, _other_reader(step, pairs, epoch), as_columns=as_columns and last))
        begin = number + 1
    return SampleSteps(pool, stages) if stages else None
