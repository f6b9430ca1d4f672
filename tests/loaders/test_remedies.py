"""What torch's classes would do with a loader, and what it has not, are errors that say what to write."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loader_kinds import LOADERS, make_loader
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, random_split

import stoker
from stoker import (
    Chain,
    LocalDataset,
    Stream,
    StreamingDataset,
    StreamingParquetLoader,
)
from stoker.errors import ConfigError
from stoker.formats.base import IN_READ_OPTIONS
from support import write_columns, write_samples


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StreamingDataset:
    out = tmp_path_factory.mktemp("data") / "data"
    write_samples(out, ({"id": number} for number in range(10)))
    return StreamingDataset(out, shuffle=True)


@pytest.mark.parametrize("argument", ["seed", "num_workers", "data_files"])
def test_arguments_that_are_not_here_are_told_those_that_are(tmp_path: Path, argument: str) -> None:
    wrong: dict[str, Any] = {argument: 3}
    for loader, known in ((StreamingDataset, "shuffle_seed"), (StreamingParquetLoader, "seq_len")):
        if argument not in inspect.signature(loader).parameters:
            with pytest.raises(
                ConfigError, match=rf"^{loader.__name__}: argument '{argument}' is unknown.*; ?.*{known}"
            ):
                loader(tmp_path, **wrong)
    with pytest.raises(ConfigError, match=r"argument 'batched' is unknown; known: function, name$"):
        Chain().map(dict, batched=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("option", sorted(IN_READ_OPTIONS))
def test_options_of_reading_say_where_they_are(tmp_path: Path, option: str) -> None:
    wrong: dict[str, Any] = {option: 3}
    with pytest.raises(ConfigError, match=rf"no argument '{option}': it is in read=ReadOptions\({option}="):
        StreamingDataset(tmp_path, **wrong)
    of_samples = {"ids": "has the numbers of documents", "quarantine": "in an LMStream over a StreamingDataset"}
    with pytest.raises(ConfigError, match=of_samples.get(option, rf"it is in read=ReadOptions\({option}=")):
        StreamingParquetLoader(tmp_path, **wrong)


KINDS = (*LOADERS, "Stream", "Chain")


def made(kind: str, root: Path) -> Any:
    if kind in LOADERS:
        return make_loader(kind, root)
    return Chain() if kind == "Chain" else Stream(root)


@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_are_not_there_are_pythons_error(tmp_path: Path, kind: str) -> None:
    one = made(kind, tmp_path)
    for name in ("map_batches", "get_state", "_own"):
        assert not hasattr(one, name)
        with pytest.raises(AttributeError, match=rf"^'{kind}' object has no attribute '{name}'$"):
            getattr(one, name)


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind != "LocalDataset"])
def test_a_sum_says_what_to_write(dataset: StreamingDataset, tmp_path: Path, kind: str) -> None:
    """torch would make a ``ChainDataset`` of it, whose parts know nothing of each other."""
    one = make_loader(kind, tmp_path)
    sums: list[Callable[[], Any]] = [lambda: one + one, lambda: one + dataset]
    for add in sums:
        with pytest.raises(ConfigError, match=f"^an? {kind} can not be added to another with"):
            add()
    with pytest.raises(TypeError):
        sum([one, one])


def test_no_sum_is_made_of_what_has_none(tmp_path: Path, dataset: StreamingDataset) -> None:
    for one in (Chain(), Stream(tmp_path)):
        with pytest.raises(TypeError):
            one + one  # type: ignore[operator]
    with pytest.raises(AssertionError, match="ConcatDataset does not support IterableDataset"):
        make_loader("LocalDataset", tmp_path) + dataset


def test_what_a_sum_is_told_to_be_instead_is_there(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 5)):
        write_columns(tmp_path / name, {"id": np.arange(first, first + 5)})
    both = StreamingDataset(streams=[Stream(tmp_path / "a"), Stream(tmp_path / "b")])
    assert sorted(sample["id"] for sample in both) == list(range(10))
    stoker.merge_index([str(tmp_path / "a"), str(tmp_path / "b")], out=str(tmp_path))
    assert [sample["id"] for sample in StreamingDataset(tmp_path)] == list(range(10))
    lines = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for number, path in enumerate(lines):
        path.write_text(f'{{"id": {number}}}\n')
    assert [sample["id"] for sample in StreamingDataset(lines)] == [0, 1]
    apart: Any = [LocalDataset(tmp_path / "a"), LocalDataset(tmp_path / "b")]
    by_id = apart[0] + apart[1]
    assert isinstance(by_id, ConcatDataset)
    assert [by_id[number]["id"] for number in range(10)] == list(range(10))
    for name in "ab":
        pq.write_table(pa.table({"tokens": [[1, 2, 3, 4]] * 4}), tmp_path / f"{name}.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert sum(len(batch.input_ids) for batch in StreamingParquetLoader(files, seq_len=4, batch_size=2)) == 8
    mapped, selected = Chain().map(dict), Chain().select(["id"])
    assert Chain([*mapped.steps, *selected.steps]) == Chain().map(dict).select(["id"])


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind not in ("StreamingDataset", "LocalDataset")])
def test_by_number_where_nothing_has_a_number(tmp_path: Path, kind: str) -> None:
    """So end also torch's ``Subset``, ``random_split`` and samplers, and a ``DataLoader`` around a loader."""
    one = make_loader(kind, tmp_path)
    subset: Callable[..., Any] = Subset  # whose types say nothing of iterating
    split: Callable[..., Any] = random_split
    tries: list[Callable[[], Any]] = [
        lambda: one[0],
        lambda: one[0:2],
        lambda: one["id"],
        lambda: list(subset(one, [0])),
        lambda: [list(part) for part in split(one, [0.5, 0.5])],
        lambda: ConcatDataset([one, one])[0],
    ]
    if not isinstance(one, IterableDataset):
        tries.append(lambda: list(DataLoader(one)))
    else:
        tries.pop()  # torch refuses it before it asks
    for use in tries:
        with pytest.raises(ConfigError, match=rf"^an? {kind} has nothing by number, as {kind}\[i\]: iterate over it"):
            use()
    with pytest.raises(ConfigError, match=rf"^an? {kind} is read forwards: "):
        reversed(one)
    assert len(list(one)) == len(one) == 4


