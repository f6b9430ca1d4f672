"""Settings of reading, and the functions of the user that are applied to samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stoker.concurrency.user_code import runs_steps
from stoker.errors import ConfigError
from stoker.formats.base import RunIn
from stoker.formats.mds.encodings.images import loaded
from stoker.formats.unstacked import as_batch
from stoker.index.index import Index
from stoker.order.shuffle.shard_table import ShardTable
from stoker.policy import ReadAmounts
from stoker.reading.apply_chain import EpochChain, SampleIdentity, change_batch
from stoker.reading.bad_samples import BadSamples
from stoker.reading.chain import as_chain
from stoker.reading.projection import LeadingJoin, batch_parts, project, split_steps
from stoker.reading.sample_errors import location_at
from stoker.reading.shard_pool import ShardPool
from stoker.reading.steps import Load, Map, Project, Select, Step, TokenizeColumn
from stoker.types import Batch, Ids, Transform

if TYPE_CHECKING:
    from stoker.index.concat_index import ConcatIndex

Override: TypeAlias = Callable[[Sequence[int], Iterator[Any]], Iterator[Any]]
"""A function from samples and their ids to samples, applied lazily."""

TransformOf: TypeAlias = Callable[[Ids, Ids, Ids], Transform]
"""A function from positions, shards and rows of samples to what is applied to each of them, in this order."""


BatchSteps: TypeAlias = Callable[[Batch, Ids, Ids, Ids], Batch]
"""A function from columns, and positions, shards and rows of their samples, to columns."""


@dataclass(frozen=True, slots=True)
class EpochReaderSettings:
    """Settings of an :class:`~stoker.pipeline.epoch_reader.EpochReader`; nothing here changes which samples come when.

    Attributes:
        columns: columns to read; ``None`` for all.
        transform: applied to each sample, on the reading threads.
        identity: what the random numbers of a chain belong to.
        read_threads: threads that read ahead in an iteration; 0 reads in the consumer's thread.
        run_in: where its functions run.
        amounts: how far ahead and how much at a time.
        by_shard: whether many samples are read together, shard by shard, as the order is too wide for the limit.
        bad_samples: what becomes of bad samples; ``None``: they are errors.
        steps: those of ``transform``, of the columns ``stored``, which are read; see :func:`with_steps`.
        joins: zips and joins that ``transform`` begins with.
        layout: with them, the columns that are read; see :class:`~stoker.reading.projection.Projection`.
    """

    columns: Sequence[str] | None = None
    transform: Transform | None = None
    identity: SampleIdentity = SampleIdentity()  # noqa: RUF009 - frozen
    read_threads: int = 0
    run_in: RunIn = "threads"
    amounts: ReadAmounts = field(default_factory=ReadAmounts)
    by_shard: bool = False
    bad_samples: BadSamples | None = None
    steps: tuple[Step, ...] = ()
    stored: Sequence[str] | None = None
    joins: tuple[LeadingJoin, ...] = ()
    layout: tuple[tuple[str, int, str], ...] = ()

    @property
    def calls_functions(self) -> bool:
        """Whether functions of the user are called, of samples or of batches."""
        made = (step.other is not None and step.other.columns is None for step in self.steps)
        return any(step.calls_user_code for step in self.steps) or any(made)

    @property
    def only_tokenizes(self) -> bool:
        """Whether the only function of the user is a tokenizer."""
        functions = [type(step) for step in self.steps if step.calls_user_code or step.other is not None]
        return functions == [TokenizeColumn]

    @property
    def others(self) -> list[Any]:
        """The other datasets of its zips and joins, without those that come with them."""
        return [step.other for step in self.all_steps if step.other is not None]

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps, and the zips and joins that come before them."""
        return (*(join.step for join in self.joins), *self.steps)

    @property
    def replaces(self) -> bool:
        """Whether a sample may come in the place of another."""
        bad = self.bad_samples is not None and self.bad_samples.on_bad_sample == "replace"
        return bad or any(step.replaces for step in self.steps)

    @property
    def leaves_out(self) -> str:
        """The setting by which a batch may have fewer or more samples than it has places; empty where there is none."""
        if self.bad_samples is not None and self.bad_samples.on_bad_sample == "skip":
            return "on_bad_sample='skip'"
        step = next((step for step in self.all_steps if step.changes_counts), None)
        return "" if step is None else f"{step.kind}()" if step.other is None else "join(missing='leave_out')"

    @property
    def instead_of_leaving_out(self) -> str:
        """The setting that leaves batches as long as they are, as a part of a list in a message; empty: there is none."""
        if any(step.makes_several for step in self.steps):
            return ""
        if self.leaves_out.startswith("join"):
            return "missing='none', or on_bad_sample='replace', "
        return "'replace', " if self.leaves_out.startswith("on_bad") else "dropped='replace', "


