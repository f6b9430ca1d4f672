"""A dataset beneath ``datasets.IterableDataset.from_generator``: that package divides among workers and ranks itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from accelerate.data_loader import prepare_data_loader
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from stoker import KeepIds, StreamingDataset, World
from stoker.errors import ConfigError, StateError


def ids(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_sample_is_lost_among_workers(data: Path, workers: int) -> None:
    dataset = StreamingDataset(str(data), shuffle=True, batch_size=4)
    wrapped = datasets.IterableDataset.from_generator(lambda: iter(dataset))
    loader: Any = DataLoader(wrapped, batch_size=None, num_workers=workers)
    assert sorted(ids(loader)) == list(range(100))


@pytest.mark.parametrize("shuffles", [False, True])
def test_ranks_get_different_samples(data: Path, *, shuffles: bool) -> None:
    seen = []
    for rank in range(2):
        dataset = StreamingDataset(str(data), shuffle=True, batch_size=4, world=World(rank, 2))
        wrapped = datasets.IterableDataset.from_generator(lambda dataset=dataset: iter(dataset))
        assert len(ids(wrapped)) == 50
        dataset.set_epoch(0)
        if shuffles:
            wrapped = wrapped.shuffle(seed=1, buffer_size=10, max_buffer_input_shards=1)
        seen += ids(split_dataset_by_node(wrapped, rank=rank, world_size=2))
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("made", ["before", "in the thread"])
@pytest.mark.parametrize("way", ["shuffle", "map and shuffle", "interleave"])
def test_threads_of_the_package_read_the_whole_or_are_refused(data: Path, way: str, made: str, workers: int) -> None:
    """It fetches in threads where it shuffles or interleaves: its division is not on their stacks."""

    def stream(world: World | None) -> datasets.IterableDataset:
        def make() -> StreamingDataset:
            return StreamingDataset(str(data), columns=["id"], shuffle=True, batch_size=4, world=world)

        if made == "before":
            dataset = make()
            return datasets.IterableDataset.from_generator(lambda: iter(dataset))
        return datasets.IterableDataset.from_generator(lambda: iter(make()))

    def wrapped(world: World | None) -> datasets.IterableDataset:
        if way == "interleave":
            return datasets.interleave_datasets([stream(world), stream(world)])
        found = stream(world)
        if way == "map and shuffle":
            found = found.map(lambda sample: {"id": sample["id"]})
        return found.shuffle(buffer_size=10, seed=1)

    def loader(stream: datasets.IterableDataset) -> Any:
        return DataLoader(stream, batch_size=None, num_workers=workers)

    divided = []
    for rank in range(2):
        divided += ids(loader(split_dataset_by_node(wrapped(World()), rank, 2)))
        with pytest.raises(
            ConfigError, match=r"among the 2 ranks can not be seen.*The datasets package .* world=World\(\)"
        ):
            ids(loader(wrapped(World(rank, 2))))
    for seen in (divided, ids(loader(wrapped(None)))):
        assert sorted(set(seen)) == list(range(100))
        assert len(seen) in ((198, 199, 200) if way == "interleave" else (100,))  # it ends with the first that ends


def test_the_epoch_is_counted_where_the_package_reads_in_a_thread(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``set_epoch`` of its dataset is not seen there, and that of ours names it."""

    def made() -> StreamingDataset:
        return StreamingDataset(str(data), columns=["id"], shuffle=True)

    def alone(dataset: StreamingDataset) -> datasets.IterableDataset:
        """In the dataset's order, from a thread; the package looks at a first sample, which begins an epoch."""
        one = datasets.IterableDataset.from_generator(lambda: iter(dataset))
        return datasets.interleave_datasets([one], stopping_strategy="all_exhausted_without_replacement")

    dataset, plain = made(), made()
    stream, epochs = alone(dataset), [ids(plain) for _ in range(4)]
    assert [ids(stream) for _ in range(2)] == epochs[1:3]
    assert caplog.text.count("set_epoch(epoch) of its IterableDataset named is not seen") == 1
    taken = iter(stream)
    begun = [int(next(taken)["id"]) for _ in range(30)]
    state = stream.state_dict()
    del taken
    for epoch in (3, 1):
        dataset = made()
        stream = alone(dataset)
        stream.load_state_dict(state)
        dataset.set_epoch(epoch)
        assert (begun + ids(stream) == epochs[3]) is (epoch == 3)
    stream = alone(made())
    stream.load_state_dict(state)
    with pytest.raises(
        StateError, match=r"and of the StreamingDataset, which it reads in a thread. This would be epoch 1"
    ):
        ids(stream)


