"""Zips and joins: the columns of another dataset, as a plain dict would give them, in the order of the first one."""

from __future__ import annotations

import json
import logging
import pickle
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from patience import PATIENCE
from stoker import (
    BadSamples,
    Chain,
    KeepIds,
    LMStream,
    MDSWriter,
    ReadOptions,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
)
from stoker.cluster import World
from stoker.errors import ConfigError, DatasetChangedError, SampleError, StateError, TransformError
from support import write_samples

PAGES = 151
MORE = 53
"""Samples of the two streams on the left."""
WORLDS = ((1, 24), (2, 12), (3, 8))
"""Ranks, and the batch size of each, of which the global batches are the same."""

Row = dict[str, Any]


def page(number: int) -> Row:
    return {"id": 3 * number - 60, "name": f"page {number}", "raw": b"%d" % number, "x": np.full(2, number, np.float32)}


def note(number: int) -> Row:
    """What the other dataset has of a page: not of each tenth one."""
    return {
        "id": 3 * number - 60,
        "title": f"page {number}",
        "raw_key": b"%d" % number,
        "vector": np.full(3, number, np.float32),
        "label": number % 7,
        "text": f"note {number}",
    }


def has_note(number: int) -> bool:
    return number % 10 != 4


PAGE_COLUMNS = {"id": "int", "name": "str", "raw": "bytes", "x": "ndarray:float32:2"}
NOTE_COLUMNS = {
    "id": "int",
    "title": "str",
    "raw_key": "bytes",
    "vector": "ndarray:float32:3",
    "label": "int",
    "text": "str",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("joins")
    for name, first, count in (("pages", 0, PAGES), ("more", PAGES, MORE)):
        write_samples(out / name, map(page, range(first, first + count)), PAGE_COLUMNS, size_limit=900)
    numbers = [number for number in range(PAGES + MORE + 40) if has_note(number)]
    random.Random(1).shuffle(numbers)
    write_samples(out / "notes", map(note, numbers), NOTE_COLUMNS, size_limit=1200)
    for name, part in (("half", numbers[:90]), ("rest", numbers[90:])):
        write_samples(out / name, map(note, part), NOTE_COLUMNS, size_limit=1200)
    table = {name: [note(number)[name] for number in numbers] for name in NOTE_COLUMNS if name != "vector"}
    table["vector"] = [note(number)["vector"].tolist() for number in numbers]
    (out / "table").mkdir()
    pq.write_table(pa.table(table), out / "table" / "part.parquet", row_group_size=40)
    write_samples(out / "scores", ({"score": np.float32(number) / 2} for number in range(PAGES + MORE)), size_limit=200)
    return out


def opened(data: Path, **settings: Any) -> StreamingDataset:
    streams = [Stream(data / "pages"), Stream(data / "more")]
    return StreamingDataset(streams=streams, **({"shuffle": True, "batch_size": 24} | settings))


def other(data: Path, kind: str = "notes", **settings: Any) -> StreamingDataset:
    if kind == "streams":
        return StreamingDataset(streams=[Stream(data / "half"), Stream(data / "rest")], **settings)
    return StreamingDataset(data / kind, **settings)


def number_of(sample: Row) -> int:
    return int(sample["id"] + 60) // 3


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def rows_of(batch: Row) -> list[Row]:
    if not batch:
        return []
    count = len(next(iter(batch.values())))
    return [{name: plain(column[at]) for name, column in batch.items()} for at in range(count)]


def shown(sample: Row) -> Row:
    return {name: plain(value) for name, value in sample.items()}


class Case:
    """A chain that is drawn by chance, and what a dict makes of a page instead."""

    def __init__(self, data: Path, chance: random.Random) -> None:
        self.chain = Chain()
        self.steps: list[Any] = []
        self.missing = chance.choice(["leave_out", "none"])
        kind = chance.choice(["notes", "table", "streams"])
        on = chance.choice(["id", ("name", "title"), ("raw", "raw_key")])
        key = on if isinstance(on, str) else on[1]
        wanted = [key, *chance.sample(sorted({"vector", "label", "text"}), 2)]
        notes = other(data, kind, shuffle=chance.random() < 0.5).select(wanted)
        if chance.random() < 0.3:
            notes = notes.map(as_it_is)
        first = [self._mapped, self._flat, self._zipped][: chance.randrange(4)]
        chance.shuffle(first)
        for add in first:
            add(data)
        self.chain = self.chain.join(notes, on, missing=self.missing, prefix="n_")  # type: ignore[arg-type]
        columns = [name for name in wanted if name != key]

        def joined(sample: Row) -> list[Row]:
            number = number_of(sample)
            if has_note(number):
                return [sample | {f"n_{name}": plain(note(number)[name]) for name in columns}]
            return [] if self.missing == "leave_out" else [sample | {f"n_{name}": None for name in columns}]

        self.steps.append(joined)
        if chance.random() < 0.5:
            self._mapped(data, "later")
        if chance.random() < 0.3:
            drop = chance.choice(columns)
            kept = ["id", *[f"n_{name}" for name in columns if name != drop]]
            self.chain = self.chain.select(kept)
            self.steps.append(lambda sample: [{name: sample[name] for name in kept}])

    def _mapped(self, data: Path, name: str = "first") -> None:
        self.chain = self.chain.map(Doubled(name), name)
        self.steps.append(lambda sample: [sample | {name: 2 * number_of(sample)}])

    def _flat(self, data: Path) -> None:
        self.chain = self.chain.flat_map(turns)
        self.steps.append(turns)

    def _zipped(self, data: Path) -> None:
        self.chain = self.chain.zip(StreamingDataset(data / "scores"))
        self.steps.append(lambda sample: [sample | {"score": number_of(sample) / 2}])

    def expected(self, number: int) -> list[Row]:
        samples = [shown(page(number))]
        for step in self.steps:
            samples = [made for sample in samples for made in step(sample)]
        return samples


class Doubled:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, sample: Row) -> Row:
        return {**sample, self._name: 2 * number_of(sample)}


