"""Token sources of a loader: one, or a mixture of several by name, whose weights and sources change in mid-run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from stoker.arguments import check_argument, checked, must_be, must_know
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.tables.open_table import find_version
from stoker.catalog.unindexed.files_location import Files
from stoker.catalog.unindexed.open_files import OnBadFiles
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import ConfigError, StateError
from stoker.loaders.epoch_by_files import EpochByFiles
from stoker.order.global_batches import Remainder
from stoker.order.mixture.schedule import Schedule
from stoker.tokens.layouts.base import TokenLayout
from stoker.tokens.layouts.block_builder import BlockBuilder
from stoker.tokens.order.mixture import SourceWeights, TokenMixture
from stoker.tokens.sources.parquet import open_source
from stoker.tokens.sources.source import TokenSource


class SourcesByName(EpochByFiles):
    """Base of a loader of tokens: how it opens its sources, and changes a mixture of them."""

    _rows: TokenLayout
    _opening: tuple[str, Mapping[str, Any] | None, str | os.PathLike[str] | None]
    """Format, format_options and local."""
    _open_options: dict[str, Any]
    _settings: tuple[int | None, int, Remainder]
    """Seed, shuffle_tokens and remainder."""
    _given: SourceWeights
    """The weights that the loader was made with."""
    _parts: int

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources of a mixture, as ``batch.source_ids`` numbers them: in the order of their names."""
        return tuple(self._sources)

    @checked
    def set_weights(self, weights: Mapping[str, float] | Schedule) -> None:
        """Change the weights of a mixture from the next batch on, also of an iteration that is running.

        Call it on all ranks between the same two steps. States remember it.

        Args:
            weights: as ``weights=`` of the loader.

        Raises:
            ConfigError: this is no mixture, or batches are read ahead of training, by workers of a ``DataLoader`` or by a
                trainer: give ``weights=`` a :class:`~stoker.Schedule` there.
        """
        self.change_weights(weights, self._state_now())

    def change_weights(self, weights: Mapping[str, float] | Schedule, state: Mapping[str, Any]) -> None:
        """The same, from where a state was taken, for loaders that count what they deliver."""
        self._check_mixture()
        self._change(state, self._sources, replace(self._weights, shares=weights, repeat=None))

    @checked
    def remove(self, name: str, weights: Mapping[str, float] | None = None) -> None:
        """Take a source out of a mixture from the next batch on; as :meth:`set_weights`.

        Args:
            name: of the source.
            weights: of those that are left. Default: as they are.

        Raises:
            ConfigError: there is no such source, or no other.
        """
        state = self._state_now()
        must_know("source", [name], self._sources)
        must_be("one of several sources: a mixture cannot be empty", len(self._sources) > 1, name=name)
        now = self._weights
        if weights is None and isinstance(now.shares, Mapping):
            weights = {other: share for other, share in now.shares.items() if other != name}
        changed = now if weights is None else replace(now, shares=weights, repeat=None)
        if changed.repeat is not None:
            changed = replace(changed, repeat={k: often for k, often in changed.repeat.items() if k != name})
        left = {other: source for other, source in self._sources.items() if other != name}
        gone = self._sources[name]
        self._change(state, left, changed)
        gone.close()

    @checked
    def add(self, name: str, source: Files | TokenSource, weights: Mapping[str, float] | None = None) -> None:
        """Add a source to a mixture from the next batch on; as :meth:`set_weights`.

        To resume such a run, make the loader with this source and the weights, and load the state with
        ``change_streams=True``.

        Args:
            name: of the source.
            source: as one of the loader's.
            weights: of all sources. Default: the weights as they are, which is possible where there are none.

        Raises:
            ConfigError: there is such a source, or it lacks a weight.
        """
        state = self._state_now()
        must_be("another name than those of the sources", name not in self._sources, name=name)
        now = self._weights
        changed = now if weights is None else replace(now, shares=weights, repeat=None)
        changed.check([*self._sources, name])
        opened = self._open(source, name)
        try:
            self._change(state, dict(sorted({**self._sources, name: opened}.items())), changed)
        except BaseException:
            opened.close()
            raise

    @property
    def _weights(self) -> SourceWeights:
        order = self._resume.sample_order
        assert isinstance(order, TokenMixture)
        return order.weights

    def _state_now(self) -> dict[str, Any]:
        """The state behind the batch that was delivered last, for a change of what follows."""
        self._check_mixture()
        ahead = self._progress is not None and self._ahead and self._exhausted is None
        try:
            self._resume.check_alone()
        except StateError:
            ahead = True
        if ahead:
            raise ConfigError(
                "workers of a DataLoader, or the trainer around this loader, have already read batches with the old weights: "
                "iterate over this loader itself, call set_weights() of a StreamingDataLoader, or pass a Schedule as weights="
            )
        return self._resume.state(self._resume.here(), self._data_rank())

    def _check_mixture(self) -> None:
        if not self._sources:
            raise ConfigError("only a mixture can be changed: pass the sources as a dict, {name: files, ...}")

    def _change(
        self,
        state: Mapping[str, Any],
        sources: Mapping[str, TokenSource],
        weights: SourceWeights,
        *,
        goes_on: bool = True,
    ) -> None:
        """Continue where a state was taken, with these sources and weights, as an iteration that ``goes_on`` does, too."""
        builder, order = self._mixed(sources, weights)
        self._resume.change(state, order, goes_on=goes_on)
        self._builder, self._sources = builder, sources
        self._reset()

    def _open(self, source: Files | TokenSource, name: str | None = None) -> TokenSource:
        """A source, which has a name in a mixture."""
        form, version, local = self._opening
        if form in TABLE_FORMATS:
            table, settings = find_version(form, source, version, self._open_options["storage_options"])
            source, version = table.urls, {name: one for name, one in settings.items() if name != "hive"}
        if local is not None and name is not None:
            must_be("names, as they are folders of local=", name not in ("", ".", ".."), sources=name)
            local = os.path.join(local, quote(name, safe=" "))
        with span(Stage.LIST):
            return open_source(source, local=local, on_bad_files=_on_bad_files(version), **self._open_options)

    def _mixed(self, sources: Mapping[str, TokenSource], weights: SourceWeights) -> tuple[BlockBuilder, TokenMixture]:
        """The order over some sources, and the builder of their batches."""
        builder = BlockBuilder(list(sources.values()), self._rows)
        orders = [builder.sample_order("row", *self._settings, number) for number in range(len(sources))]
        named = dict(zip(sources, orders, strict=True))
        full = not self._rows.document_rows
        return builder, TokenMixture(named, builder.settings.seq_len, weights, self._given, self._parts, full=full)


def _on_bad_files(format_options: Mapping[str, Any] | None) -> OnBadFiles:
    """The one setting of Parquet that a loader of tokens has."""
    must_know("format_options", format_options or (), ["on_bad_files"], "StreamingParquetLoader: ")
    given = (format_options or {}).get("on_bad_files", "error")
    chosen: OnBadFiles = check_argument("StreamingParquetLoader", "on_bad_files", OnBadFiles, given)
    return chosen