@pytest.mark.parametrize("kind", ["StreamingDataset", "LocalDataset"])
def test_by_number_where_samples_have_ids(tmp_path: Path, kind: str) -> None:
    one = make_loader(kind, tmp_path)
    subset: Callable[..., Any] = Subset
    split: Callable[..., Any] = random_split
    assert [sample["id"] for sample in subset(one, [3, 1])] == [3, 1]
    assert sorted(sample["id"] for part in split(one, [5, 3]) for sample in part) == list(range(8))
    with pytest.raises(TypeError, match=r"got 'id' \(str\); a column of some samples is dataset.read\(ids\)\['id'\]"):
        one["id"]
    assert one.read([2, 3])["id"].tolist() == [2, 3]  # as the message says


@pytest.mark.parametrize("kind", LOADERS)
def test_copies_read_by_themselves(tmp_path: Path, kind: str) -> None:
    """What was delivered here was not delivered there; of a StreamingShardLoader it was, which hands work out."""
    one = make_loader(kind, tmp_path)
    whole = len(one)
    copies: list[Callable[[Any], Any]] = [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)), copy.copy]
    for copied in copies:
        running = iter(one)
        next(running)
        other = copied(one)
        assert len(list(other)) == whole - (kind == "StreamingShardLoader")
        assert len(list(running)) == whole - 1


@pytest.mark.parametrize("kind", LOADERS)
def test_iterators_are_teed(tmp_path: Path, kind: str) -> None:
    first, second = itertools.tee(make_loader(kind, tmp_path))
    assert str(list(first)) == str(list(second))


def test_backwards_is_by_id(dataset: StreamingDataset) -> None:
    with pytest.raises(ConfigError, match="is read forwards"):
        reversed(dataset)
    backwards = (dataset[number] for number in range(dataset.size - 1, -1, -1))  # as the message says
    assert [sample["id"] for sample in backwards] == list(range(9, -1, -1))


@pytest.mark.parametrize("kind", ["StreamingDataset", "Chain"])
def test_names_in_a_row_are_told_to_be_a_list(dataset: StreamingDataset, kind: str) -> None:
    one: Any = dataset if kind == "StreamingDataset" else Chain()
    with pytest.raises(ConfigError, match=rf"^{kind}.select: .*write columns=\['id', 'name'\]"):
        one.select("id", "name")
    with pytest.raises(ConfigError, match=rf"^{kind}.rename: .*write columns=\{{'id': 'name'\}}"):
        one.rename("id", "name")
    with pytest.raises(ConfigError, match=rf"^{kind}.join: .*write on=\['id', 'name'\]"):
        one.join(dataset, "id", "name")
    with pytest.raises(ConfigError, match=rf"^{kind}.enumerate: too many positional arguments; known: column"):
        one.enumerate("id", "name")


def test_the_order_of_steps_is_checked_before_their_names() -> None:
    with pytest.raises(ConfigError, match=r"call enumerate\(\) before it"):
        Chain().batch_map(lambda batch: batch).enumerate()


def test_whether_a_dataset_shuffles_can_be_asked(dataset: StreamingDataset) -> None:
    assert dataset.shuffle is True
    asked = dataset.shuffle
    assert [asked, getattr(dataset, "shuffle"), *(one.shuffle for one in (dataset,))] == [True] * 3  # noqa: B009
    assert [one for one in [dataset] if one.shuffle]
    assert str(dataset.shuffle) == "True"
    with pytest.raises(TypeError, match="'bool' object is not callable"):
        dataset.shuffle(seed=1)  # type: ignore[operator]
