"""StreamingDataset as its users meet it: by id, in order, as columns, stopped and resumed."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker import MDSWriter, ReadOptions, StreamingDataset, World, merge_index
from stoker.errors import ConfigError, FormatError, StateError, StokerError, TransformError, UnsafeDataError
from stoker.writers import JSONWriter
from support import write_columns, write_samples

ROWS = 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    write_samples(
        str(out),
        map(sample_of, range(ROWS)),
        {"id": "int", "tokens": "ndarray:uint16:8", "text": "str", "scores": "ndarray:float32"},
        size_limit=4096,
    )
    return out


def sample_of(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "tokens": np.arange(number, number + 8, dtype=np.uint16),
        "text": f"sample {number}",
        "scores": np.full(1 + number % 3, number, dtype=np.float32),
    }


def check(sample: dict[str, Any], number: int) -> None:
    expected = sample_of(number)
    assert sample.keys() == expected.keys()
    assert type(sample["id"]) is int
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert sample[name].dtype == value.dtype
            assert np.array_equal(sample[name], value)
        else:
            assert sample[name] == value


# -- by id -------------------------------------------------------------------------------------------------------------


def test_samples_by_id(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True)
    assert dataset.size == len(dataset) == ROWS
    for number in (0, 1, 500, ROWS - 1):
        check(dataset[number], number)
        check(dataset[number - ROWS], number)
    check(dataset[np.int32(7)], 7)
    assert [sample["id"] for sample in dataset[990:2000:3]] == [990, 993, 996, 999]
    assert [sample["id"] for sample in dataset[[5, 3, 5, -1]]] == [5, 3, 5, 999]
    assert [sample["id"] for sample in dataset[np.array([900, 2])]] == [900, 2]
    assert dataset[5:5] == []
    batch = dataset.read([700, 1, 700], columns=["tokens", "text"])
    assert np.array_equal(batch["tokens"], [list(range(n, n + 8)) for n in (700, 1, 700)])
    assert batch["text"] == ["sample 700", "sample 1", "sample 700"]


def test_no_ids_have_the_columns_of_a_sample(data: Path, tmp_path: Path) -> None:
    """They were lists all, so that what concatenates columns failed."""
    dataset = StreamingDataset(local=data)
    one, none = dataset.read([1]), dataset.read([])
    assert list(none) == list(one)
    assert none["text"] == none["scores"] == []
    for name in ("id", "tokens"):
        column, empty = one[name], none[name]
        assert isinstance(column, np.ndarray)
        assert isinstance(empty, np.ndarray)
        assert (empty.dtype, empty.shape) == (column.dtype, (0, *column.shape[1:]))
    assert np.array_equal(np.concatenate([none["tokens"], one["tokens"]]), one["tokens"])
    assert list(dataset.read([], columns=["tokens"])) == ["tokens"]
    with pytest.raises(FormatError, match="no column 'words'"):
        dataset.read([], columns=["words"])

    (tmp_path / "a.jsonl").write_text('{"x": \n{"x": 1.5}\n')
    of_good = StreamingDataset(tmp_path, format="json").read([])["x"]
    assert isinstance(of_good, np.ndarray)
    assert of_good.dtype == np.float64
    (tmp_path / "a.jsonl").write_text('{"x": 1.5}\n{"x": 2.5}\n')
    dataset = StreamingDataset(tmp_path, format="json", read=ReadOptions(cache="memory"))
    (tmp_path / "a.jsonl").write_text('{"x": 1.5]\n{"x": 2.5]\n')
    with pytest.raises(StokerError) as of_one:
        dataset.read([0])
    with pytest.raises(type(of_one.value), match=re.escape(str(of_one.value))):  # where all are bad
        dataset.read([])


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS]])
def test_an_id_outside_is_an_index_error(data: Path, index: Any) -> None:
    with pytest.raises(IndexError, match=f"not in a dataset of {ROWS} samples"):
        StreamingDataset(local=data)[index]


@pytest.mark.parametrize("index", ["5", 1.0, [1.5], None])
def test_an_id_of_a_wrong_type_is_a_type_error(data: Path, index: Any) -> None:
    with pytest.raises(TypeError):
        StreamingDataset(local=data)[index]


# -- in order ----------------------------------------------------------------------------------------------------------


def test_iteration_gives_every_sample_whole(data: Path) -> None:
    for dataset in (
        StreamingDataset(local=data),
        StreamingDataset(local=data, shuffle=True, read=ReadOptions(read_threads=2)),
    ):
        seen = []
        for sample in dataset:
            check(sample, sample["id"])
            seen.append(sample["id"])
        assert sorted(seen) == list(range(ROWS))
        assert (seen == sorted(seen)) == (dataset.order["shuffle"] == "none")


def test_batches_are_the_same_samples_as_columns(data: Path) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": True, "batch_size": 48}
    singles = [sample["id"] for sample in StreamingDataset(**options)]
    for threads in (None, 0, 3):
        batches = list(StreamingDataset(**options, read=ReadOptions(read_threads=threads)).batches())
        assert [len(batch["id"]) for batch in batches] == [48] * 20 + [40]
        assert np.concatenate([batch["id"] for batch in batches]).tolist() == singles
        for batch in batches:
            tokens = batch["tokens"]
            assert isinstance(tokens, np.ndarray)
            assert tokens.flags.writeable
            assert np.array_equal(tokens[:, 0], batch["id"])
            assert batch["text"] == [f"sample {number}" for number in batch["id"]]


def test_every_epoch_has_its_own_order(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True)
    epochs = [tuple(sample["id"] for sample in dataset) for _ in range(3)]
    assert len(set(epochs)) == 3
    assert epochs[1] == tuple(s["id"] for s in islice(_second_epoch(data), ROWS))


def _second_epoch(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, shuffle=True)
    next(iter(dataset))
    return iter(dataset)


def test_columns_are_all_that_is_read(data: Path) -> None:
    dataset = StreamingDataset(local=data, columns=["text"])
    assert dataset[3] == {"text": "sample 3"}
    assert next(iter(dataset)) == {"text": "sample 0"}
    assert next(dataset.batches(2)) == {"text": ["sample 0", "sample 1"]}
    with pytest.raises(ConfigError, match=r"column 'words' is unknown; known: id, scores, text, tokens"):
        StreamingDataset(local=data, columns=["words"])
    with pytest.raises(FormatError, match="no column 'words'"):
        dataset.read([0], columns=["words"])


def test_views_are_the_same_bytes_without_a_copy(tmp_path: Path) -> None:
    with MDSWriter({"id": "int", "data": "bytes", "text": "str"}, str(tmp_path), size_limit=1024) as writer:
        for number in range(100):
            writer.write({"id": number, "data": bytes([number]) * number, "text": f"t{number}"})
    dataset = StreamingDataset(local=tmp_path, shuffle=True, read=ReadOptions(views=True), batch_size=10)
    for sample in [*dataset, *dataset[:]]:
        assert type(sample["data"]) is memoryview
        assert sample["data"].readonly
        assert sample["data"] == bytes([sample["id"]]) * sample["id"]
        assert sample["text"] == f"t{sample['id']}"
    kept = [view for batch in dataset.batches() for view in batch["data"]]
    dataset.close()
    del dataset
    assert sorted(map(len, kept)) == list(range(100))


def test_transform_is_applied_wherever_samples_come_from(data: Path) -> None:
    def double(sample: dict[str, Any]) -> dict[str, Any]:
        return {"twice": np.int64(2 * sample["id"]), "tokens": sample["tokens"] + 1}

    for threads in (0, 2):
        dataset = StreamingDataset(local=data, transform=double, batch_size=10, read=ReadOptions(read_threads=threads))
        assert dataset[4]["twice"] == 8
        assert [sample["twice"] for sample in islice(iter(dataset), 3)] == [0, 2, 4]
        batch = next(dataset.batches())
        assert batch["twice"].tolist() == list(range(0, 20, 2))  # type: ignore[union-attr]
        assert batch["tokens"].shape == (10, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("source", ["random", "numpy"])
@pytest.mark.parametrize("batches", [False, True])
def test_seeded_global_generators_give_the_same_numbers_with_at_most_one_thread(
    data: Path, threads: int, source: str, batches: bool
) -> None:
    def draw() -> float:
        return random.random() if source == "random" else float(np.random.random())  # noqa: NPY002

    def run() -> list[Any]:
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        options: dict[str, Any] = {"shuffle": True, "read": ReadOptions(read_threads=threads), "batch_size": 7}
        dataset = StreamingDataset(local=data, transform=lambda sample: {"id": sample["id"], "x": draw()}, **options)
        found: list[Any] = []
        for item in dataset.batches() if batches else dataset:
            found.append((np.asarray(item["id"]).tolist(), np.asarray(item["x"]).tolist()))
            if threads == 0:
                found.append(draw())  # as a training step may
        return found

    first = run()
    assert len(first) > 10
    assert run() == first


def test_an_error_in_a_transform_reaches_the_caller(data: Path) -> None:
    def fail(sample: dict[str, Any]) -> Any:
        if sample["id"] == 30:
            raise RuntimeError("no thirty")
        return sample

    for threads in (0, 2):
        with pytest.raises(TransformError, match="no thirty"):
            list(StreamingDataset(local=data, transform=fail, read=ReadOptions(read_threads=threads)))


def test_epoch_size_cuts_or_repeats(data: Path) -> None:
    short = StreamingDataset(local=data, shuffle=True, epoch_size=100)
    assert len(short) == 100
    assert len({sample["id"] for sample in short}) == 100
    long = [sample["id"] for sample in StreamingDataset(local=data, shuffle=True, epoch_size=2500)]
    assert len(long) == 2500
    assert sorted(long[:ROWS]) == sorted(long[ROWS : 2 * ROWS]) == list(range(ROWS))
    assert long[:ROWS] != long[ROWS : 2 * ROWS]


def test_a_closed_dataset_opens_again(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=data, local=tmp_path, shuffle=True)
    iterator = iter(dataset)
    next(iterator)
    dataset.close()
    assert sorted(sample["id"] for sample in dataset) == list(range(ROWS))


def test_a_dataset_pickles(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True)
    list(islice(iter(dataset), 5))
    copy = pickle.loads(pickle.dumps(dataset))
    check(copy[8], 8)
    assert [s["id"] for s in copy] == [s["id"] for s in dataset]


# -- worlds, states ----------------------------------------------------------------------------------------------------


@given(
    worlds=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 12)), min_size=1, max_size=4),
    shuffle=st.booleans(),
    nodes=st.none() | st.integers(1, 6),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_of_worlds_gives_the_batches_of_one_process(
    data: Path, worlds: list[tuple[int, int]], shuffle: bool, nodes: int | None
) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": shuffle, "num_canonical_nodes": nodes}
    alone = [batch["id"].tolist() for batch in StreamingDataset(**options, batch_size=24).batches()]  # type: ignore[union-attr]
    state: dict[str, Any] | None = None
    got: list[list[int]] = []
    for world_size, steps in [*worlds, (4, ROWS)]:
        ranks = [
            StreamingDataset(**options, batch_size=24 // world_size, world=World(rank, world_size))
            for rank in range(world_size)
        ]
        parts = []
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(json.loads(json.dumps(state)))
            parts.append([batch["id"].tolist() for batch in islice(rank.batches(), steps)])  # type: ignore[union-attr]
        states = [rank.state_dict() for rank in ranks]
        assert all(each == states[0] for each in states)
        state = states[0]
        got += [[number for part in step for number in part] for step in zip(*parts, strict=True)]
        if state["epoch"] == 1:
            break
    assert got == alone


def test_a_state_inside_a_batch_continues_at_the_next_sample(data: Path) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": True, "batch_size": 16}
    whole = [sample["id"] for sample in StreamingDataset(**options)]
    for taken in (0, 1, 15, 16, 17, 990, 995, 999, 1000):
        first = StreamingDataset(**options)
        iterator = iter(first)
        head = [next(iterator)["id"] for _ in range(taken)]
        state = first.state_dict()
        second = StreamingDataset(**options)
        second.load_state_dict(state)
        tail = [sample["id"] for sample in second] if taken < ROWS else []
        assert head + tail == whole, taken
        if taken == ROWS:
            assert (state["epoch"], state["position"]) == (1, 0)


def test_a_state_inside_a_batch_refuses_another_world(data: Path) -> None:
    dataset = StreamingDataset(local=data, batch_size=16)
    next(iter(dataset))
    state = dataset.state_dict()
    with pytest.raises(StateError, match="taken inside a batch, after 1 of its samples, with batch_size 16 on 1 ranks"):
        StreamingDataset(local=data, batch_size=8, world=World(0, 2)).load_state_dict(state)


def test_a_state_of_later_epochs(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=100)
    for _ in range(2):
        list(dataset)
    third = dataset.batches()
    head = [next(third)["id"].tolist() for _ in range(4)]  # type: ignore[union-attr]
    again = StreamingDataset(local=data, shuffle=True, batch_size=100)
    again.load_state_dict(dataset.state_dict())
    tail = [batch["id"].tolist() for batch in again.batches()]  # type: ignore[union-attr]
    assert sorted(number for batch in head + tail for number in batch) == list(range(ROWS))
    rest = [batch["id"].tolist() for batch in third]  # type: ignore[union-attr]
    assert tail == rest
    assert again.next_epoch == dataset.next_epoch == 3


def test_state_dict_with_a_count_of_samples_as_a_trainer_gives_it(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=10)
    next(iter(dataset))
    assert dataset.state_dict(num_samples=30)["position"] == 30
    dataset.load_state_dict(dataset.state_dict(num_samples=30))
    next(iter(dataset))
    assert dataset.state_dict(num_samples=50, from_beginning=False)["position"] == 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shuffle_seed": 1}, "seed was 9176 and is 1"),
        ({"shuffle": False}, "shuffle was 'block' and is 'none'"),
        ({"num_canonical_nodes": 7}, "num_canonical_nodes was .* and is 7"),
        ({"epoch_size": 500}, "epoch_size was 1000 and is 500"),
    ],
)
def test_a_state_of_other_settings_says_which(data: Path, change: dict[str, Any], message: str) -> None:
    state = StreamingDataset(local=data, shuffle=True).state_dict()
    with pytest.raises(StateError, match=message):
        StreamingDataset(**{"local": data, "shuffle": True, **change}).load_state_dict(state)


def test_a_state_of_another_dataset_says_so(data: Path, tmp_path: Path) -> None:
    write_columns(str(tmp_path / "other"), {"id": np.arange(ROWS)})
    state = StreamingDataset(local=tmp_path / "other").state_dict()
    with pytest.raises(StateError, match="belongs to another dataset"):
        StreamingDataset(local=data).load_state_dict(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "no version"),
        ({"version": 99}, "state version 99 is unknown"),
        ({"version": 2, "epoch": 0}, "incomplete"),
        ({"version": 2, "epoch": -1, "position": 0, "order": {}, "streams": {}}, "'epoch' should be an integer from 0"),
    ],
)
def test_what_is_no_state_is_refused(data: Path, state: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        StreamingDataset(local=data).load_state_dict(state)


def test_padding_is_said(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    ranks = [StreamingDataset(local=data, batch_size=37, world=World(rank, 3)) for rank in range(3)]
    seen = [[sample["id"] for sample in rank] for rank in ranks]
    assert {len(part) for part in seen} == {334}
    assert len({number for part in seen for number in part}) == ROWS
    assert "epoch 0: 2 samples are repeated, so that all 3 ranks take the same number of steps" in caplog.text


# -- mixed, unsafe, wrong ----------------------------------------------------------------------------------------------


def test_shards_of_different_formats_under_one_index(tmp_path: Path) -> None:
    write_samples(str(tmp_path / "a"), ({"id": number, "word": f"w{number}"} for number in range(50)), size_limit=512)
    with JSONWriter(columns={"id": "int", "word": "str"}, out=str(tmp_path / "b"), size_limit=512) as out:
        for number in range(50, 100):
            out.write({"id": number, "word": f"w{number}"})
    merge_index(str(tmp_path))
    dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=8)
    seen = {sample["id"]: sample["word"] for sample in dataset}
    assert seen == {number: f"w{number}" for number in range(100)}
    columns = list(dataset.batches())
    assert sorted(number for batch in columns for number in batch["id"]) == list(range(100))


def test_pickles_are_not_read_without_consent(tmp_path: Path) -> None:
    with MDSWriter(columns={"id": "int", "thing": "pkl"}, out=str(tmp_path)) as writer:
        writer.write({"id": 1, "thing": {"a": {1, 2}}})
    with pytest.raises(UnsafeDataError, match=r"column 'thing' is pkl.*allow_unsafe_types=True"):
        StreamingDataset(local=tmp_path)[0]
    assert StreamingDataset(local=tmp_path, columns=["id"])[0] == {"id": 1}
    assert StreamingDataset(local=tmp_path, allow_unsafe_types=True)[0]["thing"] == {"a": {1, 2}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"shuffle": True, "shuffle_algo": "best"}, "shuffle_algo 'best' is unknown"),
        ({"num_canonical_nodes": 0}, "num_canonical_nodes must be at least 1"),
        ({"predownload": -1}, "predownload must be at least 0"),
        ({"remainder": "lose"}, "remainder must be 'pad', 'drop' or 'uneven'"),
        ({"cache_limit": "much", "remote": "x"}, "much"),
    ],
)
def test_arguments_that_make_no_sense(data: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        len(StreamingDataset(**{"local": data, **arguments}))


def test_batches_need_a_size(data: Path) -> None:
    with pytest.raises(ConfigError, match="batches\\(\\) needs batch_size"):
        StreamingDataset(local=data).batches()


def test_an_empty_dataset_is_read_as_nothing(tmp_path: Path) -> None:
    with MDSWriter(columns={"id": "int"}, out=str(tmp_path)):
        pass
    dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=4)
    assert (len(dataset), list(dataset), list(dataset.batches())) == (0, [], [])
    assert dataset.read([], columns=["id"]) == {"id": []}


@pytest.mark.processes
def test_importing_stoker_is_light() -> None:
    code = (
        "import sys, stoker; print([m for m in ('torch', 'obstore', 'numpy', 'rich', 'pyarrow') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_worker_that_was_spawned_imports_no_more_than_reading_needs(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=8)
    expected = np.asarray(next(iter(dataset.batches()))["id"]).tolist()
    dataset.set_epoch(0)
    (tmp_path / "pickled").write_bytes(pickle.dumps(dataset))
    code = (
        "import multiprocessing, pickle, sys\n"
        "multiprocessing.current_process()._inheriting = True  # as multiprocessing.spawn does meanwhile\n"
        "dataset = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "print(next(iter(dataset.batches()))['id'].tolist(), *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True, check=True)
    assert out.stdout.startswith(str(expected))
    unneeded = {
        "numpy.ma",
        "numpy.random",
        "obstore",
        "pyarrow",
        "rich",
        "stoker.catalog.detect",
        "stoker.catalog.unindexed.open_files",
        "stoker.formats.media.columns",
        "stoker.formats.parquet",
        "stoker.order.mosaicml",
        "stoker.pipeline.build_order",
        "stoker.pipeline.stats.bottleneck",
        "stoker.writing",
        "zipfile",
    }
    assert not unneeded & set(out.stdout.split())


def test_all_public_names_exist() -> None:
    pytest.importorskip("torch")  # StreamingDataLoader is a class of its own kind
    import stoker

    assert all(getattr(stoker, name) is not None for name in stoker.__all__)
    assert set(stoker.__all__) <= set(dir(stoker))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stoker.nothing