def as_it_is(sample: Row) -> Row:
    return dict(sample)


def turns(sample: Row) -> list[Row]:
    return [{**sample, "turn": turn} for turn in range(number_of(sample) % 3)]


def order_of(data: Path, **settings: Any) -> list[list[int]]:
    """Numbers of the pages in each batch, of the dataset alone."""
    return [[number_of(row) for row in rows_of(batch)] for batch in opened(data, **settings).batches()]


@pytest.mark.parametrize("seed", range(24))
def test_chains_drawn_by_chance_give_what_a_dict_gives_in_any_world_and_after_a_stop(data: Path, seed: int) -> None:
    chance = random.Random(seed)
    case = Case(data, chance)
    settings: dict[str, Any] = {
        "shuffle": chance.random() < 0.8,
        "shuffle_algo": chance.choice(["block", "global", "shard"]),
        "shuffle_seed": seed,
        "on_bad_sample": chance.choice(["raise", "skip"]),
        "remainder": "uneven",
    }
    order = order_of(data, **settings)
    expected = [[row for number in batch for row in case.expected(number)] for batch in order]
    dataset = opened(data, transform=case.chain, **settings)
    stop = chance.randrange(1, len(order))
    batches = dataset.batches()
    found = [rows_of(next(batches)) for _ in range(stop)]
    assert found == expected[:stop], case.chain
    state = dataset.state_dict()
    ranks, size = chance.choice(WORLDS)
    parts = []
    for rank in range(ranks):
        one = opened(
            data, **settings | {"transform": case.chain, "batch_size": size, "world": World(rank, ranks, ranks)}
        )
        one.load_state_dict(state)
        parts.append([rows_of(batch) for batch in one.batches()])
    for turn, batch in enumerate(expected[stop:]):
        got = [row for part in parts for row in (part[turn] if turn < len(part) else [])]
        assert sorted(map(str, got)) == sorted(map(str, batch)), case.chain
    one_by_one = [shown(sample) for sample in opened(data, transform=case.chain, **settings)]
    assert one_by_one == [row for batch in expected for row in batch], case.chain


