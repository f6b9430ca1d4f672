"""torch's own DataLoader over a StreamingDataset: every sample once an epoch, however its workers are started."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataLoader, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError, StateError, TransformError
from support import all_of, check_batch, check_sample, ids_of, make_dataset, run_script

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("no_debris"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

HERE = Path(__file__).parent
SAMPLES = 300
EVERYTHING = list(range(SAMPLES))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dataloader") / "data"
    return make_dataset(out, SAMPLES, size_limit=1500, compression="zstd", hashes=["xxh3_64"])


def collate(batch: list[Any]) -> list[Any]:
    # Each item is a dict with your columns.
    return batch


def method(workers: int, name: str) -> dict[str, Any]:
    return {"num_workers": workers, **({"multiprocessing_context": name} if workers else {})}


# One case without workers, and four starts of spawned workers, which each import torch, instead of every combination.
CASES = [
    (0, "fork", False),
    *((workers, "fork", persistent) for workers in (1, 4) for persistent in (False, True)),
    *((workers, "spawn", workers == 2) for workers in (1, 2)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start", "persistent"), CASES)
def test_each_epoch_has_every_sample_once_in_a_new_order(
    data: Path, tmp_path: Path, workers: int, start: str, persistent: bool
) -> None:
    dataset: Any = StreamingDataset(remote=data, local=tmp_path / "cache", shuffle=True, shuffle_seed=1337)
    loader: Any = DataLoader(
        dataset, batch_size=8, collate_fn=collate, persistent_workers=persistent, **method(workers, start)
    )
    assert len(loader) == 38
    epochs = [ids_of(loader) for _ in range(3 if persistent or not workers else 2)]
    assert all(sorted(epoch) == EVERYTHING for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    assert dataset.next_epoch == len(epochs)
    assert not list((tmp_path / "cache").rglob("*.part"))


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_guide_from_s3_after_the_parent_has_used_the_network(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    for name, value in bucket.server.environ.items():
        monkeypatch.setenv(name, value)
    remote = f"{bucket.url}/datasets/ui-trajs"
    make_dataset(tmp_path / "train", SAMPLES, remote=remote, compression="zstd", hashes="sha1")
    ds: Any = StreamingDataset(remote=remote, local=tmp_path / "cache/ui-trajs", shuffle=True, shuffle_seed=1337)
    check_sample(ds[17])  # a download of the parent's own
    context = multiprocessing.get_context(start)
    loader: Any = DataLoader(
        ds, batch_size=8, num_workers=2, collate_fn=collate, persistent_workers=True, multiprocessing_context=context
    )
    assert sorted(ids_of(loader)) == EVERYTHING
    assert sorted(ids_of(loader)) == EVERYTHING
    assert not list((tmp_path / "cache/ui-trajs").rglob("*.part"))


@pytest.mark.parametrize("columnar", [False, True])
def test_tensors_come_from_the_default_collate_and_from_columns(data: Path, columnar: bool) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=16), num_workers=2, columnar=columnar)
    batches = list(loader)
    assert all(isinstance(batch["id"], torch.Tensor) and isinstance(batch["row"], torch.Tensor) for batch in batches)
    assert ids_of(batches) == EVERYTHING
    assert len(loader) == len(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("columnar", [False, True])
def test_drop_last_leaves_out_the_partial_batch_and_states_continue(data: Path, columnar: bool, workers: int) -> None:
    def opened() -> Any:
        dataset = StreamingDataset(local=data, batch_size=16)
        return StreamingDataLoader(dataset, columnar=columnar, drop_last=True, **method(workers, "fork"))

    loader = opened()
    whole, rest = divmod(SAMPLES, 16)
    assert rest
    assert len(loader) == whole
    batches = [check_batch(batch) for batch in loader]
    assert batches == [EVERYTHING[first : first + 16] for first in range(0, SAMPLES - rest, 16)]
    assert loader.state_dict()["epoch"] == 1
    iterator = iter(loader)
    for _ in range(whole - 2):
        next(iterator)
    other = opened()
    other.load_state_dict(loader.state_dict())
    assert [check_batch(batch) for batch in other] == batches[-2:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True}, "takes no shuffle="),
        ({"sampler": []}, "takes no sampler="),
        ({"batch_sampler": []}, "takes no batch_sampler="),
        ({"columnar": True, "collate_fn": collate}, "nothing for collate_fn"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 7}, "batch_size=7 of the StreamingDataLoader differs from batch_size=16"),
        ({"num_workers": -1}, "num_workers must be at least 0"),
        ({"num_workers": 2.0}, "num_workers must be an integer, got 2.0 .*; write num_workers=2"),
        ({"timeout": 5}, "timeout=5 is for worker processes"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 is for worker processes"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be at least 1"),
        ({"persistent_workers": True}, "persistent_workers=True is for worker processes"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context='fork' is for worker processes"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "DataLoader refuses its arguments: .*'spawn'"),
        ({"worker_init_fn": 5}, "worker_init_fn must be a function"),
        ({"generator": 5}, "generator must be a Generator"),
        ({"in_order": False}, "in_order=False would make states wrong"),
        ({"pin_memry": True}, "argument 'pin_memry' is unknown; did you mean 'pin_memory'"),
    ],
)
def test_an_argument_that_has_no_meaning_is_an_error(data: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataLoader(StreamingDataset(local=data, batch_size=16), **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_stop_early_leave_the_next_epoch_whole(data: Path, tmp_path: Path, workers: int) -> None:
    dataset: Any = StreamingDataset(remote=data, local=tmp_path / "cache", shuffle=True)
    loader: Any = DataLoader(dataset, batch_size=8, collate_fn=collate, **method(workers, "fork"))
    for _ in range(3):
        next(iter(loader))
    assert dataset.next_epoch == 3
    assert sorted(ids_of(loader)) == EVERYTHING


def test_equal_seeds_of_torch_do_not_repeat_an_epoch(data: Path) -> None:
    dataset: Any = StreamingDataset(local=data, shuffle=True)
    loader: Any = DataLoader(dataset, batch_size=8, collate_fn=collate, **method(2, "fork"))
    epochs = []
    for _ in range(2):
        torch.manual_seed(0)
        epochs.append(ids_of(loader))
    assert [sorted(epoch) for epoch in epochs] == [EVERYTHING] * 2
    assert epochs[0] != epochs[1]


def test_two_loaders_on_one_dataset_take_epochs_in_turn(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=8)
    alone = StreamingDataset(local=data, shuffle=True, batch_size=8)
    expected = [[sample["id"] for sample in alone] for _ in range(5)]
    first, second = (
        StreamingDataLoader(dataset, collate_fn=collate, persistent_workers=True, **method(2, "fork")) for _ in "ab"
    )
    assert ids_of(first) == expected[0]
    assert ids_of(second) == expected[1]
    running = iter(first)
    begun = [check_sample(sample) for _ in range(3) for sample in next(running)]
    assert begun == expected[2][: len(begun)]
    resumed = StreamingDataset(local=data, shuffle=True, batch_size=8)
    resumed.load_state_dict(first.state_dict())
    assert begun + ids_of(resumed) == expected[2]
    assert ids_of(second) == expected[3]
    assert [sample["id"] for sample in dataset] == expected[4]


class SlowStart:
    """A dataset whose second worker begins long after the first, as a spawned one may."""

    def __init__(self, dataset: StreamingDataset, gate: Any) -> None:
        self.dataset, self.gate = dataset, gate

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        if info is not None and info.id == 1:
            self.gate.wait(PATIENCE)
        return iter(self.dataset)


IterableDataset.register(SlowStart)


def test_a_worker_that_begins_only_after_a_state_was_loaded_still_continues_with_the_others(data: Path) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": True, "batch_size": 10}
    expected = [sample["id"] for sample in StreamingDataset(**options)]
    stopped = StreamingDataset(**options)
    running = iter(stopped)
    begun = [next(running)["id"] for _ in range(30)]
    dataset = StreamingDataset(**options)
    gate = multiprocessing.get_context("fork").Event()
    loader: Any = DataLoader(
        SlowStart(dataset, gate),  # type: ignore[arg-type]
        batch_size=10,
        collate_fn=collate,
        persistent_workers=True,
        **method(2, "fork"),
    )
    first = next(iter(loader))
    assert [sample["id"] for sample in first] == expected[:10]
    dataset.load_state_dict(stopped.state_dict())
    gate.set()
    assert begun + ids_of(loader) == expected
    assert dataset.next_epoch == 1


def test_a_state_inside_a_batch_is_not_for_workers(data: Path) -> None:
    dataset: Any = StreamingDataset(local=data, batch_size=8)
    running = iter(dataset)
    next(running)
    with pytest.raises(StateError, match="inside a batch"):
        StreamingDataLoader(StreamingDataset(local=data, batch_size=8)).load_state_dict(dataset.state_dict())
    other: Any = StreamingDataset(local=data, batch_size=8)
    other.load_state_dict(dataset.state_dict())
    with pytest.raises(ValueError, match="inside a batch"):
        all_of(DataLoader(other, batch_size=8, collate_fn=collate, **method(2, "fork")))


# -- failures in workers ---------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_an_error_in_the_main_process(data: Path, tmp_path: Path) -> None:
    # In a process of its own: torch's signal handler raises wherever the main thread happens to be.
    (found,) = run_script([HERE / "killed_worker.py", data, tmp_path / "cache"])
    assert found["worker"] in found["error"]
    fresh = StreamingDataset(remote=data, local=tmp_path / "cache", batch_size=8)
    assert ids_of(fresh.batches()) == EVERYTHING
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_corrupt_shard_is_stokers_error_in_the_main_process(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "remote")
    victim = sorted((tmp_path / "remote").glob("*.mds.zstd"))[4]
    victim.write_bytes(victim.read_bytes()[:-3] + b"abc")
    dataset: Any = StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "cache")
    loader: Any = DataLoader(dataset, batch_size=8, collate_fn=collate, **method(2, "fork"))
    kind, message = failure_of(loader)
    assert (kind, victim.name in message) == (CorruptDataError, True), message
    victim.unlink()
    kind, message = failure_of(loader)
    assert (kind, victim.name in message) == (ObjectNotFoundError, True), message


def test_an_iteration_that_fails_ends_its_workers(data: Path) -> None:
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=8, transform=_fails), **method(2, "fork"))
    before = set(multiprocessing.active_children())  # of other tests
    with pytest.raises(TransformError, match="on purpose") as held:
        list(loader)
    assert held.value.__traceback__ is not None  # its frames hold the iterator
    assert set(multiprocessing.active_children()) <= before


def _fails(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("on purpose")


def failure_of(loader: Any) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as failed:
        all_of(loader)
    return failed.type, str(failed.value)


# -- torch before, after, or not at all -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["torch first", "stoker first", "torch after the dataset"])
def test_the_moment_of_importing_torch_does_not_matter(data: Path, order: str) -> None:
    assert run_script([HERE / "import_order.py", data, order]) == [{"samples": SAMPLES, "iterable": True}]


def test_without_torch_everything_works_but_the_loader(data: Path, tmp_path: Path) -> None:
    (found,) = run_script([HERE / "without_torch.py", data, tmp_path])
    assert found == {
        "missing": "StreamingDataLoader needs torch (No module named 'torch'): pip install 'stoker[torch]'",
        "modules": [],
        "samples": SAMPLES,
    }


def test_importing_stoker_loads_neither_frameworks_nor_clients() -> None:
    code = "import sys, json, stoker; print(json.dumps(sorted(name.partition('.')[0] for name in sys.modules)))"
    (modules,) = run_script(["-c", code])
    heavy = {"torch", "obstore", "pyarrow", "rich", "pandas", "PIL", "xxhash", "cramjam", "boto3"}
    assert heavy.isdisjoint(modules)
    assert "stoker" in modules


def test_reading_local_shards_loads_neither_frameworks_nor_clients(data: Path) -> None:
    code = (
        "import sys, json, stoker; dataset = stoker.StreamingDataset(local=sys.argv[1], shuffle=True); "
        "next(iter(dataset)); print(json.dumps(sorted(name.partition('.')[0] for name in sys.modules)))"
    )
    (modules,) = run_script(["-c", code, data])
    assert {"torch", "obstore", "pyarrow", "rich", "pandas", "PIL", "boto3"}.isdisjoint(modules)


SPAWNED = """
import json, multiprocessing, sys

def first_batch(dataset):
    next(iter(dataset.batches()))
    print(json.dumps(sorted(sys.modules)))

if __name__ == "__main__":
    from stoker import StreamingDataset

    dataset = StreamingDataset(local=sys.argv[1], shuffle=True, batch_size=4)
    child = multiprocessing.get_context("spawn").Process(target=first_batch, args=(dataset,))
    child.start()
    child.join()
"""


def test_a_spawned_process_loads_no_digests_and_codecs_no_tuner_and_nothing_of_processes(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 20)
    (tmp_path / "spawned.py").write_text(SPAWNED)
    (modules,) = run_script([tmp_path / "spawned.py", tmp_path / "data"])
    unused = (
        "stoker.pipeline.tuning.tuned_run",
        "stoker.pipeline.tuning.rules",
        "stoker.pipeline.execution.in_processes",
        "stoker.pipeline.execution.chunk_process",
    )
    assert {"hashlib", "_hashlib", "secrets", "cramjam", "obstore", "pyarrow"}.isdisjoint(modules)
    assert [name for name in modules if name.startswith(unused)] == []
