"""Methods and arguments of other libraries are errors that say what to write here, and that is there."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
import re
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
    LMStream,
    LocalDataset,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.arguments.other_libraries import METHODS, OTHER_ARGUMENTS, OTHER_OF_MAP, TOKEN_ARGUMENTS, TOKEN_METHODS
from stoker.errors import ConfigError
from stoker.formats.base import IN_READ_OPTIONS
from stoker.loaders.dataset_methods.over_dataset import OverDataset
from support import write_columns, write_samples

ARGUMENTS = frozenset(inspect.signature(StreamingDataset.__init__).parameters)
CHAIN = ("map", "filter", "flat_map", "batch_map", "random_map")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> StreamingDataset:
    out = tmp_path_factory.mktemp("data") / "data"
    write_samples(out, ({"id": number} for number in range(10)))
    return StreamingDataset(out, shuffle=True)


USED: dict[str, tuple[Callable[[Any], Any], str]] = {
    # Hugging Face's datasets
    "sort": (lambda data: data.sort("id"), "shuffle=True"),
    "cast_column": (lambda data: data.cast_column("id", None), r"map\(\)"),
    "take": (lambda data: data.take(5), r"subset=KeepIds\(range\(n\)\)"),
    "skip": (lambda data: data.skip(5), r"subset=SkipIds\(range\(n\)\)"),
    "with_format": (lambda data: data.with_format("torch"), r"batches\(\)"),
    "batch": (lambda data: data.batch(8), "batch_size="),
    "iter": (lambda data: data.iter(8), "batch_size="),
    "shard": (lambda data: data.shard(4, 0), "divided"),
    "train_test_split": (lambda data: data.train_test_split(0.1), r"train_validation_split\(\)"),
    "remove_columns": (lambda data: data.remove_columns(["id"]), r"select\(\)"),
    "rename_column": (lambda data: data.rename_column("id", "number"), r"rename\(\)"),
    "map(batched=)": (lambda data: data.map(dict, batched=True), r"batch_map\(\)"),
    "map(num_proc=)": (lambda data: data.map(dict, num_proc=4), "run_in='processes'"),
    "map(with_indices=)": (lambda data: data.map(dict, with_indices=True), "enumerate"),
    "map(remove_columns=)": (lambda data: data.map(dict, remove_columns=["id"]), r"select\(\)"),
    "filter(num_proc=)": (lambda data: data.filter(bool, num_proc=4), "run_in='processes'"),
    "select(range)": (lambda data: data.select(range(5)), r"KeepIds"),
    "save_to_disk": (lambda data: data.save_to_disk("x"), r"convert\(\)"),
    # Grain
    "seed": (lambda data: data.seed(1), "shuffle_seed="),
    "repeat": (lambda data: data.repeat(), "epoch"),
    "to_iter_dataset": (lambda data: data.to_iter_dataset(), "iterate"),
    "mix": (lambda data: data.mix([data]), "proportion="),
    "slice": (lambda data: data.slice(slice(5)), "KeepIds"),
    "mp_prefetch": (lambda data: data.mp_prefetch(), "predownload="),
    # torchdata, Ray Data and tf.data
    "map_batches": (lambda data: data.map_batches(dict), r"batch_map\(\)"),
    "prefetch": (lambda data: data.prefetch(2), "predownload="),
    "prefetcher": (lambda data: data.prefetcher(), "predownload="),
    "concatenate": (lambda data: data.concatenate(data), "streams="),
    "interleave": (lambda data: data.interleave([data]), "proportion="),
    "cache": (lambda data: data.cache(), "local="),
    "sharding_filter": (lambda data: data.sharding_filter(), "divided"),
    "cycle": (lambda data: data.cycle(), "epoch"),
    "unbatch": (lambda data: data.unbatch(), r"flat_map\(\)"),
    "take_batch": (lambda data: data.take_batch(5), r"read\(ids\)"),
    "streaming_split": (lambda data: data.streaming_split(2), "divided"),
    "count": (lambda data: data.count(), r"len\(\)"),
}


@pytest.mark.parametrize("name", USED)
def test_calls_of_other_libraries_say_what_to_write(dataset: StreamingDataset, name: str) -> None:
    call, remedy = USED[name]
    with pytest.raises((AttributeError, ConfigError), match=remedy) as raised:
        call(dataset)
    assert "StreamingDataset" in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("seed", "shuffle_seed="),
        ("streaming", "leave it out"),
        ("data_files", "remote="),
        ("num_workers", "StreamingDataLoader"),
        ("drop_remainder", 'remainder="drop"'),
        ("num_replicas", r"world=World\("),
        ("prefetch_factor", "StreamingDataLoader"),
        ("operations", "transform="),
    ],
)
def test_arguments_of_other_libraries_say_what_to_write(tmp_path: Path, argument: str, remedy: str) -> None:
    wrong: dict[str, Any] = {argument: 3}
    with pytest.raises(ConfigError, match=f"no argument '{argument}': .*{remedy}"):
        StreamingDataset(tmp_path, **wrong)


@pytest.mark.parametrize("option", sorted(IN_READ_OPTIONS))
def test_options_of_reading_say_where_they_are(tmp_path: Path, option: str) -> None:
    wrong: dict[str, Any] = {option: 3}
    for loader in (StreamingDataset, StreamingParquetLoader):
        with pytest.raises(ConfigError, match=rf"no argument '{option}': it is in read=ReadOptions\({option}="):
            loader(tmp_path, **wrong)


@pytest.mark.parametrize("argument", sorted(TOKEN_ARGUMENTS))
def test_arguments_of_other_token_loaders_say_what_to_write(tmp_path: Path, argument: str) -> None:
    wrong: dict[str, Any] = {argument: 3}
    with pytest.raises(ConfigError, match=f"no argument '{argument}': {re.escape(TOKEN_ARGUMENTS[argument])}"):
        StreamingParquetLoader(tmp_path, **wrong)


KINDS = (*LOADERS, "Stream", "Chain")
SHUFFLED: dict[str, tuple[str, ...]] = {"StreamingDataset": ("seed",), "StreamingParquetLoader": ("shuffle", "seed")}


def made(kind: str, root: Path) -> Any:
    if kind in LOADERS:
        return make_loader(kind, root)
    return Chain() if kind == "Chain" else Stream(root)


@pytest.mark.parametrize("kind", KINDS)
def test_all_classes_say_what_to_write(tmp_path: Path, kind: str) -> None:
    one = made(kind, tmp_path)
    for name in SHUFFLED.get(kind, ("shuffle", "seed")):
        with pytest.raises(
            AttributeError, match=rf"^'{kind}' object has no attribute '{name}': .*shuffle=True, .*seed="
        ):
            getattr(one, name)(seed=1)
    for name, remedy in (
        ("map_batches", r"batch_map\(\)"),
        ("train_test_split", "subset="),
        ("to_pandas", r"read\(ids\)"),
        ("get_state", r"state_dict\(\) is the state of a loader"),
    ):
        with pytest.raises(AttributeError, match=rf"^'{kind}' object has no attribute '{name}': .*{remedy}"):
            getattr(one, name)()
    with pytest.raises(AttributeError, match=rf"^'{kind}' object has no attribute 'nothing_known'$"):
        _ = one.nothing_known
    assert not hasattr(one, "__nothing__")
    if kind not in ("Chain", "StreamingDataset"):
        with pytest.raises(
            AttributeError, match=rf"^'{kind}' object has no attribute 'map': .*StreamingDataset.* use map\(\)"
        ):
            one.map(dict)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_says_what_to_write(dataset: StreamingDataset, tmp_path: Path, kind: str) -> None:
    one = made(kind, tmp_path)
    sums: list[Callable[[], Any]] = [lambda: one + one, lambda: one + dataset, lambda: sum([one, one])]
    for add in sums:
        with pytest.raises(ConfigError, match=f"^an? {kind} can not be added to another with"):
            add()


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
    by_id = ConcatDataset[Any](apart)
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
    with pytest.raises(ConfigError, match=r"no argument 'batched': use batch_map\(\)"):
        one.map(dict, batched=True)


def test_the_order_of_steps_is_checked_before_their_names() -> None:
    with pytest.raises(ConfigError, match=r"call map\(\) before it"):
        Chain().batch_map(lambda batch: batch).map(lambda sample: sample)


def test_whether_a_dataset_shuffles_can_be_asked(dataset: StreamingDataset) -> None:
    assert dataset.shuffle is True
    asked = dataset.shuffle
    assert [asked, getattr(dataset, "shuffle"), *(one.shuffle for one in (dataset,))] == [True] * 3  # noqa: B009
    assert [one for one in [dataset] if one.shuffle]
    assert str(dataset.shuffle) == "True"
    with pytest.raises(TypeError, match="'bool' object is not callable"):
        dataset.shuffle(seed=1)  # type: ignore[operator]


def test_remedies_name_what_is_there() -> None:
    assert not [name for name in METHODS if hasattr(StreamingDataset, name)]
    assert not OTHER_ARGUMENTS.keys() & ARGUMENTS
    for method in CHAIN:
        assert not OTHER_OF_MAP.keys() & set(inspect.signature(getattr(StreamingDataset, method)).parameters)
    assert not [name for name in TOKEN_METHODS if hasattr(StreamingParquetLoader, name)]
    assert not [name for name in METHODS if hasattr(Chain, name)]
    for kind in (StreamingDataLoader, StreamingShardLoader, LMStream):
        assert issubclass(kind, OverDataset)
    told = [*METHODS.values(), *OTHER_OF_MAP.values()]
    for name in {name for text in told for name in re.findall(r"(?<![.\w])([a-z_]+)\(\)", text)} - {"len"}:
        assert hasattr(StreamingDataset, name) or hasattr(stoker, name), name
    for text in told:
        for arguments in re.findall(r"give ([^.]*?)(?: of each)? to the constructor", text):
            named = re.findall(r"(?<!\w)([a-z_]+)=", arguments.partition("(")[0])
            assert named
            assert set(named) <= ARGUMENTS, text
    for name in {name for text in told for name in re.findall(r"stoker\.([a-z_]+)\(", text)}:
        assert hasattr(stoker, name), name