@pytest.mark.processes
@pytest.mark.parametrize(("start", "columnar"), [("fork", True), ("fork", False), ("spawn", True)])
def test_workers_give_the_same(data: Path, start: str, columnar: bool) -> None:
    notes, scores = other(data).select(["id", "label", "vector"]), StreamingDataset(data / "scores")
    chain = Chain().zip(scores).join(notes, "id", missing="leave_out")
    whole = opened(data, transform=chain).select(["id", "score", "label", "vector"])
    expected = [rows_of(batch) for batch in whole.batches()]
    dataset = opened(data, transform=chain).select(["id", "score", "label", "vector"])
    loader = StreamingDataLoader(dataset, num_workers=2, columnar=columnar, multiprocessing_context=start)
    found = [rows_of({name: value.numpy() for name, value in batch.items()}) for batch in loader]
    assert found == expected
    if start == "fork" and columnar:
        loader = StreamingDataLoader(dataset, num_workers=2, columnar=True)
        for step, _ in enumerate(loader):
            if step == 3:
                break
        state = loader.state_dict()
        resumed = opened(data, transform=chain).select(["id", "score", "label", "vector"])
        resumed.load_state_dict(state)
        dataset.set_epoch(1)
        assert [rows_of(batch) for batch in resumed.batches()] == [rows_of(b) for b in dataset.batches()][4:]


@pytest.mark.parametrize("early", [True, False], ids=["join first", "map first"])
@pytest.mark.parametrize("batches", [True, False])
def test_a_bad_sample_of_the_other_dataset_is_listed_as_the_one_beside_it(
    early: bool, batches: bool, tmp_path: Path
) -> None:
    """Its shard and its number there are in the reason, so that the list leaves out what it should."""
    with MDSWriter({"x": "int"}, tmp_path / "own", size_limit=500) as out:
        for n in range(200):
            out.write({"x": n})
    with MDSWriter({"x": "int", "cap": "str"}, tmp_path / "other", size_limit=700) as out:
        for n in reversed(range(200)):
            out.write({"x": n, "cap": f"cap {n}"})
    shard = tmp_path / "other" / "shard.00001.mds"
    shard.write_bytes(shard.read_bytes().replace(b"cap ", b"\xffap ", 1))

    def found(**settings: Any) -> list[int]:
        dataset = StreamingDataset(tmp_path / "own", batch_size=20, **settings)
        chain = dataset if early else dataset.map(dict)
        chain = chain.join(StreamingDataset(tmp_path / "other"), on="x")
        return (
            [int(n) for batch in chain.batches() for n in batch["x"]] if batches else [int(one["x"]) for one in chain]
        )

    left = found(on_bad_sample=BadSamples("skip", file=tmp_path / "bad.jsonl"))
    (missing,) = set(range(200)) - set(left)
    told = json.loads((tmp_path / "bad.jsonl").read_text())
    assert (told["sample"], told["column"]) == (missing, "cap")
    assert "/own/" in told["url"]
    assert "/other/shard.00001.mds: sample 0: column 'cap' (str) does not decode" in told["reason"]
    assert set(found(read=ReadOptions(quarantine=tmp_path / "bad.jsonl"))) == set(left)


def test_random_numbers_order_steps_and_ids_are_those_of_the_first_dataset(data: Path) -> None:
    def draw(sample: Row, rng: np.random.Generator) -> Row:
        return {**sample, "draw": int(rng.integers(1 << 40))}

    alone = opened(data).random_map(draw)
    joined = opened(data).join(other(data, shuffle=True), "id", missing="none").random_map(draw)
    assert [(s["id"], s["draw"]) for s in alone] == [(s["id"], s["draw"]) for s in joined]
    assert len(joined) == len(alone)
    assert joined.ids_of(3).tolist() == alone.ids_of(3).tolist()
    assert joined.where(70) == alone.where(70)


def test_random_numbers_of_the_other_dataset_are_its_own(data: Path) -> None:
    def draw(sample: Row, rng: np.random.Generator) -> Row:
        return {**sample, "draw": int(rng.integers(1 << 40))}

    notes = other(data, shuffle_seed=5).random_map(draw)
    expected = {sample["id"]: sample["draw"] for sample in notes}
    joined = opened(data).join(other(data, shuffle_seed=5).random_map(draw).map(as_it_is), "id", missing="leave_out")
    joined_first = list(joined)
    assert all(sample["draw"] == expected[sample["id"]] for sample in joined_first)
    notes = other(data, shuffle_seed=5).random_map(draw)
    drawn = StreamingShardLoader(opened(data).join(notes, "id", missing="leave_out"))
    assert [row["draw"] for batch in drawn for row in rows_of(batch)] == [sample["draw"] for sample in joined_first]


def next_key(sample: Row) -> Row:
    return {**sample, "id": sample["id"] + 3}


