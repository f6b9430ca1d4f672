"""Tests of a loader: that it follows the protocol :class:`stoker.Loader`, over any number of ranks and after any stop."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from stoker.cluster import World
from stoker.errors import StateError
from stoker.loaders.protocol import Loader
from stoker.pipeline.stats.stats import StreamStats
from stoker.testing.values import raised, undefined


class LoaderTests:
    """Tests of a loader. A subclass makes the data and the loader, in :meth:`write`, :meth:`make` and :meth:`samples`.

    Make the loader so that it shuffles, has at least eight items an epoch on each of three ranks, and may stop between any
    two items. The samples of an epoch must differ from each other.

    Attributes:
        worlds: world sizes that the epoch is divided among.
        known_length: whether ``len`` is known without iterating; otherwise it must raise a ``TypeError``.
        any_world: whether a state goes on in a world of another size; otherwise that must be a ``StateError``.

    >>> from stoker import MDSWriter, StreamingDataset
    >>> class TestStreamingDataset(LoaderTests):
    ...     def write(self, folder, numbers):
    ...         with MDSWriter({"id": "int"}, folder, size_limit=100) as out:
    ...             for number in numbers:
    ...                 out.write({"id": number})
    ...     def make(self, folder, world):
    ...         return StreamingDataset(folder, shuffle=True, batch_size=1, world=world, remainder="uneven")
    ...     def samples(self, item):
    ...         return [item["id"]]
    >>> TestStreamingDataset().test_the_ranks_of_a_world_deliver_every_sample_once()
    """

    worlds: ClassVar[Sequence[int]] = (1, 3)
    known_length: ClassVar[bool] = True
    any_world: ClassVar[bool] = True

    # -- what a subclass says --------------------------------------------------------------------------------------

    def write(self, folder: Path, numbers: range) -> None:  # noqa: ARG002 - a subclass's
        """Write data of these samples; at least 47, of which other numbers make other data."""
        raise undefined(self, "write(folder, numbers), which writes data of these samples")

    def make(self, folder: Path, world: World) -> Loader[Any]:  # noqa: ARG002 - a subclass's
        """A loader of the data in the folder, for the rank of a :class:`~stoker.World`."""
        raise undefined(self, "make(folder, world), which makes a loader of the data for a rank")

    def samples(self, item: Any) -> list[int]:  # noqa: ARG002 - a subclass's
        """The numbers of the samples that an item holds, without those that only fill it."""
        raise undefined(self, "samples(item), which tells the samples of an item")

    # -- tests -----------------------------------------------------------------------------------------------------

    def test_the_ranks_of_a_world_deliver_every_sample_once(self) -> None:
        """With ``remainder="pad"`` at least once, with ``"drop"`` at most once; and in each of two epochs."""
        with self._data() as folder:
            for size in self.worlds:
                with self._ranks(folder, size) as loaders:
                    for _ in range(2):
                        self._check_epoch(loaders, [self._numbers(loader) for loader in loaders])

    def test_a_loader_made_again_delivers_the_same(self) -> None:
        """The order depends on arguments and data alone, and an epoch's on its number."""
        with self._data() as folder, self._ranks(folder, 2) as first, self._ranks(folder, 2) as second:
            for _ in range(2):
                assert [self._numbers(loader) for loader in first] == [self._numbers(loader) for loader in second]

    def test_len_is_the_number_of_items(self) -> None:
        """Of a rank, in a whole epoch; also after a part of it."""
        with self._data() as folder, self._ranks(folder, 2) as loaders:
            for loader in loaders:
                if not self.known_length:
                    raised(TypeError, len, loader, what="len() of a loader whose length is not known")
                    continue
                length = len(loader)
                assert sum(1 for _ in loader) == length == len(loader)

    def test_a_run_that_stops_continues_with_what_was_left(self) -> None:
        """After any item, and after the last, with the same items as a run that did not stop."""
        with self._data() as folder, self._ranks(folder, 2) as whole:
            epochs = [[self._numbers(loader) for _ in range(2)] for loader in whole]
            for stop in (0, 1, 4, min(len(first) for first, _ in epochs)):
                with self._ranks(folder, 2) as before, self._ranks(folder, 2) as after:
                    begun = [self._take(loader, stop) for loader in before]
                    for loader, other in zip(before, after, strict=True):
                        other.load_state_dict(_through_json(loader.state_dict()))
                    for taken, loader, (first, second) in zip(begun, after, epochs, strict=True):
                        assert taken == first[:stop]
                        rest = self._numbers(loader)
                        if stop == len(first):
                            # Nothing is left for this rank: an epoch of nothing, where others have more, or the next.
                            rest = rest or self._numbers(loader)
                            assert rest == second, f"the epoch after one that stopped after all its {stop} items"
                        else:
                            assert rest == first[stop:], f"after {stop} items"
                            assert self._numbers(loader) == second, "the epoch after one that was resumed"

    def test_a_run_that_stops_twice_continues_with_what_was_left(self) -> None:
        """A state that is taken before anything was delivered since the last is as good as that."""
        with self._data() as folder, self._ranks(folder, 1) as (whole,):
            numbers = self._numbers(whole)
            state: Mapping[str, Any] | None = None
            found: list[list[int]] = []
            for stop in (3, 0, 2):
                with self._ranks(folder, 1) as (loader,):
                    if state is not None:
                        loader.load_state_dict(state)
                    found += self._take(loader, stop)
                    state = _through_json(loader.state_dict())
            with self._ranks(folder, 1) as (loader,):
                assert state is not None
                loader.load_state_dict(state)
                assert found + self._numbers(loader) == numbers

    def test_a_run_continues_in_another_world_or_is_refused(self) -> None:
        """Any rank's state serves all ranks of a larger and of a smaller world: together, each sample once."""
        with self._data() as folder:
            for size, other in ((1, 3), (3, 2)):
                with self._ranks(folder, size) as before, self._ranks(folder, other) as after:
                    begun = [self._take(loader, 2) for loader in before]
                    states = [_through_json(loader.state_dict()) for loader in before]
                    if not self.any_world:
                        for loader in after:
                            raised(StateError, loader.load_state_dict, states[0], what="a state of another world")
                        continue
                    for loader in after:
                        loader.load_state_dict(states[-1])
                    self._check_epoch(after, begun + [self._numbers(loader) for loader in after])

    def test_a_state_of_other_data_is_refused(self) -> None:
        """As is what is no state at all."""
        with (
            self._data() as folder,
            self._data(range(5, 64)) as other,
            self._ranks(folder, 1) as (loader,),
            self._ranks(other, 1) as (stranger,),
            self._ranks(other, 1) as (fresh,),
        ):
            self._take(loader, 2)
            raised(StateError, stranger.load_state_dict, loader.state_dict(), what="a state of other data")
            for nonsense in ({}, {"version": 1}, {"nothing": "known"}):
                raised(StateError, stranger.load_state_dict, nonsense, what=f"the state {nonsense}")
            # What was refused leaves the loader as it was.
            assert self._numbers(stranger) == self._numbers(fresh)

    def test_an_iteration_that_runs_ends_with_an_error_when_a_state_is_loaded(self) -> None:
        """Its next item is a ``StateError``, not a sample of anywhere else; the next iteration begins at the state."""
        with self._data() as folder, self._ranks(folder, 1) as (whole,), self._ranks(folder, 1) as (loader,):
            numbers = self._numbers(whole)
            running = iter(loader)
            taken = [self.samples(next(running)) for _ in range(2)]
            state = _through_json(loader.state_dict())
            taken += [self.samples(next(running)) for _ in range(2)]
            assert taken == numbers[:4]
            raised(StateError, loader.load_state_dict, {"nothing": "known"}, what="no state at all")
            assert self.samples(next(running)) == numbers[4], "a state that was refused changed the iteration that runs"
            loader.load_state_dict(state)
            following = iter(loader)
            begun = self.samples(next(following))
            try:
                item = self.samples(next(running))
            except StateError:
                pass
            else:
                raise AssertionError(f"{item} after a state was loaded: a StateError is due")
            assert [begun, *map(self.samples, following)] == numbers[2:]

    def test_a_pickled_loader_delivers_the_same(self) -> None:
        """As a copy in a spawned process does: before the first item, and after an epoch."""
        with self._data() as folder, self._ranks(folder, 1) as (loader,):
            for _ in range(2):
                copy: Loader[Any] = pickle.loads(pickle.dumps(loader))  # noqa: S301 - made here
                with copy:
                    assert self._numbers(copy) == self._numbers(loader)
            self._take(loader, 1)
            pickle.dumps(loader)

    def test_statistics_can_be_taken_at_any_time(self) -> None:
        """Also before the first item and after closing; they count what was read."""
        with self._data() as folder, self._ranks(folder, 1) as (loader,):
            stats = [loader.stats()]
            self._take(loader, 2)
            stats.append(loader.stats())
            self._numbers(loader)
            loader.close()
            stats.append(loader.stats())
            assert all(isinstance(one, StreamStats) for one in stats)
            read = [one.samples_loaded + one.tokens for one in stats]
            assert read[0] == 0 < read[2], read
            assert read == sorted(read), read

    def test_a_loader_says_its_rank_and_closes_twice(self) -> None:
        """And at the end of a ``with`` block, in the middle of an epoch, too."""
        with self._data() as folder:
            for rank in range(2):
                loader = self.make(folder, World(rank, 2))
                assert isinstance(loader, Loader)
                with loader as entered:
                    assert entered is loader
                    assert (loader.world.rank, loader.world.world_size) == (rank, 2)
                    assert loader.remainder in ("pad", "drop", "uneven", "join")
                    next(iter(loader))
                loader.close()
                loader.close()

    # -- within ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _data(self, numbers: range = range(47)) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data"
            data.mkdir()
            self.write(data, numbers)
            yield data

    @contextmanager
    def _ranks(self, folder: Path, size: int) -> Iterator[list[Loader[Any]]]:
        """A loader for each rank of a world."""
        loaders = [self.make(folder, World(rank, size)) for rank in range(size)]
        try:
            yield loaders
        finally:
            for loader in loaders:
                loader.close()

    def _numbers(self, loader: Loader[Any]) -> list[list[int]]:
        """The rest of an epoch, or the next one: the numbers of each item."""
        return [self.samples(item) for item in loader]

    def _take(self, loader: Loader[Any], items: int) -> list[list[int]]:
        """The next items, of an iteration that stays begun."""
        return [self.samples(item) for item in islice(iter(loader), items)]

    def _check_epoch(self, loaders: Sequence[Loader[Any]], parts: Sequence[Sequence[Sequence[int]]]) -> None:
        counts = Counter(number for part in parts for item in part for number in item)
        remainder = loaders[0].remainder
        assert set(counts) <= set(range(47)), "samples that the data does not have"
        if remainder != "pad":
            assert max(counts.values()) == 1, f"samples that come twice: {counts.most_common(3)}"
        if remainder != "drop":
            assert len(counts) == 47, f"samples that never come: {sorted(set(range(47)) - set(counts))}"


def _through_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as a trainer saves and reads it."""
    again: dict[str, Any] = json.loads(json.dumps(state))
    assert again == state, "a state must be the same after JSON"
    return again
