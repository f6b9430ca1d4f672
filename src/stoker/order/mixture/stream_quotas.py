"""Quotas: the shuffled streams that epochs are mixed from, and how much of each an epoch has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from stoker.errors import ConfigError
from stoker.integers import mix
from stoker.lazy import cached_property
from stoker.order.mixture.reached import AppendedStream, Before
from stoker.order.mixture.weights import Mixture
from stoker.order.sample_order import Order
from stoker.order.selection import Everything, Sampled, Selection, dense_starts
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings

_TAG_STREAMS: Final = 1
_TAG_SAMPLED: Final = 2
_TAG_ADDED: Final = 5
TAG_MIXING: Final = 3
"""Of the keys of mixings."""


@dataclass(frozen=True)
class StreamQuota:
    """A stream of the mixture: a whole one, or with fixed sampling the whole rounds of one or the rest of them.

    Attributes:
        selection: its samples, or those that were drawn for all epochs.
        count: samples in an epoch; 0 where a schedule says how many.
        before: what it was before files were appended, where a pass of that is begun; the earliest first.
    """

    source: StreamSource
    selection: Selection
    count: int
    key: int
    before: tuple[Before, ...] = ()

    @cached_property
    def total(self) -> int:
        """Samples that there are."""
        return int(self.selection.sizes.sum())

    @property
    def begun(self) -> int:
        """The number at which passes over all of its samples begin."""
        if not self.before:
            return 0
        total = int(self.selection.sizes[: self.before[-1].shards].sum())
        return self.before[-1].next_begun(total, self.total - total)

    def shuffled(self, settings: NativeSettings, nodes: int) -> Order:
        """Its samples, shuffled for so many canonical nodes."""
        if not self.before:
            return self._shuffled(self.selection, self.key, settings, nodes)
        from stoker.order.number_sets import Span

        ends = [*(one.shards for one in self.before), len(self.source.table)]
        keys = [*(stream_key(settings.seed, one.fingerprint, one.twin) for one in self.before), self.key]
        block_sizes = [*(one.block_size for one in self.before), None]
        starts = dense_starts(self.selection).tolist()
        passes = [
            self._shuffled(Span(self.selection, [(0, starts[end])]), key, settings, nodes, size)
            for end, key, size in zip(ends, keys, block_sizes, strict=True)
        ]
        found: Order = passes[0]
        for number, told in enumerate(self.before):
            first, end, key = ends[number], ends[number + 1], keys[number + 1]
            chosen = Span(self.selection, [(starts[first], starts[end])])
            added = self._shuffled(chosen, mix(key, _TAG_ADDED), settings, nodes)
            found = AppendedStream(
                found,
                0 if number else told.begun,
                told,
                told.left(passes[number].total),
                added,
                added.total,
                passes[number + 1],
                nodes=nodes,
                window=settings.window,
                key=mix(key, TAG_MIXING),
            )
        return found

    def shuffled_part(self, settings: NativeSettings, part: int, parts: int) -> ShuffledStream:
        """Those of its samples that a part has, in an order of their own."""
        source = self.source
        chosen = settings.partition.part(source.table, self.selection, part, parts, source.labels)
        return self._shuffled(chosen, mix(self.key, parts, part), settings, 1)

    def _shuffled(
        self, selection: Selection, key: int, settings: NativeSettings, nodes: int, block_size: int | None = None
    ) -> ShuffledStream:
        whole = isinstance(selection, Everything)
        shuffle = stream_shuffle(selection, settings, nodes, block_size)
        return ShuffledStream(self.source.table, shuffle, key, None if whole else selection)


def stream_key(seed: int, fingerprint: str, twin: int) -> int:
    """The key of a stream's order: of what the data is, not of what it is called or where it lies."""
    return mix(seed, _TAG_STREAMS, int.from_bytes(fingerprint.encode()), twin)


def stream_shuffle(
    selection: Selection, settings: NativeSettings, nodes: int, block_size: int | None = None
) -> ShuffleSettings:
    """Settings of a selection's shuffle; defaults follow from the number of its samples and shards."""
    return ShuffleSettings.resolve(
        selection.sizes[selection.sizes > 0],
        shuffle=settings.shuffle,
        num_canonical_nodes=nodes,
        block_size=settings.block_size if block_size is None else block_size,
    )


def twin_numbers(fingerprints: Mapping[str, str], held: Mapping[str, int]) -> dict[str, int]:
    """Numbers of streams among those whose fingerprints are equal, which their keys depend on.

    ``fingerprints``: by name, in the order of the streams. ``held``: numbers that streams have had since before the streams
    changed.
    """
    taken = {(fingerprints[name], number) for name, number in held.items() if name in fingerprints}
    numbers: dict[str, int] = {}
    for name, fingerprint in fingerprints.items():
        number = held.get(name)
        if number is None:
            number = next(free for free in count() if (fingerprint, free) not in taken)
            taken.add((fingerprint, number))
        numbers[name] = number
    return numbers


def make_quotas(
    sources: Sequence[StreamSource], settings: NativeSettings, held: Mapping[str, int]
) -> tuple[StreamQuota, ...]:
    """The quotas that epochs are mixed from.

    ConfigError for weights that do not go together, or streams without samples. ``sources``: the streams. ``settings``: of
    the order. ``held``: see :func:`twin_numbers`.
    """
    # The same data twice is shuffled twice.
    identities = [source.fingerprint for source in sources]
    numbers = twin_numbers(dict(zip((source.name for source in sources), identities, strict=True)), held)
    keys = [
        stream_key(settings.seed, identity, numbers[source.name])
        for source, identity in zip(sources, identities, strict=True)
    ]
    totals = [int(source.selection.sizes.sum()) for source in sources]
    for source, total in zip(sources, totals, strict=True):
        if not total and len(sources) > 1:
            raise ConfigError(f"stream {source.name!r} has no samples: leave it out, or look at its subset")
    if settings.schedule is not None:
        return tuple(StreamQuota(source, source.selection, 0, key) for source, key in zip(sources, keys, strict=True))
    if not any(totals):
        return (StreamQuota(sources[0], sources[0].selection, 0, keys[0]),)
    if settings.epoch_size == 0:
        counts: Sequence[int] = [0] * len(totals)
    else:
        weights = [source.weight for source in sources]
        sizes = [source.selection.sizes for source in sources]
        # NumPy's generators take no negative seeds.
        counts = Mixture.resolve(sizes, weights, settings.epoch_size, settings.seed % (1 << 64)).choose
    quotas = []
    for source, total, samples, key in zip(sources, totals, counts, keys, strict=True):
        rounds, rest = divmod(samples, total)
        if settings.sampling_method == "balanced" or not rest:
            quotas.append(StreamQuota(source, source.selection, samples, key))
            continue
        if rounds:
            quotas.append(StreamQuota(source, source.selection, rounds * total, key))
        drawn = Sampled(source.selection, rest, settings.sampling_granularity, mix(key, _TAG_SAMPLED))
        quotas.append(StreamQuota(source, drawn, rest, mix(key, _TAG_SAMPLED)))
    return tuple(quotas)