def unknown_key(sample: Row) -> Row:
    return {**sample, "id": sample["id"] + 1}


@pytest.mark.parametrize("missing", ["leave_out", "none", "raise"])
@pytest.mark.parametrize("changes", [next_key, unknown_key])
def test_functions_of_the_other_dataset_do_not_change_its_keys(data: Path, changes: Any, missing: Any) -> None:
    joined = opened(data).join(other(data).map(changes), "id", missing=missing)
    with pytest.raises(ConfigError, match=r"a function of 'notes' changes its keys: .* let the function leave 'id'"):
        list(joined.batches())
    # Where no sample of it is met, the first is looked at.
    far = opened(data).map(unknown_key).join(other(data).map(changes), "id", missing=missing)
    with pytest.raises(TransformError if missing == "raise" else ConfigError, match=r"has the key|changes its keys"):
        list(far)
    # A column that functions drop, or make anew of an equal value, is none that they change.
    dropped = opened(data).join(other(data).map(without_id), "id", missing="none")
    assert dropped[5]["text"] == "note 5"


def without_id(sample: Row) -> Row:
    return {"text": sample["text"]}


def test_samples_by_id_and_slices_come_joined(data: Path) -> None:
    dataset = opened(data).zip(StreamingDataset(data / "scores")).join(other(data, "table"), "id", missing="none")
    assert [sample["score"] for sample in dataset[3:6]] == [1.5, 2.0, 2.5]
    assert dataset[5]["text"] == "note 5"
    assert dataset[4]["text"] is None
    assert list(dataset.read([5], ["id"])["id"]) == [-45]
    mapped = opened(data).map(as_it_is).join(other(data), "id")
    assert mapped[7]["text"] == "note 7"
    with pytest.raises(TransformError, match=r"has the key -48: missing='leave_out'"):
        mapped[4]
    with pytest.raises(ConfigError, match="samples by id"):
        opened(data).join(other(data), "id", missing="leave_out")[0]


def test_select_drops_columns_of_the_other_dataset_unread(data: Path) -> None:
    dataset = opened(data).join(other(data), "id", missing="none").select(["id", "label"])
    assert dataset.epoch_reader.settings.layout == (("id", 0, "id"), ("label", 1, "label"))
    assert set(next(dataset.batches())) == {"id", "label"}
    none = opened(data).join(other(data), "id", missing="none").select(["id"])
    assert none.epoch_reader.settings.layout == (("id", 0, "id"),)
    assert len([sample for sample in none if set(sample) == {"id"}]) == PAGES + MORE


def test_joins_follow_each_other_by_a_key_of_the_one_before(data: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "words", ({"number": number, "word": f"w{number}"} for number in range(6)))
    words = StreamingDataset(tmp_path / "words")
    for notes in (other(data), other(data).map(as_it_is)):
        chained = opened(data).join(notes, "id", missing="none").join(words, on=("label", "number"), missing="none")
        for batch in chained.batches():
            for row in rows_of(batch):
                number = number_of(row)
                label = number % 7 if has_note(number) else None
                assert row["label"] == label
                assert row["word"] == (f"w{label}" if label not in (None, 6) else None)
    nested = opened(data).join(other(data).join(words, on=("label", "number"), missing="none"), "id", missing="none")
    assert {row["word"] for batch in nested.batches() for row in rows_of(batch)} == {None, *(f"w{n}" for n in range(6))}
    state = nested.state_dict()
    assert len(state["others"]["notes"]) == 2


def test_a_chain_with_a_join_is_a_value(data: Path) -> None:
    dataset = opened(data).rename({"name": "n"}).join(other(data), on=("n", "title"), missing="none", prefix="p_")
    assert repr(dataset.chain) == (
        "Chain().rename({'name': 'n'}).join('notes', on=('n', 'title'), prefix='p_', missing='none')"
    )
    assert Chain().join(other(data), "id") == Chain().join(other(data), "id")
    assert Chain().join(other(data), "id") != Chain().join(other(data, "table"), "id", name="notes")
    assert hash(Chain().zip(other(data))) == hash(Chain().zip(other(data)))
    with pytest.raises(ConfigError, match="two steps of the name"):
        dataset.join(other(data), "id")
    with pytest.raises(ConfigError, match="needs a dataset"):
        Chain().zip(other(data))({})
    copied = pickle.loads(pickle.dumps(opened(data).chain))
    assert copied == Chain()


