"""The order of a run over several token sources, mixed by tokens.

Rows are of one source each, so what is mixed are rows: :class:`~stoker.order.native.NativeOrder` says how many rows of each
source an epoch has, and which come in which global batch, by numbers that count on from epoch to epoch. Every global batch
has each source in its exact share, and what a run has had of a source is all numbers below one. So any world can go on
anywhere, and weights and sources can change there.

A number of a source is a row of a pass over it. A pass is one sequence of blocks, divided into as many parts as there are
canonical nodes. Numbers go round the parts, as the numbers of a node do: so a rank reads some parts of each source, and a
few rows of its neighbours'. Nothing of this depends on the world.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import at_least, must_be, must_know
from stoker.errors import ConfigError, StateError
from stoker.lazy import cached_property
from stoker.order.mixture.mixing import NUMBER_BITS, EpochMixture
from stoker.order.mixture.reached import RunOrigin
from stoker.order.mixture.schedule import Schedule, epochs_in
from stoker.order.mixture.stream_locator import MixedOrder
from stoker.order.mixture.stream_quotas import stream_key, twin_numbers
from stoker.order.mixture.weights import StreamWeight
from stoker.order.native import NativeOrder
from stoker.order.part_plan import PART_BITS
from stoker.order.sample_order import DataRank, EpochPosition, Plan, Run
from stoker.order.selection import Everything
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.tokens.order.division import ReadSequence, TokenDivision
from stoker.tokens.order.token_order import (
    TOGETHER,
    UNIT_MASK,
    BatchSpans,
    TokenSampleOrder,
    TokenSettings,
    UnitOrder,
    block_key,
    joined_batches,
)
from stoker.types import Ids

_NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
_MOST_SEQUENCES: Final = (1 << 21) - 1
_MOST_WEIGHT: Final = 1e100
_MOST_ROWS: Final = 1 << 62
_LAID: Final = 64
"""Passes that are kept laid out, beside one of each source."""


@dataclass(frozen=True, slots=True)
class SourceWeights:
    """The share of each source.

    Attributes:
        shares: parts of the tokens of training, by source, or a schedule of them, whose times are tokens. ``None``: all of
            each source, once or as :attr:`repeat` says.
        repeat: how often an epoch has each token of a source; 1 where it is not named.
        epoch_tokens: tokens of an epoch. Default: as many as all sources have.
        unit: what shares are shares of.
        most_epochs: how often training has the tokens of a source at most.
    """

    shares: Mapping[str, float] | Schedule | None = None
    repeat: Mapping[str, float] | None = None
    epoch_tokens: int | None = None
    unit: Literal["tokens", "samples"] = "tokens"
    most_epochs: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in ("shares", "repeat", "most_epochs"):
            if isinstance(given := getattr(self, name), Mapping):
                object.__setattr__(self, name, dict(given))  # which the caller may change

    def check(self, names: Sequence[str]) -> None:
        """ConfigError if they do not go together, or name other sources than there are."""
        must_be("a dict of at least one source", bool(names), source={})
        alone = self.shares is None and self.epoch_tokens is None
        must_be("left out with weights= or epoch_tokens=", alone or self.repeat is None, repeat=self.repeat)
        must_know("unit", [self.unit], ("tokens", "samples"))
        must_be("left out without weights=", self.unit == "tokens" or self.shares is not None, unit=self.unit)
        must_be(
            "left out without weights=", not self.most_epochs or self.shares is not None, most_epochs=self.most_epochs
        )
        must_know("source", self.most_epochs or (), names, "most_epochs=: ")
        must_know("source", self.repeat or (), names, "repeat=: ")
        if isinstance(self.shares, Mapping):
            must_know("source", self.shares, names, "weights=: ")
            missing = [name for name in names if name not in self.shares]
            must_be(f"of all sources, 0 to turn one off: {missing} are missing", not missing, weights=dict(self.shares))
            must_be("above 0 for at least one source", any(self.shares.values()), weights=dict(self.shares))
        for option, given in (("weights", self.shares), ("repeat", self.repeat), ("most_epochs", self.most_epochs)):
            for name, value in given.items() if isinstance(given, Mapping) else ():
                good = isinstance(value, int | float) and 0 <= value < _MOST_WEIGHT
                must_be("a finite number from 0", good, **{f"{option}[{name!r}]": value})
        at_least(1, epoch_tokens=self.epoch_tokens)

    def as_dict(self) -> dict[str, Any]:
        """For states, JSON-serialisable."""
        shares = self.shares.as_dict() if isinstance(self.shares, Schedule) else self.shares
        unit = None if self.unit == "tokens" else self.unit
        told = {"shares": shares, "repeat": self.repeat, "epoch_tokens": self.epoch_tokens, "unit": unit}
        told["most_epochs"] = self.most_epochs or None
        return {name: value for name, value in told.items() if value is not None}

    @classmethod
    def read(cls, value: Any, names: Sequence[str]) -> SourceWeights:
        """Read what :meth:`as_dict` has told of these sources. StateError if it is damaged."""
        try:
            shares = value.get("shares")
            if shares is not None and "points" in shares:
                shares = Schedule.from_dict(shares)
            found = cls(**{**value, "shares": shares})
            found.check(names)
            return found
        except (AttributeError, LookupError, TypeError, ValueError, ConfigError) as error:
            raise StateError(f"this state should have the weights of its sources, found {value!r}") from error


class TokenMixture(NativeOrder):
    """The :class:`~stoker.order.sample_order.SampleOrder` of a run over several token sources.

    Args:
        alone: the order of each source alone, by name; all with the same settings, and divided by rows.
        seq_len: the most tokens in a row.
        full: whether rows are full, or nearly; otherwise each source has its own mean.
        given: as the loader was made with them, for states.
        parts: of each pass: canonical nodes.
        origin: where a run with changed sources was restarted.

    Raises:
        ConfigError: a source has less than a row, or weights make no sense.
    """

    def __init__(
        self,
        alone: Mapping[str, TokenSampleOrder],
        seq_len: int,
        weights: SourceWeights,
        given: SourceWeights,
        parts: int,
        *,
        full: bool = True,
        origin: RunOrigin | None = None,
    ) -> None:
        weights.check(list(alone))
        self.alone = dict(alone)
        self.rows: TokenSettings = next(iter(alone.values())).settings
        self.weights, self.given, self._parts = weights, given, parts
        self._again = partial(TokenMixture, alone, seq_len, given=given, parts=parts, full=full)
        mean, counted, streams = {}, {}, []
        for name, source in self.alone.items():
            rows = source.division(1).rounds.total
            if not rows:
                raise ConfigError(
                    f"source {name!r} has fewer tokens than a row of {seq_len}, and there is no pad_id to fill it up: leave "
                    "the source out, or give pad_id"
                )
            mean[name] = min(source.tokens / rows, seq_len)
            counted[name] = mean[name] if weights.unit == "tokens" else source.documents / rows
            table = ShardTable(np.array([rows], dtype=np.int64))
            streams.append(
                StreamSource(
                    name,
                    table,
                    Everything(table),
                    self._weight(name, counted[name]),
                    source.about["fingerprint"],
                    url=source.url,
                    about=partial(dict, source.about, rows=rows),
                )
            )
        tokens = self.weights.epoch_tokens
        each = float(seq_len) if full else self._mean_tokens(mean, counted)
        settings = NativeSettings(
            shuffle="none" if self.rows.seed is None else "shard",
            seed=self.rows.seed or 0,
            num_canonical_nodes=self._parts,
            epoch_size=None if tokens is None else max(1, int(tokens / each)),
            batching_method="stratified",
            schedule=self._schedule(mean, counted, each, full=full),
            remainder=self.rows.remainder,
        )
        super().__init__(streams, settings, origin)

    def _mean_tokens(self, mean: Mapping[str, float], counted: Mapping[str, float]) -> float:
        """Tokens in a row of the mixture, by those of its sources; of a schedule, by its first weights."""
        shares = self.weights.shares
        if shares is None:
            return _tokens_a_row({name: source.tokens for name, source in self.alone.items()}, mean, mean)
        return _tokens_a_row(dict(shares.points[0][1]) if isinstance(shares, Schedule) else shares, mean, counted)

    def _weight(self, name: str, counted: float) -> StreamWeight:
        shares, repeat = self.weights.shares, self.weights.repeat
        if repeat is not None:
            return StreamWeight(repeat=repeat.get(name, 1))
        if shares is None or isinstance(shares, Schedule) or self.weights.most_epochs:
            return StreamWeight()
        return StreamWeight(shares[name] / counted)

    def _schedule(
        self, mean: Mapping[str, float], counted: Mapping[str, float], each: float, *, full: bool
    ) -> Schedule | None:
        """The shares of rows at times in rows, where shares change; ``each``: tokens in a row at first."""
        shares, epochs = self.weights.shares, self.weights.most_epochs or {}
        if isinstance(shares, Mapping) and epochs:
            shares = Schedule(((0, tuple(shares.items())),))
        if not isinstance(shares, Schedule):
            return None
        passes = {name: source.division(1).rounds.total for name, source in self.alone.items()}
        most = {name: int(tokens / mean.get(name, 1.0)) for name, tokens in shares.most}
        most |= {name: min(int(often * passes[name]), most.get(name, _MOST_ROWS)) for name, often in epochs.items()}
        if full and self.weights.unit == "tokens":
            points = tuple((int(time / each) if isinstance(time, int) else time, one) for time, one in shares.points)
            rows = tuple(
                (time, tuple((name, part / counted.get(name, 1.0)) for name, part in one)) for time, one in points
            )
            return Schedule(rows, shares.interpolate, tuple(most.items()))
        tokens = self.weights.epoch_tokens
        epoch_rows = sum(passes.values()) if tokens is None else max(1, int(tokens / each))
        return Schedule(tuple(_by_rows(shares, mean, counted, epoch_rows)), 0, tuple(most.items()))

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides which row comes when."""
        told = super().as_dict()
        order = next(iter(self.alone.values())).as_dict()["order"] | told["order"]
        for name in ("granularity", "shuffle", "partition"):
            del order[name]
        order["seed"] = self.rows.seed
        order |= {"weights": self.weights.as_dict(), "given": self.given.as_dict()}
        return {"streams": told["streams"], "order": order}

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The rows of one reader; the order is a :class:`MixedUnits`."""
        run = super().run(position, data_rank)
        # A plan over one source has positions, and not codes.
        mixture = run.order.mixture if isinstance(run.order, MixedOrder) else None
        return Run(MixedUnits(list(self.alone.values()), self._seeds, self._parts, mixture), run.plan)

    @cached_property
    def _seeds(self) -> Sequence[int | None]:
        fingerprints = {name: str(source.about["fingerprint"]) for name, source in self.alone.items()}
        twins, seed = twin_numbers(fingerprints, self.origin.twins), self.rows.seed
        return [None if seed is None else stream_key(seed, text, twins[name]) for name, text in fingerprints.items()]

    def with_changed_streams(self, origin: RunOrigin) -> NativeOrder:
        """This order, restarted where sources or weights were changed."""
        if origin.passed:
            raise StateError("this state passed over rows, as no run of a mixture of tokens does: it is damaged")
        return super().with_changed_streams(origin)

    @property
    def _turns(self) -> bool:
        return True

    def _restarted(self, origin: RunOrigin | None) -> TokenMixture:
        return self._again(weights=self.weights, origin=origin)

    def with_weights_of(self, saved: Mapping[str, Any]) -> TokenMixture:
        """This order with the weights of a state, if its run was begun as this one is, and has the same sources."""
        order = saved.get("order", {})
        if set(saved.get("streams", ())) != set(self.alone) or order.get("given") != self.given.as_dict():
            return self
        weights = SourceWeights.read(order.get("weights"), list(self.alone))
        return self if weights == self.weights else self._again(weights=weights)


def _tokens_a_row(shares: Mapping[str, float], mean: Mapping[str, float], counted: Mapping[str, float]) -> float:
    """Tokens in a row of a mixture, on average; ``mean``: of each source, ``counted``: what its rows have of a share."""
    rows = {name: share / counted.get(name, 1.0) for name, share in shares.items()}
    whole = sum(rows.values()) or 1.0
    return sum(number * mean.get(name, 1.0) for name, number in rows.items()) / whole or 1.0


def _by_rows(
    schedule: Schedule, mean: Mapping[str, float], counted: Mapping[str, float], epoch_rows: int
) -> list[tuple[int, tuple[tuple[str, float], ...]]]:
    """The shares of rows of a schedule of tokens or samples, at times in rows, whose tokens change with the shares."""
    found: list[tuple[int, tuple[tuple[str, float], ...]]] = []
    rows = tokens = 0.0
    for number, (time, weights) in enumerate(schedule.points):
        following = schedule.points[number + 1 : number + 2]
        until, after = following[0] if following else (0, weights)
        steps, whole, later = (schedule.interpolate if following else 0) or 1, dict(weights), dict(after)
        now, then = sum(whole.values()) or 1.0, sum(later.values()) or 1.0
        start_rows, start_tokens, epochs = rows, tokens, epochs_in(until)
        for step in range(steps):
            part = step / steps
            shares = {k: (1.0 - part) * one / now + part * later.get(k, 0.0) / then for k, one in whole.items()}
            point = tuple((name, share / counted.get(name, 1.0)) for name, share in shares.items())
            if found and int(rows) <= found[-1][0]:
                found.pop()
            found.append((int(rows), point))
            each = _tokens_a_row(shares, mean, counted)
            if epochs is None:
                length = (int(until) - start_tokens) / steps / each
            else:
                length = (float(epochs) * epoch_rows - start_rows) / steps
            must_be(f"after {time!r}, the one before", length > 0 or not following, point=until)
            rows, tokens = rows + length, tokens + length * each
    return found


class MixedUnits(UnitOrder):
    """The units of several sources, pass after pass; positions are numbers of rows of a source.

    A *sequence* is a pass over a source here.

    Args:
        seeds: of each; ``None`` without shuffling.
        mixture: which row comes at which position, where plans have positions.
    """

    together = TOGETHER, 64 << 20  # so that rows which are made together are many of each part of each source, too

    def __init__(
        self,
        sources: Sequence[TokenSampleOrder],
        seeds: Sequence[int | None],
        parts: int,
        mixture: EpochMixture | None,
    ) -> None:
        self.settings: TokenSettings = sources[0].settings
        self._sources, self._seeds, self._mixture = sources, seeds, mixture
        self._divisions: list[TokenDivision] = [source.division(parts) for source in sources]
        self._parts = parts
        self._laid = lru_cache(maxsize=_LAID + len(sources))(self._lay)

    def sequence(self, number: int) -> ReadSequence:
        """A pass over a source."""
        return self._laid(number)

    def _lay(self, number: int) -> ReadSequence:
        passes, source = divmod(number, len(self._sources))
        cells, block_tokens = self._sources[source].cells, max(1, self.settings.block_tokens // self._parts)
        return self._divisions[source].sequence(cells, 0, self._seeds[source], passes, block_tokens)

    def key(self, sequence: int, block: int) -> int | None:
        """See :meth:`UnitOrder.key`."""
        passes, source = divmod(sequence, len(self._sources))
        return block_key(self._seeds[source], passes, self.sequence(sequence), block)

    def source(self, sequence: int) -> int:
        """See :meth:`UnitOrder.source`."""
        return sequence % len(self._sources)

    def steps(self, plan: Plan, worker: int, workers: int, skip: int, together: int) -> Iterator[BatchSpans]:
        """See :meth:`UnitOrder.steps`; rows are made source by source, in the order of each source.

        The first batches are fewer: these do not need a block of each part.
        """
        some = 1
        for batches in plan.chunks(TOGETHER, worker, workers, skip):
            numbers, begins = joined_batches(batches)
            firsts, first = [], 0
            while first < len(batches):
                firsts.append(first)
                first, some = first + some, min(2 * some, together)
            begins = begins[[*firsts, -1]]
            group = np.repeat(np.arange(begins.size - 1), np.diff(begins))
            units = self._units(numbers)
            order = np.lexsort((units, group))
            rows: Ids = np.empty_like(order)
            rows[order] = np.arange(order.size) - begins[group]
            for number, spans in enumerate(self.spans(units[order], begins)):
                yield BatchSpans(spans, rows[begins[number] : begins[number + 1]])

    def _units(self, positions: Ids) -> Ids:
        codes = positions if self._mixture is None else self._mixture.codes(positions)
        streams, found = codes >> NUMBER_BITS, np.empty_like(codes)
        for source in np.unique(streams).tolist():
            here = np.flatnonzero(streams == source)
            division = self._divisions[source]
            passes, inside = np.divmod(codes[here] & _NUMBER_MASK, division.rounds.total)
            positions = division.rounds.to_part_positions(inside)
            units = division.firsts[positions >> PART_BITS] + (positions & UNIT_MASK)
            sequences = passes * len(self._sources) + source
            few = int(sequences.max(initial=0)) <= _MOST_SEQUENCES
            must_be(f"fewer over a source of {division.rounds.total} rows", few, passes=int(passes.max(initial=0)))
            found[here] = sequences << PART_BITS | units
        return found

    def _slots(self, sequences: Ids, units: Ids) -> Ids:
        sources, slots = sequences % len(self._sources), np.empty_like(sequences)
        for source in np.unique(sources).tolist():
            here = np.flatnonzero(sources == source)
            parts = np.searchsorted(self._divisions[source].firsts, units[here] & UNIT_MASK, side="right") - 1
            slots[here] = source * self._parts + parts
        return slots

    def _by_sequence(self, positions: Ids) -> Iterator[tuple[NDArray[np.bool_], int, Ids]]:
        sequences = positions >> PART_BITS
        for number in np.unique(sequences).tolist():
            here = sequences == number
            yield here, number, positions[here] & UNIT_MASK
