"""Who divides: the dataset, or a wrapper around its loader. The wrappers here have accelerate's names and attributes;
``tests/trainers`` has the real ones.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import sys
import threading
from abc import ABCMeta
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from patience import PATIENCE
from stoker import StreamingDataset, World, errors
from stoker.cluster import LoaderWorker
from stoker.cluster.call_stack import called_from, in_other_thread
from stoker.cluster.outer_division import _OF_RANKS, outer_division
from stoker.formats.mds.encodings import images
from stoker.order.partition_strategies import RoundRobin
from stoker.pipeline.ranks.data_rank import DataRankFinder
from support import make_dataset

SOURCE = """
class IterableDatasetShard:
    def __init__(self, dataset, batch_size, num_processes, process_index, split_batches=False, drop_last=False):
        self.dataset, self.batch_size, self.num_processes = dataset, batch_size, num_processes
        self.process_index, self.split_batches, self.drop_last = process_index, split_batches, drop_last

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        size = self.batch_size if self.split_batches else self.batch_size * self.num_processes
        each = size // self.num_processes
        first, batch = None, []
        for element in self.dataset:
            batch.append(element)
            if len(batch) == size:
                yield from batch[self.process_index * each : (self.process_index + 1) * each]
                first, batch = first or batch, []
        if batch and not self.drop_last:
            first = first or list(batch)
            while len(batch) < size:
                batch += first
            yield from batch[self.process_index * each : (self.process_index + 1) * each]

    def ask(self, function):
        return function()


class DataLoaderDispatcher:
    dataset = submesh_tp = None

    def __init__(self, batch_size, state, split_batches=False, drop_last=False):
        self.batch_size, self.state, self.split_batches, self.drop_last = batch_size, state, split_batches, drop_last

    def ask(self, function):
        return function()
"""


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with accelerate's name."""
    module = ModuleType("accelerate.data_loader")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", module)
    return module


@pytest.fixture
def dataset(tmp_path: Any) -> StreamingDataset:
    """100 samples, shuffled, in a world of two ranks of which this is the second."""
    make_dataset(tmp_path, 100)
    return StreamingDataset(str(tmp_path), shuffle=True, batch_size=4, num_canonical_nodes=2, world=World(1, 2))