def test_a_state_of_another_dataset_is_refused_by_name(data: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "notes", map(note, range(PAGES + MORE)), NOTE_COLUMNS)
    state = opened(data).join(other(data), "id").state_dict()
    assert state["chain"] == ["join('notes', on='id')"]
    opened(data).join(other(data), "id").load_state_dict(state)
    with pytest.raises(StateError, match=r"took columns of 'notes' from another dataset \(fingerprint .*another name="):
        opened(data).join(StreamingDataset(tmp_path / "notes"), "id").load_state_dict(state)
    opened(data).join(StreamingDataset(tmp_path / "notes"), "id", name="new").load_state_dict(state)


def test_a_state_from_inside_an_epoch_wants_the_same_samples_left_out(data: Path) -> None:
    dataset = opened(data).join(other(data), "id", missing="leave_out")
    next(dataset.batches())
    state = dataset.state_dict()
    with pytest.raises(StateError, match="whose chain was"):
        opened(data).join(other(data), "id", missing="none").load_state_dict(state)
    assert dataset.stats().filtered >= sum(
        not has_note(number_of(row)) for row in rows_of(next(opened(data).batches()))
    )


@pytest.mark.parametrize("steps", ["", "map"])
@pytest.mark.parametrize("treatment", ["skip", "replace"])
def test_a_key_that_is_not_there_is_a_bad_sample(data: Path, tmp_path: Path, steps: str, treatment: Any) -> None:
    def made(treatment: Any) -> StreamingDataset:
        dataset = opened(data, on_bad_sample=treatment)
        return (dataset.map(as_it_is) if steps else dataset).join(other(data), "id")

    for read in (lambda dataset: list(dataset.batches()), list):
        with pytest.raises(TransformError, match=r"no sample of 'notes' has the key"):
            read(made("raise"))
    found = made(BadSamples(treatment, max_share=None, file=tmp_path / "bad.jsonl"))
    batches = [[number_of(row) for row in rows_of(batch)] for batch in found.batches()]
    one_by_one = [number_of(sample) for sample in made(BadSamples(treatment, max_share=None))]
    assert [number for batch in batches for number in batch] == one_by_one
    assert all(map(has_note, one_by_one))
    wanted = [number for batch in order_of(data) for number in batch if has_note(number)]
    missing = PAGES + MORE - len(wanted)
    if treatment == "skip":
        assert one_by_one == wanted
    else:
        assert len(one_by_one) == PAGES + MORE
    assert found.stats().bad_samples == missing
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == missing


def damaged(data: Path, out: Path) -> tuple[Path, set[int], str]:
    """Notes of which one shard is damaged, the numbers in it, and its name."""
    write_samples(out / "notes", map(note, range(PAGES + MORE)), NOTE_COLUMNS, size_limit=1200, hashes=["xxh3_64"])
    notes = StreamingDataset(out / "notes")
    first, count = int(notes.sample_offset_per_shard[2]), int(notes.samples_per_shard[2])
    path = out / "notes" / "shard.00002.mds"
    path.write_bytes(path.read_bytes()[:40])
    return out / "notes", set(range(first, first + count)), path.name


@pytest.mark.parametrize("steps", ["", "map"])
def test_damage_in_the_other_dataset_is_a_bad_sample_that_names_its_row(data: Path, tmp_path: Path, steps: str) -> None:
    notes, gone, name = damaged(data, tmp_path)

    def made(treatment: Any) -> StreamingDataset:
        dataset = opened(data, on_bad_sample=treatment)
        return (dataset.map(as_it_is) if steps else dataset).zip(StreamingDataset(notes), prefix="n_")

    for read in (lambda dataset: list(dataset.batches()), list):
        with pytest.raises(SampleError, match=name.replace(".", r"\.")) as caught:
            read(made("raise"))
        assert caught.value.shard == 2
        found = made(BadSamples("skip", max_share=None))
        kept = read(found)
        numbers = [number_of(row) for one in kept for row in (rows_of(one) if read is not list else [one])]
        wanted = [number for batch in order_of(data) for number in batch if number not in gone]
        assert numbers == wanted
        assert found.stats().bad_samples == len(gone)