def with_steps(settings: EpochReaderSettings, index: Index | ConcatIndex, ids: str | None) -> EpochReaderSettings:
    """The settings with the steps of their transform, and the columns that these need.

    ConfigError if the transform is a chain that begins with a change of columns that are not there, or samples are to replace
    what is no sample. ``settings``: with the transform. ``index``: of the dataset. ``ids``: a column that comes with any of
    them; ``None``: none does.
    """
    chain = as_chain(settings.transform)
    after = batch_parts(chain.steps)[1:]
    if after and settings.bad_samples is not None and settings.bad_samples.on_bad_sample == "replace":
        raise ConfigError(
            f"{chain!r}: {after[0][0].told} has rows of a whole batch, and where it fails for one, no sample can take the "
            f"place of that: use on_bad_sample='skip', or call it before {chain.takes_batch}"
        )
    wanted = tuple(index.columns if settings.columns is None else settings.columns)
    alike = settings.columns is not None or index.same_columns
    if not alike and (not chain.steps or not isinstance(chain.steps[0], Select)):
        return replace(
            settings, steps=chain.steps, stored=None, joins=(), layout=()
        )  # each sample has columns of its own
    found = project(chain.steps, wanted if ids is None else (*wanted, ids), index.samples)
    read = tuple(name for name in wanted if name in found.read) or wanted[:1]
    stored = settings.columns if read == wanted and alike else read
    steps = found.steps
    if steps and isinstance(steps[0], Project) and not found.joins:
        given = (*read, *(() if ids is None else (ids,)))
        if steps[0].columns == tuple(zip(given, given, strict=True)):  # they are read as they are to be
            steps = steps[1:]
    return replace(settings, steps=steps, stored=stored, joins=found.joins, layout=found.layout)


def bind_batch_steps(pool: ShardPool, steps: Sequence[Step]) -> BatchSteps:
    """A function from columns, and positions, shards and rows of their samples, to columns.

    ``pool``: the dataset's open shards. ``steps``: the last of a chain, at least one, which call no function of a sample.
    """
    takes_batch = any(step.takes_batch for step in steps)

    def change(batch: Batch, positions: Ids, shards: Ids, rows: Ids) -> Batch:
        if takes_batch:
            batch = as_batch(batch)
        return change_batch(steps, batch, positions, partial(location_at, pool, shards, rows, 0))

    return change


def make_transforms(
    table: ShardTable, identity: SampleIdentity, steps: Sequence[Step], epoch: int, *, later: bool = False
) -> TransformOf:
    """The function that says what is applied to samples of an epoch, by their places.

    Args:
        table: where the samples of each shard begin.
        identity: what random numbers belong to.
        steps: of samples, at least one.
        later: whether other steps come before these.
    """
    # A subclass of the user has an apply() of its own.
    maps = [step for step in steps if isinstance(step, Map) and type(step) in (Map, Load)]
    if not later and len(maps) == len(steps):
        several = sum(not step.own for step in maps) > 1
        transform = maps[0].function if len(maps) == 1 else partial(_in_turn if several else _and_loaded, steps)
        return lambda *_: transform
    epoch_chain = EpochChain(steps, identity, epoch, later=later)
    starts = table.starts
    firsts = np.array(identity.first_shards, np.int64)

    def of_samples(positions: Ids, shards: Ids, rows: Ids) -> Transform:
        streams = np.searchsorted(firsts, shards, side="right") - 1
        ids = starts[shards] + rows - starts[firsts[streams]]
        return epoch_chain.transform(streams, ids, positions if identity.repeats else np.zeros_like(rows), positions)

    return of_samples


def _and_loaded(steps: Sequence[Step], sample: Any) -> Any:
    """One function, which errors call the transform, as they do where nothing is loaded."""
    first, loading = steps
    return loading.apply(first.apply(sample))


@runs_steps
def _in_turn(steps: Sequence[Step], sample: Any) -> Any:
    for step in steps:
        sample = step.apply(sample)
    return sample


def loading_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of a DataLoader worker: after the last function of a sample, its images are loaded."""
    functions, rest = split_steps(steps)
    return (*functions, Load("the loading of images", loaded), *rest) if functions else rest


def loading_override(override: Override | None) -> Override | None:
    """An override whose images are loaded, for a DataLoader worker."""
    return None if override is None else lambda ids, samples: map(loaded, override(ids, samples))