def ids(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


def test_without_a_wrapper_the_dataset_divides(accelerate: Any, dataset: StreamingDataset) -> None:
    assert outer_division() is None
    assert len(dataset) == 50


@pytest.mark.parametrize("split", [False, True])
def test_a_shard_gets_all_samples_and_keeps_what_the_rank_would_get(
    accelerate: Any, dataset: StreamingDataset, split: bool
) -> None:
    native = ids(dataset)
    dataset.set_epoch(0)
    shard = accelerate.IterableDatasetShard(dataset, 8 if split else 4, 2, 1, split)
    kept = ids(shard)
    assert kept[:48] == native[:48]
    assert len(shard) == 100
    both = kept + ids(accelerate.IterableDatasetShard(dataset_of_epoch(dataset, 0), 8 if split else 4, 2, 0, split))
    assert sorted(set(both)) == list(range(100))


def dataset_of_epoch(dataset: StreamingDataset, epoch: int) -> StreamingDataset:
    dataset.set_epoch(epoch)
    return dataset


def test_a_shard_reads_only_its_rank_s_samples_but_for_the_first_and_the_last_batch(
    accelerate: Any, tmp_path: Any
) -> None:
    make_dataset(tmp_path, 1000)
    read: list[int] = []

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        read.append(sample["id"])
        return sample

    dataset = StreamingDataset(str(tmp_path), batch_size=4, transform=transform, world=World(1, 8))
    shards = accelerate.IterableDatasetShard(dataset, 4, 8, 1)
    kept = ids(shards)
    assert len(kept) == 128
    assert len(read) == 32 + 30 * 4 + 8  # 31 full global batches of 32 and one of 8


def test_a_shard_around_another_iterable_gets_all_samples(accelerate: Any, dataset: StreamingDataset) -> None:
    class Wrapped:
        def __iter__(self) -> Iterator[int]:
            for sample in dataset:
                yield int(sample["id"])

    shard = accelerate.IterableDatasetShard(Wrapped(), 4, 2, 0)
    assert len(set(shard)) == 52


class Ahead:
    """Reads in a thread; ``make`` is called there. Its error is raised where samples are asked for."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        read: queue.Queue[Any] = queue.Queue(4)

        def run() -> None:
            try:
                for sample in self.make():
                    read.put(sample)
            except Exception as error:
                read.put(error)
            else:
                read.put(None)

        threading.Thread(target=run, daemon=True).start()
        for sample in iter(read.get, None):
            if isinstance(sample, Exception):
                raise sample
            yield sample


@pytest.mark.parametrize("taken", [0, 1, 9])
def test_an_iteration_that_began_outside_of_a_wrapper_is_refused(
    accelerate: Any, dataset: StreamingDataset, taken: int
) -> None:
    """As where a first sample was looked at: half of the others would be lost."""
    begun = iter(dataset)
    first = [next(begun) for _ in range(taken)]
    shard = accelerate.IterableDatasetShard(itertools.chain(first, begun), 4, 2, 1)
    if taken:
        with pytest.raises(errors.ConfigError, match="before IterableDatasetShard was around it"):
            list(shard)
    else:
        assert len(ids(shard)) == 52


def test_what_a_thread_reads_for_a_wrapper_is_refused_where_nobody_says_who_divides(
    accelerate: Any, dataset: StreamingDataset, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper is not on the thread's stack."""

    def kept(rank: int, world: World | None) -> list[int]:
        monkeypatch.setenv("RANK", str(rank))
        read = StreamingDataset(str(tmp_path), shuffle=True, batch_size=4, world=world)
        return ids(accelerate.IterableDatasetShard(Ahead(lambda: read), 4, world_size, rank))

    monkeypatch.setenv("WORLD_SIZE", "2")
    world_size = 2
    with pytest.raises(
        errors.ConfigError, match=r"accelerate.data_loader is imported, .* the 2 ranks .* world=World\(\) where"
    ):
        kept(0, None)
    both = kept(0, World()) + kept(1, World())
    assert len(both) == 104  # those with which the wrapper fills its last batch
    assert set(both) == set(range(100))
    monkeypatch.setenv("WORLD_SIZE", "1")
    world_size = 1
    assert sorted(kept(0, None)) == list(range(100))


def test_a_thread_that_is_told_reads_its_own_part(
    accelerate: Any, dataset: StreamingDataset, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a wrapper that divides for another; a thread needs not be told where no such package is imported."""
    training = iter(accelerate.IterableDatasetShard(dataset, 4, 2, 0))
    next(training)
    other = StreamingDataset(str(tmp_path), batch_size=4, world=World(0, 2))
    assert len(ids(Ahead(lambda: other))) == 50
    assert len(list(training)) == 51
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in _OF_RANKS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert len(ids(Ahead(lambda: StreamingDataset(str(tmp_path), batch_size=4)))) == 50


def test_a_thread_of_ray_is_the_one_that_trains(
    accelerate: Any, dataset: StreamingDataset, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = ModuleType("ray")
    exec("def train(function):\n    return list(function())", vars(ray))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = StreamingDataset(str(tmp_path), batch_size=4)
    assert len(ids(Ahead(lambda: ray.train(lambda: other)))) == 50
    shard = accelerate.IterableDatasetShard(other, 4, 2, 0)
    assert len(list(Ahead(lambda: ray.train(lambda: shard)))) == 52


@pytest.mark.parametrize("root", ["a_package.pipe", "webdataset.pipeline", "torch.utils.data.datapipes.iter"])
def test_a_thread_of_a_worker_is_refused_where_the_package_around_it_may_divide(
    dataset: StreamingDataset, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    data = pytest.importorskip("torch.utils.data")
    pipe = type("Pipe", (), {"__module__": root})()
    worker = SimpleNamespace(id=1, num_workers=2, seed=7, dataset=pipe)
    monkeypatch.setattr(data, "get_worker_info", lambda: worker)
    monkeypatch.setattr(images, "_at_once", False)  # put back after: a worker sets it for its whole process
    alone = StreamingDataset(str(tmp_path), batch_size=4)
    if root == "a_package.pipe":
        assert len(ids(Ahead(lambda: alone))) == 48
    else:
        with pytest.raises(errors.ConfigError, match=r"one of 2 DataLoader workers, which .* num_workers=1 or 0"):
            ids(Ahead(lambda: alone))


def test_functions_in_c_between_are_noticed(accelerate: Any, dataset: StreamingDataset) -> None:
    def number(sample: Any) -> int:
        return int(sample["id"])

    class Mapped:
        def __iter__(self) -> Iterator[int]:
            return map(number, iter(dataset))

    assert len(set(accelerate.IterableDatasetShard(Mapped(), 4, 2, 0))) == 52


def test_a_dispatcher_over_unequal_workers_is_refused(
    accelerate: Any, dataset: StreamingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = accelerate.DataLoaderDispatcher(4, SimpleNamespace(num_processes=2))
    monkeypatch.setattr(LoaderWorker, "detect", lambda: LoaderWorker(1, 2, 7))
    monkeypatch.setattr(images, "_at_once", False)  # put back after: a worker sets it for its whole process
    with pytest.raises(errors.ConfigError, match="use num_workers=1 or 0"):
        dispatcher.ask(lambda: list(dataset))
    dispatcher.dataset = dataset
    assert len(dispatcher.ask(lambda: list(dataset))) == 48


def test_a_dispatcher_that_sends_all_ranks_the_same_gets_all(accelerate: Any, dataset: StreamingDataset) -> None:
    dispatcher = accelerate.DataLoaderDispatcher(4, SimpleNamespace(num_processes=2))
    dispatcher.submesh_tp = object()
    assert sorted(dispatcher.ask(lambda: ids(dataset))) == list(range(100))


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_sharding_filter_is_refused_where_it_divides(dataset: StreamingDataset, tmp_path: Any, workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    alone = StreamingDataset(str(tmp_path), batch_size=4)
    pipe = pipes.IterableWrapper(alone, deepcopy=False).sharding_filter()
    loader = data.DataLoader(pipe, batch_size=None, num_workers=workers)
    if workers:
        with pytest.raises(errors.ConfigError, match="leave sharding_filter out"):
            list(loader)
    else:
        assert sorted(ids(loader)) == list(range(100))


def test_splitters_of_webdataset_are_refused_where_they_divide(
    dataset: StreamingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = pytest.importorskip("webdataset.shardlists")
    assert len(ids(lists.split_by_worker(dataset))) == 50
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(errors.ConfigError, match="leave split_by_node out"):
        ids(lists.split_by_node(dataset))


@pytest.mark.parametrize(("split", "size", "requests"), [(False, 8, 2), (True, 4, 1)])
def test_a_dispatcher_gets_global_batches(
    accelerate: Any,
    dataset: StreamingDataset,
    split: bool,
    size: int,
    requests: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher = accelerate.DataLoaderDispatcher(4, SimpleNamespace(num_processes=2), split)
    division = dispatcher.ask(outer_division)
    assert (division.batch_size, division.requests, division.kept) == (size, requests, None)
    assert sorted(dispatcher.ask(lambda: ids(dataset))) == list(range(100))
    assert dispatcher.ask(lambda: len(dataset)) == 100
    dataset.set_epoch(0)
    assert [len(batch["id"]) for batch in dispatcher.ask(lambda: list(dataset.batches()))] == [4] * 25
    assert caplog.text.count("rank 0 reads for all 2 ranks") == 1


def test_the_length_is_of_what_is_delivered(accelerate: Any, dataset: StreamingDataset) -> None:
    """Trainers ask a prepared loader for its length, then its dataset for the number of samples."""
    shard = accelerate.IterableDatasetShard(dataset, 4, 2, 1)
    assert len(dataset) == 50
    assert len(shard) == 100
    assert len(dataset) == 100
    ids(dataset)
    assert len(dataset) == 50


def test_a_wrapper_that_is_being_made_is_no_error(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader of accelerate looks for all attributes in another one, which it does not have yet."""

    class Unmade(accelerate.DataLoaderDispatcher):  # type: ignore[misc]
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise AttributeError

    shard = ABCMeta("IterableDatasetShard", (accelerate.IterableDatasetShard,), {})  # as torch's classes are
    monkeypatch.setattr(accelerate, "IterableDatasetShard", shard)
    assert accelerate.DataLoaderDispatcher.ask(object.__new__(Unmade), outer_division) is None


def test_one_rank_divides_nothing(accelerate: Any) -> None:
    assert accelerate.DataLoaderDispatcher(4, SimpleNamespace(num_processes=1)).ask(outer_division) is None


def test_a_copy_for_a_spawned_worker_knows_who_divides(accelerate: Any) -> None:
    finder = DataRankFinder(World(1, 2))
    dispatcher = accelerate.DataLoaderDispatcher(4, SimpleNamespace(num_processes=2))
    copy = pickle.loads(dispatcher.ask(lambda: pickle.dumps(finder)))
    assert copy.data_rank(4).batch_size == 8
    assert copy.data_rank(4).world_size == 1
    assert finder.data_rank(4).world_size == 2


def test_a_dataset_that_a_transform_reads_is_not_divided(
    accelerate: Any, dataset: StreamingDataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    make_dataset(other, 10)
    inner = StreamingDataset(str(other), world=World(0, 1))
    counts: list[int] = []

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        counts.append(len(list(inner)))
        return sample

    outer = StreamingDataset(str(other), batch_size=2, transform=transform, world=World(0, 2))
    assert len(ids(accelerate.IterableDatasetShard(outer, 2, 2, 0))) == 6
    assert set(counts) == {10}


def test_what_a_wrapper_can_not_divide_is_refused(accelerate: Any, dataset: StreamingDataset, tmp_path: Any) -> None:
    with pytest.raises(errors.ConfigError, match=r"whole batches.*num_processes=1"):
        accelerate.IterableDatasetShard(dataset, None, 2, 0).ask(lambda: dataset.set_epoch(0))
    inner = accelerate.IterableDatasetShard(dataset, 4, 2, 0)
    with pytest.raises(errors.ConfigError, match="twice"):
        list(accelerate.IterableDatasetShard(inner, 4, 2, 0))
    static = StreamingDataset(str(tmp_path), batch_size=4, partition_algo=RoundRobin(), world=World(0, 2))
    with pytest.raises(errors.ConfigError, match=r"'round_robin' says which rank.*num_processes=1"):
        list(accelerate.IterableDatasetShard(static, 4, 2, 0))


def test_a_state_beneath_a_wrapper_needs_the_samples_of_all_ranks(
    accelerate: Any, dataset: StreamingDataset, tmp_path: Any
) -> None:
    native = ids(dataset)
    dataset.set_epoch(0)
    kept = iter(accelerate.IterableDatasetShard(dataset, 4, 2, 1))
    seen = [int(next(kept)["id"]) for _ in range(8)]
    with pytest.raises(errors.StateError, match=r"reads ahead of training.*num_samples"):
        dataset.state_dict()
    state = dataset.state_dict(num_samples=16)
    rest = StreamingDataset(str(tmp_path), shuffle=True, batch_size=4, num_canonical_nodes=2, world=World(1, 2))
    rest.load_state_dict(state)
    assert seen + ids(rest) == native


def test_a_package_is_found_on_the_stack(accelerate: Any) -> None:
    shard = accelerate.IterableDatasetShard([], 4, 2, 1)
    assert shard.ask(lambda: called_from("accelerate.data_loader"))
    assert not called_from("accelerate.data_loader")


@pytest.mark.parametrize("world", [None, World()])
def test_on_one_rank_a_thread_of_one_s_own_reads_ahead_of_training(
    world: World | None, tmp_path: Any, accelerate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a loader of accelerate that waits for it has handed out, and leaves out, is not seen."""
    make_dataset(tmp_path, 100)
    given: dict[str, Any] = {} if world is None else {"world": world}
    read = StreamingDataset(str(tmp_path), batch_size=4, **given)

    def in_thread(dataset: StreamingDataset) -> list[int]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(ids(itertools.islice(dataset, 10))))
        thread.start()
        thread.join(PATIENCE)
        return found

    assert in_thread(read) == list(range(10))
    with pytest.raises(errors.StateError, match=r"state_dict\(num_samples=...\)"):
        read.state_dict()
    read.load_state_dict(read.state_dict(num_samples=8))
    assert in_thread(read) == list(range(8, 18))
    assert caplog.text.count("skip_first_batches is not seen") == 1


@pytest.mark.processes
def test_a_fork_of_a_thread_is_a_thread_still(accelerate: Any) -> None:
    """The thread that forked is the child's main thread; what waits for it waits in the parent."""
    found: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(10 + in_other_thread())
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    fork()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join(PATIENCE)
    assert found == [10, 11]
    assert not in_other_thread()


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_workers_of_a_loader_in_a_thread_are_refused_as_the_thread_is(
    workers: int, tmp_path: Any, accelerate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.data import DataLoader

    make_dataset(tmp_path, 40)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            next(iter(DataLoader(StreamingDataset(str(tmp_path), batch_size=4), batch_size=None, num_workers=workers)))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(PATIENCE)
    assert len(raised) == 1
    assert "who divides samples among the 2 ranks can not be seen here" in str(raised[0])