def test_damage_in_the_first_dataset_is_a_bad_sample_of_it(data: Path, tmp_path: Path) -> None:
    notes, gone, _ = damaged(data, tmp_path)
    scores = StreamingDataset(data / "scores")
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 16, "on_bad_sample": BadSamples("skip", max_share=None)}
    for chain in (Chain().zip(scores), Chain().join(other(data), "id", missing="leave_out", prefix="n_")):
        dataset = StreamingDataset(notes, transform=chain, **settings)
        numbers = sorted(number_of(row) for batch in dataset.batches() for row in rows_of(batch))
        leaves_out = any(step.kind == "join" for step in chain.steps)
        assert numbers == [n for n in range(PAGES + MORE) if n not in gone and (has_note(n) or not leaves_out)]
        assert dataset.stats().bad_samples == len(gone)


@pytest.mark.parametrize("of_other", [True, False])
@pytest.mark.parametrize("on", ["", "id"])
def test_samples_of_a_join_come_up_to_the_one_whose_value_is_bad(tmp_path: Path, on: str, *, of_other: bool) -> None:
    write_samples(tmp_path / "pages", map(page, range(PAGES)), PAGE_COLUMNS, size_limit=900)
    write_samples(tmp_path / "notes", map(note, range(PAGES)), NOTE_COLUMNS, size_limit=1200)
    text = b"note 70" if of_other else b"page 70"
    for path in (tmp_path / ("notes" if of_other else "pages")).glob("*.mds"):
        path.write_bytes(path.read_bytes().replace(text, b"\xff" * len(text)))

    def made(treatment: Any) -> StreamingDataset:
        dataset, notes = (
            StreamingDataset(tmp_path / "pages", on_bad_sample=treatment),
            StreamingDataset(tmp_path / "notes"),
        )
        notes = notes.select(["id", "text", "label"])
        return dataset.join(notes, on) if on else dataset.zip(notes, prefix="n_")

    came: list[int] = []
    with pytest.raises(SampleError, match=rf"sample 70.*column '{'text' if of_other else 'name'}'") as caught:
        came.extend(map(number_of, made("raise")))
    assert came == list(range(70))
    assert isinstance(caught.value.__cause__, SampleError if of_other else UnicodeDecodeError)
    found = made("skip")
    assert list(map(number_of, found)) == [number for number in range(PAGES) if number != 70]
    assert found.stats().bad_samples == 1


