"""Stoker's own sample order: streams, their shares, a partition, a batching method and a shuffle combined.

Each stream is an endless sequence of samples (:mod:`stoker.order.shuffle.shuffle`), which epochs continue: no sample comes
twice before all came once. A mixing (:mod:`stoker.order.mixture.mixing`) maps the positions of an epoch to samples of
streams, and a plan says which positions a rank takes.

With a static partition (:mod:`stoker.order.partition`) each part of the data has sequences and a mixing of its own:
:mod:`stoker.order.static_epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from stoker.arguments import must_be, must_know
from stoker.errors import ConfigError, StateError
from stoker.integers import mix
from stoker.lazy import cached_property
from stoker.order.global_batches import BatchPlan, DevicePlan, check_batch
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture, Mixing
from stoker.order.mixture.reached import Before, Renumbering, RunOrigin, RunProgress, still_begun
from stoker.order.mixture.schedule import CountingOrigin, Schedule, Timeline
from stoker.order.mixture.stream_locator import MixedOrder, StreamLocator
from stoker.order.mixture.stream_quotas import TAG_MIXING, StreamQuota, make_quotas, stream_shuffle
from stoker.order.mixture.weights import StreamWeight
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, Run
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shuffle import SHUFFLES, ShuffleSettings

if TYPE_CHECKING:
    from stoker.order.static_epoch import StaticEpochs

_TAG_SECTIONS: Final = 4
_TAG_TURN: Final = 24


@dataclass(frozen=True, slots=True)
class NativeStart(EpochStart):
    """The world that an epoch began with; kept where its parts or its batches of one stream depend on it.

    ``world_size``: number of ranks. ``batch_size``: samples in a batch of each.
    """

    world_size: int = 0
    batch_size: int = 0


class NativeOrder:
    """Stoker's own :class:`~stoker.order.sample_order.SampleOrder`.

    Args:
        sources: the streams, at least one.
        settings: everything else.
        origin: where a run with changed streams was restarted.
        made: this order as its dataset was made, where the weights were set since.

    Attributes:
        epoch_size: positions in an epoch.

    Raises:
        ConfigError: streams, weights and settings that do not go together.
    """

    start_type: ClassVar = NativeStart

    def __init__(
        self,
        sources: Sequence[StreamSource],
        settings: NativeSettings,
        origin: RunOrigin | None = None,
        made: NativeOrder | None = None,
    ) -> None:
        self.sources = tuple(sources)
        self.settings = settings
        self._made = made
        self.origin = RunOrigin() if origin is None else origin
        self._batching = settings.batching_method if len(self.sources) > 1 else "random"
        if settings.schedule is not None and any(source.weight != StreamWeight() for source in self.sources):
            raise ConfigError("the schedule has the streams' weights: give streams no proportion, repeat or choose")
        quotas = make_quotas(self.sources, settings, self.origin.twins)
        self._quotas = tuple(map(self._with_before, quotas)) if self.origin.appended else quotas
        counts = [quota.count for quota in self._quotas]
        self.epoch_size = sum(counts)
        if settings.schedule is not None:
            total = sum(source.table.total for source in self.sources)
            self.epoch_size = total if settings.epoch_size is None else settings.epoch_size
        if (size := self.epoch_size or settings.epoch_size) and not sum(quota.total for quota in self._quotas):
            raise ConfigError(f"an epoch of {size} samples was asked of a dataset that has none")
        sizes = np.concatenate([source.selection.sizes for source in self.sources])
        # Each rank reads its own part: there is no need to interleave streams for nodes.
        self._nodes = 1
        if not settings.partition.static:
            self._nodes = ShuffleSettings.resolve(
                sizes[sizes > 0], shuffle=settings.shuffle, num_canonical_nodes=settings.num_canonical_nodes
            ).num_canonical_nodes
        names = [quota.source.name for quota in self._quotas]
        self._timeline = None
        if self.epoch_size:
            self._timeline = _make_timeline(self.origin, names, counts, settings.schedule, self.epoch_size)

    # -- description -----------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, int] | None:
        """Samples of each stream in an epoch, by its name; ``None`` where a schedule says how many."""
        if self.settings.schedule is not None:
            return None
        chosen = dict.fromkeys((source.name for source in self.sources), 0)
        for quota in self._quotas:
            chosen[quota.source.name] += quota.count
        return chosen

    @property
    def repeats(self) -> bool:
        """Whether an epoch may have a sample more than once: it is not just all of every stream."""
        whole = self.settings.schedule is None and self.origin == RunOrigin()
        return not whole or any(quota.count != quota.total for quota in self._quotas)

    @property
    def shards_at_once(self) -> int:
        """About how many shards are read at once, by all readers together."""
        at_once = 0
        for quota in self._quotas:
            shards = int(np.count_nonzero(quota.selection.sizes))
            shuffle = stream_shuffle(quota.selection, self.settings, self._nodes)
            per_node = SHUFFLES[shuffle.shuffle].shards_per_node(shards, quota.total, shuffle.block_size)
            at_once += min(shards, per_node * self._nodes)
        return at_once

    def with_changed_streams(self, origin: RunOrigin) -> NativeOrder:
        """The same sample order, restarted at a position of an epoch, each stream after so many samples.

        With fixed sampling this order is returned unchanged: every epoch has the same samples.
        """
        if self.settings.sampling_method == "fixed":
            return self
        begun = self._begun_before(origin)
        # Where no pass is begun, the stream is as good as one that begins.
        consumed = {name: count for name, count in origin.consumed.items() if begun.get(name, True)}
        epoch, position, rest = origin.epoch, origin.position, origin.rest
        if position >= self.epoch_size or self._batching == "device_per_stream":
            # The epoch can not go on there: this one has fewer samples, or batches of one stream that begin elsewhere.
            epoch, position = epoch + (1 if position else 0), 0
        names = {source.name for source in self.sources}
        if rest and position and (rest.keys() != names or sum(rest.values()) != self.epoch_size - position):
            raise StateError(
                f"this state is damaged: its 'rest' must name every stream, with {self.epoch_size - position} samples in "
                f"all, found {rest!r}"
            )
        if not (epoch or position or consumed or origin.away):
            return self._restarted(None)
        turn = origin.turn
        if self._turns and not turn:
            # Where streams are dealt from the beginning after each of many changes, a small one would never have its turn.
            turn = 1 + (mix(self.settings.seed, _TAG_TURN, origin.samples) >> 22)
        changed = replace(
            origin,
            turn=turn,
            epoch=epoch,
            consumed=consumed,
            position=position,
            appended={name: [one.as_dict() for one in before] for name, before in begun.items() if before},
            rest=rest if position else {},
        )
        return self._restarted(changed)

    @property
    def _turns(self) -> bool:
        """Return whether weights may change often, so that each change begins with another stream."""
        return self._made is not None

    def _restarted(self, origin: RunOrigin | None) -> NativeOrder:
        return NativeOrder(self.sources, self.settings, origin, self._made)

    def with_weights(self, weights: Mapping[str, float]) -> NativeOrder:
        """This order with other proportions of its streams, in epochs of the same length.

        ConfigError if an epoch's streams do not follow from proportions, or these do not name each stream.
        """
        settings, names = self.settings, [source.name for source in self.sources]
        for given, said in (
            (len(names) == 1, "this dataset has one stream"),
            (settings.schedule is not None, "here a Schedule changes the weights"),
            (settings.sampling_method == "fixed", "with sampling_method='fixed' each epoch has the same samples"),
        ):
            if given:
                raise ConfigError(f"set_weights() changes the proportions of several streams, and {said}")
        must_know("stream", weights, names, "set_weights(): ")
        missing = [name for name in names if name not in weights]
        must_be(f"of all streams, 0 for none of one: {missing} are missing", not missing, weights=dict(weights))
        sources = [replace(source, weight=StreamWeight(float(weights[source.name]))) for source in self.sources]
        return NativeOrder(sources, replace(settings, epoch_size=self.epoch_size), self.origin, self._made or self)

    def with_weights_of(self, saved: Mapping[str, Any]) -> NativeOrder:
        """This order with the weights that the run of a state had set; see
        :class:`~stoker.order.capabilities.StreamHistory`."""
        made, order = self._made or self, saved.get("order", {})
        weights = order.get("weights") if order.get("given") == made.chosen else None
        if weights is None:
            return made
        try:
            return self if self._made is not None and weights == self.proportions else made.with_weights(weights)
        except (ConfigError, AttributeError, TypeError, ValueError) as error:
            raise StateError(f"this state should have the weights of its streams, found {weights!r}") from error

    @property
    def proportions(self) -> dict[str, float | None]:
        """The proportion of each stream, by its name."""
        return {source.name: source.weight.proportion for source in self.sources}

    def _begun_before(self, origin: RunOrigin) -> dict[str, tuple[Before, ...]]:
        """The streams to which files were appended, with the result of :func:`still_begun`."""
        found = {}
        for source in self.sources:
            if entries := origin.appended.get(source.name):
                before = [Before.read(one, source.table.starts) for one in entries]
                found[source.name] = still_begun(before, source.selection.sizes, origin.reached(source.name))
                if found[source.name] and self.settings.partition.static:
                    raise StateError(
                        f"files were appended to stream {source.name!r} while a pass over it was begun, and partition "
                        f"{self.settings.partition.name!r} gives each rank samples of its own: go on where all samples of "
                        "the stream have come equally often, or give the new files as a stream of their own"
                    )
        return found

    def _with_before(self, quota: StreamQuota) -> StreamQuota:
        entries = self.origin.appended.get(quota.source.name, ())
        if not entries:
            return quota
        return replace(quota, before=tuple(Before.read(one, quota.source.table.starts) for one in entries))

    def first_shards(self, name: str, samples: int) -> Sequence[Mapping[str, Any]]:
        """Descriptions of the first shards of a stream alone; see
        :class:`~stoker.order.settings.StreamSource`."""
        first = next(source.first for source in self.sources if source.name == name)
        return () if first is None else first(samples)

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides which sample comes when."""
        settings, chosen = self.settings, self.chosen
        streams = {name: dict(about) for name, about in self._about.items()}
        order: dict[str, Any] = {
            "shuffle": settings.shuffle,
            "seed": settings.seed,
            "num_canonical_nodes": self._nodes,
            "epoch_size": self.epoch_size,
            "partition": settings.partition.as_dict(),
        }
        if len(self.sources) > 1:
            order["streams"] = [source.name for source in self.sources]
            order["batching_method"] = settings.batching_method
        if SHUFFLES[settings.shuffle].uses_block_size:
            for name, size in self._block_sizes.items():
                streams[name]["block_size"] = size
        if settings.schedule is not None:
            order["schedule"] = settings.schedule.as_dict()
        if self._made is not None:
            order |= {"weights": self.proportions, "given": self._made.chosen}
        for name, count in (chosen or {}).items():
            streams[name]["choose"] = count
        if settings.sampling_method == "fixed":
            order["sampling_method"] = settings.sampling_method
            order["sampling_granularity"] = settings.sampling_granularity
        return {"streams": streams, "order": order}

    @cached_property
    def _about(self) -> dict[str, Mapping[str, Any]]:
        return {source.name: source.about() for source in self.sources}

    @cached_property
    def _block_sizes(self) -> dict[str, int]:
        return {
            source.name: stream_shuffle(source.selection, self.settings, self._nodes).block_size
            for source in self.sources
        }

    @property
    def urls(self) -> dict[str, str]:
        """Stream name to URL, for messages."""
        return {source.name: source.url for source in self.sources}

    # -- epochs ----------------------------------------------------------------------------------------------------

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The samples of one reader from ``position`` to the end of its epoch.

        Raises:
            ConfigError: the world or the batch size does not fit the partition, or an epoch that was begun with another.
        """
        if position.position > self.epoch_size:
            raise ConfigError(f"position {position.position} is not in an epoch of {self.epoch_size}")
        start = self.epoch_start(position, data_rank)
        if self.settings.partition.static:
            assert start is not None
            return self._static_epochs.run(position, data_rank, start.world_size, start.batch_size)
        return self._run_elastic(position, data_rank, start or NativeStart())

    def epoch_start(self, position: EpochPosition, data_rank: DataRank) -> NativeStart | None:
        """The world and the batch size that the epoch began with, where its order depends on them."""
        if not self.settings.partition.static and self._batching not in ("per_stream", "device_per_stream"):
            return None
        if position.position and isinstance(position.start, NativeStart) and position.start.world_size:
            return position.start
        return NativeStart(data_rank.world_size, data_rank.batch_size)

    def consumed(self, position: EpochPosition) -> dict[str, int]:
        """Samples used up by stream name: at the epoch's end, or before the epoch if ``position`` is its begin."""
        if self.settings.sampling_method == "fixed" or not self.epoch_size:
            return {}
        # Exact between phases. Inside one, scrambled samples may be up to a window a node ahead.
        epoch = position.epoch + (1 if position.position else 0)
        first = self.origin.position if epoch == self.origin.epoch else 0
        reached = self._mixture(self._timeline, epoch).reached(np.array([first], dtype=np.int64))
        return {quota.source.name: count for quota, count in zip(self._quotas, reached[0].tolist(), strict=True)}

    def reached(
        self, told: Mapping[str, Any], origin: RunOrigin, point: EpochPosition, inside: DataRank | None
    ) -> RunProgress | None:
        """The progress of a run in this order, with other streams; see
        :class:`~stoker.order.capabilities.StreamHistory`."""
        settings = self.settings
        if settings.sampling_method == "fixed":
            return None
        if settings.partition.static and (point.position or inside):
            raise StateError(
                f"partition {settings.partition.name!r} gives each rank samples of its own, and this state was taken inside "
                "an epoch: streams can be changed where an epoch has ended"
            )
        order, streams = told["order"], told["streams"]
        names: list[str] = list(order.get("streams", streams))
        before = [origin.reached(name) for name in names]
        schedule = None if order.get("schedule") is None else Schedule.from_dict(order["schedule"])
        counts = [streams[name]["choose"] for name in names] if schedule is None else []
        timeline = _make_timeline(origin, names, counts, schedule, order.get("epoch_size", 0))
        if timeline is None:
            return RunProgress(0, dict(zip(names, before, strict=True)), dict.fromkeys(names, 0))
        if point.position > timeline.epoch_size:
            raise StateError(f"position {point.position} is not in an epoch of {timeline.epoch_size}")
        start = point.start if isinstance(point.start, NativeStart) else NativeStart()
        batching = order.get("batching_method", "random") if len(names) > 1 else "random"
        had = np.zeros(0, dtype=np.int64)
        if settings.partition.static:
            mixture, strata = self._mixture(timeline, point.epoch), True
        else:
            mixture, strata = self._mixture(timeline, point.epoch, batching, start), batching == "stratified"
            if inside is not None:
                firsts = []
                for rank in range(inside.world_size):
                    plan = self._elastic_plan(timeline, batching, mixture, point, replace(inside, rank=rank), names)
                    batch = plan.positions(0, 1)[0] if plan.full_batches else plan.tail_positions()
                    firsts.append(batch[: point.partial])
                had = np.unique(np.concatenate(firsts))
        if strata:
            low, codes = mixture.reached(np.array([point.position]))[0], had
        else:
            low, codes = mixture.taken(point.position)
            codes = np.concatenate([codes, mixture.codes(had)])
        numbers, of = codes & ((1 << NUMBER_BITS) - 1), codes >> NUMBER_BITS
        found = {
            name: earlier.after(first, numbers[of == stream])
            for stream, (name, earlier, first) in enumerate(zip(names, before, low.tolist(), strict=True))
        }
        ends = mixture.reached(np.array([timeline.epoch_size]))[0].tolist()
        left = {name: end - found[name].count for name, end in zip(names, ends, strict=True)}
        return RunProgress(point.position + len(had), found, left)

    def _run_elastic(self, position: EpochPosition, data_rank: DataRank, start: NativeStart) -> Run:
        batching = self._batching
        world, batch = start.world_size, start.batch_size
        mixture = self._mixture(self._timeline, position.epoch, batching, start)
        names = [quota.source.name for quota in self._quotas]
        plan = self._elastic_plan(self._timeline, batching, mixture, position, data_rank, names)
        if batching == "stratified":  # a plan of ids, and not of positions
            return Run(self._locator, plan)
        if isinstance(plan, DevicePlan):
            check_batch(data_rank.batch_size, batch)
        elif batching == "per_stream" and data_rank.world_size * data_rank.batch_size != world * batch:
            raise ConfigError(
                f"this epoch was begun with global batches of {world * batch} samples of one stream, here they have "
                f"{data_rank.world_size * data_rank.batch_size}: resume with the same batch_size times world size until it "
                "ends"
            )
        return Run(MixedOrder(self._locator, mixture), plan)

    def _elastic_plan(
        self,
        timeline: Timeline | None,
        batching: str,
        mixture: EpochMixture,
        position: EpochPosition,
        data_rank: DataRank,
        names: Sequence[str],
    ) -> BatchPlan:
        common: dict[str, Any] = {
            "start": position.position,
            "end": 0 if timeline is None else timeline.epoch_size,
            "batch_size": data_rank.batch_size,
            "rank": data_rank.rank,
            "world_size": data_rank.world_size,
            "num_canonical_nodes": self._nodes,
            "remainder": self.settings.remainder,
        }
        if batching == "stratified":
            passes = {quota.source.name: quota.total for quota in self._quotas}
            key = mix(self.settings.seed, _TAG_SECTIONS, position.epoch)
            totals = np.array([passes.get(name) or 1 << NUMBER_BITS for name in names], dtype=np.int64)
            shuffled = self.settings.shuffle != "none"
            starts = {quota.source.name: quota.begun for quota in self._quotas}
            begun = np.array([starts.get(name, 0) for name in names], dtype=np.int64)
            from stoker.order.mixture.stratified_batches import StratifiedPlan

            return StratifiedPlan(**common, strata=mixture, shuffled=shuffled, key=key, totals=totals, begun=begun)
        return DevicePlan(**common) if batching == "device_per_stream" else BatchPlan(**common)

    def _mixture(
        self, timeline: Timeline | None, epoch: int, batching: str = "random", start: NativeStart | None = None
    ) -> EpochMixture:
        """The mixings of an epoch, of which batches of one stream depend on its start."""
        if timeline is None:
            return EpochMixture([0], [0], [Mixing([0])])
        key, phases, unit = mix(self.settings.seed, TAG_MIXING), timeline.phases(epoch), 1
        if start is not None and batching in ("per_stream", "device_per_stream"):
            unit = start.batch_size * (start.world_size if batching == "per_stream" else 1) or 1
        return EpochMixture(
            [phase.first for phase in phases],
            [phase.offset for phase in phases],
            [
                Mixing(
                    phase.counts,
                    phase.begun,
                    nodes=self._nodes,
                    unit=unit,
                    window=self.settings.window,
                    key=mix(key, phase.start),
                    shared=batching == "per_stream",
                    turn=phase.turn,
                )
                for phase in phases
            ],
        )

    # -- locators and copies --------------------------------------------------------------------------------------------

    @cached_property
    def _locator(self) -> StreamLocator:
        quotas, settings, nodes = self._quotas, self.settings, self._nodes
        renumber = None
        if self.origin.passed:
            renumber = Renumbering(self.origin.reached(quota.source.name) for quota in quotas)
        return StreamLocator(
            lambda number: quotas[number].shuffled(settings, nodes), self._shard_offsets(), renumber=renumber
        )

    def _shard_offsets(self) -> list[int]:
        """Number of each quota's first shard among the shards of all streams."""
        starts = np.cumsum([0, *(len(source.table) for source in self.sources)]).tolist()
        offset = dict(zip((source.name for source in self.sources), starts, strict=False))
        return [offset[quota.source.name] for quota in self._quotas]

    @cached_property
    def _static_epochs(self) -> StaticEpochs:
        from stoker.order.static_epoch import StaticEpochs

        return StaticEpochs(self._quotas, self.settings, self._shard_offsets(), self.origin, self._batching)

    def __getstate__(self) -> dict[str, Any]:
        # Locators are made again where they are used.
        return {name: value for name, value in self.__dict__.items() if name not in ("_locator", "_static_epochs")}


def _make_timeline(
    origin: RunOrigin, names: Sequence[str], counts: Sequence[int], schedule: Schedule | None, epoch_size: int
) -> Timeline | None:
    """The phases of training, counted from the begin of a run or the last change of its streams; ``None`` without samples.

    Args:
        names: of the streams, or of the streams of the quotas.
        counts: samples of each in an epoch, where no schedule says it.
        epoch_size: positions in an epoch, for a schedule.
    """
    consumed = tuple(origin.consumed.get(name, 0) for name in names)
    counted = CountingOrigin(origin.epoch, origin.position, origin.samples, consumed, origin.turn)
    if schedule is not None:
        return schedule.timeline(names, epoch_size, counted)
    rest = [origin.rest[name] for name in names] if origin.rest else None
    return Timeline.constant(counts, counted, rest) if any(counts) else None