def read_all(parts: Any) -> Any:
    for part in parts:
        yield from part


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("list", "accelerate deals out|takes a list in gen_kwargs"),
        ("concatenate", "accelerate deals out the sources"),
        ("shuffle", "has no seed, so that each rank draws"),
        ("interleave", "can not be seen"),
        ("shard", "takes a list in gen_kwargs for sources"),
        ("tuple", ""),
        ("whole", ""),
    ],
)
def test_what_would_lose_samples_without_a_word_is_refused(data: Path, way: str, said: str) -> None:
    seen = []
    for rank in range(2):
        world = World() if way == "whole" else World(rank, 2)
        halves = [
            StreamingDataset(str(data), columns=["id"], batch_size=4, subset=KeepIds(half), world=world)
            for half in (range(48), range(48, 96))
        ]
        parts = [datasets.IterableDataset.from_generator(read_all, gen_kwargs={"parts": (half,)}) for half in halves]
        listed = datasets.IterableDataset.from_generator(
            read_all, gen_kwargs={"parts": tuple(halves) if way == "tuple" else halves}
        )
        stream = listed
        if way == "concatenate":
            stream = datasets.concatenate_datasets(parts)
        elif way == "interleave":
            stream = datasets.interleave_datasets(parts, probabilities=[0.5, 0.5])
        elif way == "shuffle":
            stream = parts[0].shuffle(buffer_size=10, max_buffer_input_shards=1)
        elif way == "shard":
            stream = listed.shard(2, rank)
        loader: Any = DataLoader(stream, batch_size=4)
        if way != "shard":
            loader = prepare_data_loader(loader, num_processes=2, process_index=rank, dispatch_batches=False)
        if said:
            with pytest.raises(ConfigError, match=said):
                list(loader)
        else:
            seen += [one for batch in loader for one in batch["id"].tolist()]
    assert said or sorted(seen) == list(range(96))


def test_a_part_of_the_samples_is_not_kept_as_the_whole(data: Path, tmp_path: Path) -> None:
    """Each rank would keep its part, which the trainer would divide once more."""

    def keep(world: World) -> datasets.Dataset:
        dataset = StreamingDataset(str(data), columns=["id"], world=world)
        return datasets.Dataset.from_generator(lambda: iter(dataset), cache_dir=str(tmp_path))

    with pytest.raises(datasets.exceptions.DatasetGenerationError) as refused:
        keep(World(0, 2))
    assert "world=World(), with which each rank reads all" in str(refused.value.__cause__)
    assert ids(keep(World())) == list(range(100))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_epoch_is_the_one_that_the_package_was_told(data: Path, workers: int) -> None:
    def wrapped() -> datasets.IterableDataset:
        dataset = StreamingDataset(str(data), columns=["id"], shuffle=True)
        return datasets.IterableDataset.from_generator(lambda: iter(dataset))

    dataset = StreamingDataset(str(data), columns=["id"], shuffle=True)
    epochs = [ids(dataset) for _ in range(4)]
    stream = wrapped()
    for epoch in (2, 3, 1):
        stream.set_epoch(epoch)
        loader: Any = DataLoader(stream, batch_size=None, num_workers=workers)
        assert ids(loader) == epochs[epoch]
    assert ids(stream) == epochs[1]


def test_a_state_of_the_package_resumes_in_its_epoch(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    def wrapped() -> datasets.IterableDataset:
        dataset = StreamingDataset(str(data), columns=["id"], shuffle=True)
        return datasets.IterableDataset.from_generator(lambda: iter(dataset))

    for epoch in (1, 0):
        stream = wrapped()
        stream.set_epoch(epoch)
        taken = iter(stream)
        begun = [int(next(taken)["id"]) for _ in range(30)]
        state = stream.state_dict()
        for again in (wrapped(), stream):
            again.set_epoch(epoch)
            again.load_state_dict(state)
            if again is stream and not epoch:
                with pytest.raises(StateError, match=r"does not say which epoch.* This would be epoch 1"):
                    ids(again)
            else:
                assert sorted(begun + ids(again)) == list(range(100))
    assert caplog.text.count("Taken for epoch 0") == 1