def test_lengths_names_and_kinds_that_do_not_fit_are_errors_with_a_remedy(data: Path) -> None:
    dataset = opened(data)
    with pytest.raises(ConfigError, match=rf"this dataset has {PAGES + MORE} samples, and 'notes' has \d+"):
        dataset.zip(other(data))
    with pytest.raises(ConfigError, match=r"both have a column 'id': give prefix=..., rename\(\)"):
        dataset.join(other(data), on=("name", "title"))
    with pytest.raises(ConfigError, match="there is no column 'nr'; there are id, name"):
        dataset.join(other(data), on=("nr", "id"))
    with pytest.raises(ConfigError, match="'notes' has no column 'nr'"):
        dataset.join(other(data), on=("id", "nr"))
    with pytest.raises(ConfigError, match=r"holds integers, and .* holds text"):
        list(dataset.join(other(data).select(["title", "text"]), on=("id", "title")))
    with pytest.raises(ConfigError, match="keys are integers, text or bytes"):
        dataset.join(other(data), on=("id", "vector"))
    with pytest.raises(ConfigError, match="is a position"):
        dataset.enumerate("at").join(other(data), on=("at", "id"))
    with pytest.raises(ConfigError, match=r"call zip\(\) before it"):
        dataset.batch_map(as_it_is).zip(StreamingDataset(data / "scores"))
    with pytest.raises(ConfigError, match=r"filter.* does not give one for each"):
        dataset.zip(opened(data).filter(bool), prefix="o_")
    with pytest.raises(ConfigError, match="has subset="):
        dataset.join(other(data, subset=KeepIds([1, 2])), "id")
    with pytest.raises(ConfigError, match=r"Chain.zip: other must be a StreamingDataset, got \[1\]"):
        Chain().zip([1])  # type: ignore[arg-type]

    class Own(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    with pytest.raises(ConfigError, match=r"would not call __getitem__\(\)"):
        dataset.join(Own(data / "notes"), "id")
    with pytest.raises(ConfigError, match="both have a column 'id'"):
        list(dataset.map(as_it_is).join(other(data), on=("name", "title"), missing="none"))


def test_the_other_dataset_may_be_iterated_meanwhile(data: Path) -> None:
    notes = other(data, shuffle=True, batch_size=10)
    dataset = opened(data).join(notes, "id", missing="leave_out")
    mine, theirs = dataset.batches(), notes.batches()
    first = next(theirs)
    state = notes.state_dict()
    joined = [row for batch in mine for row in rows_of(batch)]
    assert notes.state_dict() == state
    assert len(joined) == sum(map(has_note, range(PAGES + MORE)))
    rest = [row for batch in theirs for row in rows_of(batch)]
    assert len(rest) + len(rows_of(first)) == notes.size


def test_the_other_loaders_take_joined_datasets(data: Path) -> None:
    def made(missing: Any = "none", **settings: Any) -> StreamingDataset:
        notes = other(data).select(["id", "label", "text"])
        return opened(data, **{"batch_size": None} | settings).join(notes, "id", missing=missing)

    texts = [sample["text"] for sample in made()]
    loader = StreamingShardLoader(made())
    assert sorted(str(sample["text"]) for sample in loader) == sorted(map(str, texts))
    there = [str(sample["text"]) for sample in StreamingShardLoader(made("leave_out"))]
    assert sorted(there) == sorted(str(text) for text in texts if text is not None)

    def tokens(texts: Any) -> list[list[int]]:
        return [[int(word) for word in text.split()[1:]] for text in texts]

    stream = LMStream(made("leave_out"), "text", 2, 8, tokenizer=tokens)
    seen = np.concatenate([batch.input_ids.ravel() for batch in stream])
    assert set(seen.tolist()) <= {number for number in range(PAGES + MORE) if has_note(number)}
    batch = next(iter(DataLoader(made().select(["id", "name"]), batch_size=24)))
    assert torch.is_tensor(batch["id"])


def parts_of(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*.mds") if path.is_file())


@pytest.mark.parametrize("limit", [None, "6kb"])
def test_shards_of_the_other_dataset_are_fetched_ahead_within_its_limit(
    data: Path, tmp_path: Path, limit: str | None
) -> None:
    """A batch is taken, and no more: shards that later ones need come all the same."""
    notes = StreamingDataset(f"file://{data / 'notes'}", local=tmp_path / "notes", cache_limit=limit)
    pages = StreamingDataset(f"file://{data / 'pages'}", local=tmp_path / "pages", shuffle=True, batch_size=4)
    dataset = pages.join(notes, "id", missing="leave_out")
    for path in parts_of(tmp_path / "notes"):
        path.unlink()  # which reading the keys has fetched
    dataset.close()
    batches = dataset.batches()
    rows = rows_of(next(batches))
    deadline = time.monotonic() + PATIENCE
    while limit is None and len(list(parts_of(tmp_path / "notes"))) < 12 and time.monotonic() < deadline:
        time.sleep(0.01)
    there = list(parts_of(tmp_path / "notes"))
    if limit is None:
        assert len(there) >= 12
    for batch in batches:
        rows += rows_of(batch)
        if limit is not None:
            assert sum(path.stat().st_size for path in parts_of(tmp_path / "notes")) <= 6000 + 3 * 1300
    assert sorted(map(number_of, rows)) == [number for number in range(PAGES) if has_note(number)]
    assert all(row["text"] == f"note {number_of(row)}" for row in rows)


def test_keys_are_read_once_and_their_index_is_kept(data: Path, tmp_path: Path, caplog: Any) -> None:
    write_samples(tmp_path / "notes", map(note, range(100)), NOTE_COLUMNS, size_limit=1200)
    with caplog.at_level(logging.INFO, "stoker"):
        for _ in range(3):
            opened(data).join(StreamingDataset(tmp_path / "notes"), "id", missing="none")
    assert sum("index of keys" in record.message for record in caplog.records) == 1


def test_left_limited_cache_is_read_shard_by_shard_with_the_join(data: Path, tmp_path: Path) -> None:
    def limited(name: str) -> StreamingDataset:
        settings: dict[str, Any] = {"shuffle": True, "shuffle_algo": "global", "cache_limit": 3000, "batch_size": 16}
        return StreamingDataset(f"file://{data / 'pages'}", local=tmp_path / name, **settings)

    alone = limited("alone")
    assert len(list(alone)) == PAGES
    for way in ("batches", "samples"):
        for missing in ("none", "leave_out"):
            dataset = limited(f"{way} {missing}").join(other(data), "id", missing=missing)
            if way == "batches":
                found = [row for batch in dataset.batches() for row in rows_of(batch)]
            else:
                found = [shown(sample) for sample in dataset]
            numbers = [number for number in range(PAGES) if missing == "none" or has_note(number)]
            assert sorted(map(number_of, found)) == numbers
            assert all(row["text"] == (f"note {number_of(row)}" if has_note(number_of(row)) else None) for row in found)
            assert dataset.stats().bytes_fetched <= 1.3 * alone.stats().bytes_fetched  # keys fetch no shard anew


READS: dict[str, Any] = {
    "batches": lambda dataset: [row for batch in dataset.batches() for row in rows_of(batch)],
    "samples": list,
    "ids": lambda dataset: [dataset[number] for number in range(PAGES + MORE)],
    "slices": lambda dataset: dataset[: PAGES + MORE],
    "shard loader": lambda dataset: [row for batch in StreamingShardLoader(dataset) for row in rows_of(batch)],
}
READS |= {"shard by shard": READS["batches"]}
JOINS: dict[str, Any] = {
    "integers": lambda pages, notes: pages.join(notes, "id", missing="none"),
    "text": lambda pages, notes: pages.join(notes.select(["title", "text"]), ("name", "title"), missing="none"),
    "bytes unread there": lambda pages, notes: pages.join(notes.select(["text"]), ("raw", "raw_key"), missing="none"),
    "after a function": lambda pages, notes: pages.map(as_it_is).join(notes, "id", missing="none"),
    "a function there": lambda pages, notes: pages.join(notes.map(as_it_is), "id", missing="none"),
    "renamed": lambda pages, notes: pages.join(notes.rename({"id": "key"}), ("id", "key"), missing="none"),
    "key unread": lambda pages, notes: pages.join(notes, "id", missing="none").select(["x", "text"]),
}


@pytest.mark.parametrize("join", JOINS)
def test_shards_written_over_in_place_give_no_rows_of_other_keys(data: Path, tmp_path: Path, join: str) -> None:
    numbers = list(range(100, 160))

    def write(out: Path, numbers: list[int]) -> StreamingDataset:
        write_samples(out, map(note, numbers), NOTE_COLUMNS, size_limit=1200, hashes=())
        return StreamingDataset(out)

    ends = np.cumsum(write(tmp_path / "notes", numbers).samples_per_shard)[:-1]
    turned = np.concatenate([part[::-1] for part in np.split(np.array(numbers), ends)])
    write(tmp_path / "turned", turned.tolist())
    assert (tmp_path / "turned" / "index.json").read_bytes() == (tmp_path / "notes" / "index.json").read_bytes()

    def joined(way: str) -> StreamingDataset:
        if way == "shard by shard":
            notes = StreamingDataset(f"file://{tmp_path / way}", local=tmp_path / "cache", cache_limit=2500)
        else:
            notes = StreamingDataset(tmp_path / way)
        dataset: StreamingDataset = JOINS[join](opened(data, on_bad_sample="skip"), notes)
        return dataset

    def check(rows: list[Row]) -> None:
        assert sum(row["text"] is not None for row in rows) == len(numbers)
        assert all(row["text"] in (None, f"note {int(row['x'][0])}") for row in rows)

    for way, read in READS.items():
        shutil.copytree(tmp_path / "notes", tmp_path / way)
        check(read(joined(way)))
        for shard in (tmp_path / "turned").glob("*.mds"):
            (tmp_path / way / shard.name).write_bytes(shard.read_bytes())
        for part in parts_of(tmp_path / "cache"):
            part.unlink()
        told = r"shard\.\d+\.mds.*, row \d+ .* is .*, and was .* removed now: open the dataset again"
        with pytest.raises(DatasetChangedError, match=told):
            read(joined(way))
        check(read(joined(way)))


def test_an_other_dataset_without_samples_is_told_as_that(data: Path, tmp_path: Path) -> None:
    with MDSWriter(NOTE_COLUMNS, tmp_path / "notes"):
        pass
    with pytest.raises(
        ConfigError, match="'notes' has no samples, and so no column 'id' to find them by: write it first"
    ):
        opened(data).join(StreamingDataset(tmp_path / "notes"), "id", missing="none")
