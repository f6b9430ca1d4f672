"""What replaces a bad or filtered sample is the same after any resume, in any world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_data import write_with_bad

from stoker import Chain, ReadOptions, Stream, StreamingDataset
from stoker.cluster import World
from stoker.partitions import Contiguous, HashBased, RoundRobin
from support import write_columns

STREAMS = ("a", "b")
SAMPLES = 48
GLOBAL_BATCH = 8

ORDERS: dict[str, dict[str, Any]] = {
    "block": {},
    "in order": {"shuffle": False},
    "stratified": {"batching_method": "stratified"},
    "stratified, in order": {"batching_method": "stratified", "shuffle": False},
    "per stream": {"batching_method": "per_stream"},
    "per stream and device": {"batching_method": "device_per_stream"},
    "mosaicml": {"shuffle_algo": "py1e"},
    "mosaicml, stratified": {"shuffle_algo": "py1e", "batching_method": "stratified"},
    "mosaicml, in order": {"shuffle_algo": "py1e", "num_canonical_nodes": 2},
    "round robin": {"partition_algo": RoundRobin(), "remainder": "uneven"},
    "contiguous": {"partition_algo": Contiguous()},
    "by hash": {"partition_algo": HashBased(5, key="id"), "remainder": "uneven"},
}
SAME_BATCH_SIZE = ("per stream and device",)
# A filter and a quarantine look for other samples as bad ones do.
CASES: list[tuple[str, str]] = [
    *((order, "bad") for order in ORDERS),
    ("stratified", "filtered"),
    ("contiguous", "filtered"),
    ("stratified", "quarantine"),
    ("per stream and device", "quarantine"),
    ("mosaicml", "quarantine"),
    ("round robin", "quarantine"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams whose column is the id that samples have in both together."""
    out = tmp_path_factory.mktemp("data")
    for number, name in enumerate(STREAMS):
        write_columns(out / name, {"id": np.arange(number * SAMPLES, (number + 1) * SAMPLES)}, size_limit=300)
    return out


class Case:
    """Runs of one order, with the same samples bad in each."""

    def __init__(self, data: Path, order: str, how: str, quarantine: Path) -> None:
        self.data, self.order, self.how, self.quarantine = data, order, how, quarantine

    def opened(self, world: int, bad: set[int], batch: int | None = None) -> list[StreamingDataset]:
        """The datasets of all ranks."""

        def check(sample: dict[str, Any]) -> dict[str, Any]:
            if int(sample["id"]) in bad:
                raise ValueError("bad")
            return sample

        if self.how == "bad":
            settings: dict[str, Any] = {"transform": check, "on_bad_sample": "replace"}
        elif self.how == "quarantine":
            settings = {"read": ReadOptions(quarantine=self.quarantine)} if bad else {}
            self.quarantine.write_text("".join(f"{number}\n" for number in sorted(bad)))
        else:
            kept = Chain().filter(lambda sample: int(sample["id"]) not in bad, "kept", dropped="replace")
            settings = {"transform": kept}
        return [
            StreamingDataset(
                streams=[Stream(local=self.data / name) for name in STREAMS],
                batch_size=batch or GLOBAL_BATCH // world,
                world=World(rank, world, world),
                **{"shuffle": True, **settings, **ORDERS[self.order]},
            )
            for rank in range(world)
        ]

    def read(self, world: int, bad: set[int], state: Any = None, batch: int | None = None) -> list[list[int]]:
        """The batches of all ranks, rank after rank."""
        found = []
        for dataset in self.opened(world, bad, batch):
            if state is not None:
                left = () if bad else ("quarantine",)
                dataset.load_state_dict({name: value for name, value in state.items() if name not in left})
            found += [[int(one) for one in batch["id"]] for batch in dataset.batches()]
        return found

    def pairs(self, world: int, bad: set[int], state: Any = None, batch: int | None = None) -> set[tuple[int, int]]:
        """Each sample of a run, and what came in its place."""
        plain, found = self.read(world, set(), state, batch), self.read(world, bad, state, batch)
        assert [*map(len, plain)] == [*map(len, found)]
        return {pair for one, other in zip(plain, found, strict=True) for pair in zip(one, other, strict=True)}


@pytest.mark.parametrize(("order", "how"), CASES)
def test_what_replaces_a_sample_is_the_same_wherever_a_run_resumes(
    data: Path, tmp_path: Path, order: str, how: str
) -> None:
    case = Case(data, order, how, tmp_path / "quarantine")
    for begun, resumed in ((1, 1), (1, 2), (2, 1)):
        batch = GLOBAL_BATCH // begun
        plain = case.read(begun, set())
        # The first batches, so that only later samples can replace them; some of the last; and the first of each stream.
        bad = {one for batches in (plain[:3], plain[-2:]) for ids in batches for one in ids}
        bad |= {stream * SAMPLES + number for stream in range(len(STREAMS)) for number in range(12)}
        whole = case.pairs(begun, bad)
        assert len(dict(whole)) == len(whole), "a sample was replaced by two"
        assert {one for one, _ in whole if one in bad} == {one for one, other in whole if one != other} != set()
        first = case.opened(begun, bad)[0]
        batches = first.batches()
        for step in range(1, len(plain) // begun):
            next(batches)
            if begun != resumed and step not in (1, 3, 9):
                continue
            state = first.state_dict()
            again = batch if order in SAME_BATCH_SIZE else GLOBAL_BATCH // resumed
            rest = case.pairs(resumed, bad, state, again)
            assert rest
            assert rest <= whole


def test_columns_are_arrays_though_the_first_sample_after_a_resume_is_bad(tmp_path: Path) -> None:
    """Which of a function's columns are arrays is seen from a sample as it is stored; here those of whole batches are bad."""
    data = write_with_bad(tmp_path / "data", 64, {16, *range(32, 40)}, size_limit=1 << 20)

    def opened() -> StreamingDataset:
        chain = Chain().filter(lambda sample: True, "all")
        return StreamingDataset(data, transform=chain, on_bad_sample="replace", batch_size=8)

    whole = list(opened().batches())
    for step in range(8):
        dataset = opened()
        dataset.load_state_dict(dataset.state_dict(num_samples=8 * step))
        batch = next(dataset.batches())
        found, expected = batch["id"], whole[step]["id"]
        assert isinstance(found, np.ndarray)
        assert isinstance(expected, np.ndarray)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "dropping",
    [
        Chain().filter(lambda sample: sample["id"] % 5 == 1, "kept"),
        Chain().flat_map(lambda sample: [sample]).filter(lambda sample: sample["id"] % 5 == 1, "kept"),
    ],
    ids=["filter", "flat_map, filter"],
)
def test_a_sample_is_not_replaced_by_one_of_which_a_filter_leaves_nothing(data: Path, dropping: Chain) -> None:
    def check(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] in (6, 21):
            raise ValueError("bad")
        return sample

    chain = dropping.map(check)
    dataset = StreamingDataset(local=data / "a", batch_size=8, transform=chain, on_bad_sample="replace")
    found = [int(one) for batch in dataset.batches() for one in batch["id"]]
    assert len(found) == len([number for number in range(SAMPLES) if number % 5 == 1])
    assert set(found) == {number for number in range(SAMPLES) if number % 5 == 1} - {6, 21}
