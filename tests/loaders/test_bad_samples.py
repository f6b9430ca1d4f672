"""Bad samples: all good ones come once, ranks take equally many steps, any run resumes, and limits hold."""

from __future__ import annotations

import errno
import gc
import json
import random
import resource
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_data import write_with_bad
from torch.utils.data import DataLoader

from stoker import (
    BadSamples,
    HashSplit,
    LMStream,
    MDSWriter,
    ReadOptions,
    StreamingDataLoader,
    StreamingDataset,
    convert,
)
from stoker.cluster import World
from stoker.concurrency.shared.counters import Counts
from stoker.errors import (
    ConfigError,
    CorruptDataError,
    DatasetChangedError,
    DecodeError,
    ObjectNotFoundError,
    SampleError,
    StorageTimeoutError,
    TooManyBadSamplesError,
    TransformError,
)
from stoker.partitions import Contiguous, HashBased, RoundRobin
from stoker.pipeline.chunks.work import ChunkWork
from stoker.reading.bad_samples import BadSampleLog
from stoker.reading.row_reader import RowReader
from stoker.writers import CSVWriter, JSONWriter, open_writer
from support import all_of, write_columns, write_samples

SAMPLES = 700
BAD = frozenset({0, 1, 5, 119, 120, 121, 122, 300, 350, 699})
GOOD = set(range(SAMPLES)) - BAD


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_bad(tmp_path_factory.mktemp("bad") / "data", SAMPLES, BAD)


@pytest.mark.parametrize("form", ["jsonl", "mds"])
def test_values_of_any_type_stay_beside_a_bad_sample(form: str, tmp_path: Path) -> None:
    values = [number if number in (21, 31, 44) else f"text {number}" for number in range(60)]
    if form == "jsonl":
        lines = [json.dumps({"any": value}) for value in values]
        lines[20] = lines[32] = "{broken"
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a.jsonl").write_text("\n".join(lines) + "\n")
    else:
        with MDSWriter({"any": "json"}, tmp_path / "data") as out:
            for number, value in enumerate(values):
                out.write({"any": "X" * 9 if number in (20, 32) else value})
        (shard,) = (tmp_path / "data").glob("*.mds")
        shard.write_bytes(shard.read_bytes().replace(b'"XXXXXXXXX"', b'"XXXXXXXXXX'))
    good = [value for number, value in enumerate(values) if number not in (20, 32)]
    for shuffle in (False, True):
        for treatment, count in ((BadSamples("skip"), 58), (BadSamples("replace"), 60)):
            dataset = StreamingDataset(tmp_path / "data", shuffle=shuffle, batch_size=60, on_bad_sample=treatment)
            (batch,) = dataset.batches()
            assert len(batch["any"]) == count
            assert Counter(map(repr, batch["any"])) >= Counter(map(repr, good))
            assert dataset.stats().bad_samples == 2
    done = convert(tmp_path / "data", tmp_path / "out", processes=1, on_bad_sample="skip")
    assert (done.samples, done.bad_samples) == (58, 2)
    assert [sample["any"] for sample in StreamingDataset(tmp_path / "out")] == good


def ids_of(batches: Iterator[Any]) -> list[list[int]]:
    return [[int(number) for number in batch["id"]] for batch in batches]


def raises_for_bad(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) in BAD:
        raise ValueError("a bad one")
    return sample


@pytest.fixture(params=["decoding", "transform", "override"])
def make(request: pytest.FixtureRequest, data: Path) -> Any:
    """Makes datasets of which the samples in ``BAD`` are bad, for one reason or another."""

    class Overriding(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return raises_for_bad(super().__getitem__(index))

    def made(**settings: Any) -> StreamingDataset:
        if request.param == "decoding":
            return StreamingDataset(data, **settings)
        kind = Overriding if request.param == "override" else StreamingDataset
        if request.param == "transform":
            settings["transform"] = raises_for_bad
        return kind(data, columns=["id"], **settings)

    made.columnar = request.param != "override"  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_sample_is_an_error_unless_asked_otherwise(make: Any, shuffle: bool) -> None:
    with pytest.raises((DecodeError, TransformError, ValueError)):
        list(make(shuffle=shuffle, batch_size=8))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_good_samples_come_once_and_in_order(make: Any, shuffle: bool, threads: int) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "batch_size": 8, "read": ReadOptions(read_threads=threads)}
    order = [int(number) for step in range(-(-SAMPLES // 8)) for number in make(**settings).ids_of(step)]
    dataset = make(on_bad_sample="skip", **settings)
    assert [int(sample["id"]) for sample in dataset] == [number for number in order if number in GOOD]
    assert dataset.stats().bad_samples == len(BAD)
    replaced = [int(sample["id"]) for sample in make(on_bad_sample="replace", **settings)]
    assert len(replaced) == SAMPLES
    assert all(found == wanted for found, wanted in zip(replaced, order, strict=True) if wanted in GOOD)
    assert set(replaced) == GOOD


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("columnar", [False, True])
def test_functions_are_called_once_for_each_sample_that_decodes(data: Path, threads: int, columnar: bool) -> None:
    called: Counter[int] = Counter()

    def raises_for_some(sample: dict[str, Any]) -> dict[str, Any]:
        called[int(sample["id"])] += 1
        if sample["id"] % 50 == 7:
            raise ValueError("a bad one")
        return sample

    settings: dict[str, Any] = {"shuffle": True, "batch_size": 64, "read": ReadOptions(read_threads=threads)}
    dataset = StreamingDataset(data, transform=raises_for_some, on_bad_sample="skip", **settings)
    found = chain.from_iterable(ids_of(dataset.batches())) if columnar else (int(sample["id"]) for sample in dataset)
    assert Counter(found) == Counter(number for number in GOOD if number % 50 != 7)
    assert called == Counter(GOOD)


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_batches_keep_their_places(make: Any, on_bad_sample: str) -> None:
    if not make.columnar:
        pytest.skip("a subclass makes the samples")
    plain = make(shuffle=True, batch_size=8)
    found = ids_of(make(shuffle=True, batch_size=8, on_bad_sample=on_bad_sample).batches())
    assert len(found) == -(-SAMPLES // 8)
    for step, batch in enumerate(found):
        wanted = plain.ids_of(step).tolist()
        if on_bad_sample == "skip":
            assert batch == [number for number in wanted if number in GOOD]
        else:
            assert all(one == number for one, number in zip(batch, wanted, strict=True) if number in GOOD)
            assert GOOD.issuperset(batch)


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_a_loader_s_steps_are_those_without_bad_samples(
    make: Any, workers: int, columnar: bool, on_bad_sample: str
) -> None:
    if columnar and not make.columnar:
        pytest.skip("a subclass makes the samples")
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 20}
    options: dict[str, Any] = {"num_workers": workers, "columnar": columnar}
    if columnar and make().columns is None:
        settings["columns"] = ["id", "doc"]
    whole: Counter[int] = Counter()
    for rank in range(3):
        world = World(rank, 3, 3)
        dataset = make(on_bad_sample=on_bad_sample, world=world, **settings)
        expected = [dataset.ids_of(step, rank).tolist() for step in range(-(-SAMPLES // 60))]
        with StreamingDataLoader(dataset, **options) as loader:
            found = ids_of(iter(loader))
        assert len(found) == len(expected) == len(loader)
        if on_bad_sample == "skip":
            assert found == [[number for number in batch if number in GOOD] for batch in expected]
        else:
            assert [*map(len, found)] == [*map(len, expected)]
        whole.update(number for batch in found for number in batch)
    assert whole.keys() == GOOD
    if on_bad_sample == "skip":
        assert max(whole.values()) == 1


def test_what_replaces_is_the_same_in_any_world(make: Any) -> None:
    settings: dict[str, Any] = {"shuffle": True, "on_bad_sample": "replace"}
    wholes = []
    for ranks in (1, 2, 3):
        parts = [list(make(batch_size=60 // ranks, world=World(n, ranks, ranks), **settings)) for n in range(ranks)]
        size = 60 // ranks
        steps = range(SAMPLES // 60)
        wholes.append([int(s["id"]) for step in steps for part in parts for s in part[step * size : (step + 1) * size]])
    assert wholes[0] == wholes[1] == wholes[2]


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle_algo": "global", "shuffle": True},
        {"shuffle_algo": "py1e", "shuffle": True},
        {"shuffle_algo": "py2s", "shuffle": True},
        {"partition_algo": Contiguous()},
        {"partition_algo": HashBased(4, key="id")},
        {"partition_algo": RoundRobin(), "remainder": "uneven"},
        {"subset": HashSplit(0.1, 1.0)},
        {"epoch_size": 900},
    ],
    ids=repr,
)
def test_replacing_holds_in_any_order(data: Path, order: dict[str, Any]) -> None:
    plain = [
        StreamingDataset(data, columns=["id"], batch_size=8, world=World(rank, 2, 2), **order) for rank in range(2)
    ]
    wanted = [[int(sample["id"]) for sample in one] for one in plain]
    found = []
    for rank in range(2):
        dataset = StreamingDataset(data, on_bad_sample="replace", batch_size=8, world=World(rank, 2, 2), **order)
        found.append([int(sample["id"]) for sample in dataset])
        again = StreamingDataset(data, on_bad_sample="replace", batch_size=8, world=World(rank, 2, 2), **order)
        assert found[rank] == [int(number) for batch in again.batches() for number in batch["id"]]
    whole = {number for part in wanted for number in part}
    for one, other in zip(wanted, found, strict=True):
        assert all(b == a if a in GOOD else b in GOOD & whole for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
@pytest.mark.parametrize("transform", [None, raises_for_bad])
def test_an_order_that_is_read_shard_by_shard(data: Path, tmp_path: Path, on_bad_sample: str, transform: Any) -> None:
    def opened() -> StreamingDataset:
        return StreamingDataset(
            data.as_uri(),
            local=tmp_path / "cache",
            cache_limit=6000,
            shuffle=True,
            shuffle_algo="global",
            batch_size=16,
            transform=transform,
            on_bad_sample=on_bad_sample,  # type: ignore[arg-type]
        )

    dataset = opened()
    samples = [int(sample["id"]) for sample in dataset]
    batches = [int(number) for batch in opened().batches() for number in batch["id"]]
    assert samples == batches
    assert set(samples) == GOOD
    assert len(samples) == (len(GOOD) if on_bad_sample == "skip" else SAMPLES)
    assert dataset.stats().bad_samples == len(BAD)


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_a_run_resumes_after_any_sample(make: Any, on_bad_sample: str) -> None:
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 7, "on_bad_sample": on_bad_sample}
    whole = [int(sample["id"]) for sample in make(**settings)]
    for taken in random.Random(3).sample(range(len(whole)), 12):
        dataset = make(**settings)
        before = [int(sample["id"]) for sample in islice(dataset, taken)]
        again = make(**settings)
        again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        assert before + [int(sample["id"]) for sample in again] == whole


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
def test_a_loader_resumes_between_batches(make: Any, columnar: bool) -> None:
    if columnar and not make.columnar:
        pytest.skip("a subclass makes the samples")
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 20, "on_bad_sample": "skip"}
    with StreamingDataLoader(make(**settings), columnar=columnar) as loader:
        whole = ids_of(iter(loader))
    for taken in (1, 6, 30):
        first = StreamingDataLoader(make(**settings), columnar=columnar, num_workers=2)
        before = ids_of(islice(first, taken))
        state = first.state_dict()
        first.close()
        with StreamingDataLoader(make(**settings), columnar=columnar) as second:
            second.load_state_dict(state)
            assert before + ids_of(iter(second)) == whole


@pytest.mark.processes
def test_a_list_says_where_bad_samples_are(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = BadSamples("skip", file=tmp_path / "bad.jsonl")
    dataset = StreamingDataset(data, on_bad_sample=bad, batch_size=16)
    with StreamingDataLoader(dataset, num_workers=2, columnar=True) as loader:
        assert sum(map(len, ids_of(iter(loader)))) == len(GOOD)
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {line["sample"] for line in lines} == BAD
    assert len(lines) == len(BAD) == dataset.stats().bad_samples
    for line in lines:
        found = dataset.where(line["sample"])
        assert (found.url, found.shard, found.row) == (line["url"], line["shard"], line["row"])
        assert line["column"] == "doc"
        assert "(json) does not decode" in line["reason"]
    list(StreamingDataset(data, on_bad_sample="replace", batch_size=16))
    assert "replaced by another" in caplog.text
    assert "column 'doc'" in caplog.text


def test_a_full_disk_leaves_whole_lines_in_a_list(tmp_path: Path) -> None:
    """A line of which only a part can be written is taken back, and what others left without its end is ended."""
    listed = tmp_path / "bad.jsonl"
    log = BadSampleLog(BadSamples(file=listed), Counts())
    log.enter(3)
    log.note(0, SampleError("one", sample=0))
    whole = listed.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"bad\.jsonl.*only part of a line could be written: the disk is full"):
            log.note(1, SampleError("two", sample=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert listed.read_bytes() == whole
    log.note(2, SampleError("three", sample=2))
    assert [json.loads(line)["sample"] for line in listed.read_text().splitlines()] == [0, 2]
    listed.write_bytes(b"17")
    log.note(2, SampleError("three", sample=2))
    assert [line[:12] for line in listed.read_text().splitlines()] == ["17", '{"sample": 2']


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_a_list_and_the_log_tell_of_a_bad_sample_once(
    make: Any, on_bad_sample: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once an epoch, nor once a run, or a process that resumes."""
    file = tmp_path / "bad.jsonl"
    settings: dict[str, Any] = {
        "on_bad_sample": BadSamples(on_bad_sample, file=file),
        "batch_size": 16,
        "shuffle": True,
    }
    dataset = make(**settings)
    for epoch in range(3):
        list(dataset)
        lines = file.read_bytes().splitlines()
        assert sorted(json.loads(line)["sample"] for line in lines) == sorted(BAD)
        assert dataset.stats().bad_samples == (epoch + 1) * len(BAD)
        assert sum("bad sample, " in record.message for record in caplog.records) == len(BAD)
    list(make(**settings))
    assert file.read_bytes().splitlines() == lines
    file.write_bytes(b"\n".join(lines[:4]) + b"\n")  # somebody took lines out, and then all of them
    list(dataset)
    assert sorted(file.read_bytes().splitlines()) == sorted(lines)
    file.write_bytes(b"")
    list(dataset)
    assert sorted(file.read_bytes().splitlines()) == sorted(lines)


@pytest.mark.processes
def test_processes_that_list_the_same_samples_list_each_once(data: Path, tmp_path: Path) -> None:
    bad = BadSamples(file=tmp_path / "bad.jsonl")
    dataset = StreamingDataset(data, on_bad_sample=bad, batch_size=16, shuffle=True)
    with StreamingDataLoader(dataset, num_workers=2, columnar=True) as loader:
        for _ in range(2):
            list(loader)
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert sorted(line["sample"] for line in lines) == sorted(BAD)


def test_samples_at_one_place_of_several_datasets_are_listed_apart(tmp_path: Path) -> None:
    listed = tmp_path / "bad.jsonl"
    log = BadSampleLog(BadSamples(file=listed), Counts())
    log.enter(9)
    listed.write_text('{"sample": 3}\n3\n[1]\nnothing\n')
    errors = [
        SampleError("one", sample=3, url="a", row=3),
        SampleError("one", sample=3, url="b", row=3),
        SampleError("the same, of another column", sample=3, url="b", row=3, column="x"),
        SampleError("lies nowhere"),
        SampleError("lies nowhere, too"),
        SampleError("lies nowhere"),
    ]
    for number, error in enumerate(errors):
        log.note(number, error)
    found = [json.loads(line)["reason"] for line in listed.read_text().splitlines()[4:]]
    assert found == ["one", "one", "lies nowhere", "lies nowhere, too"]


def test_a_list_that_can_not_be_written_to_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"list of bad samples.*No such file or directory"):
        StreamingDataset(data, on_bad_sample=BadSamples(file=tmp_path / "missing" / "bad.jsonl"))
    full = BadSamples(file="/dev/full")
    with pytest.raises(ConfigError, match=r"/dev/full.*No space left"):
        list(StreamingDataset(data, on_bad_sample=full))


def test_limits_hold(data: Path) -> None:
    def read(**limits: Any) -> int:
        return len(list(StreamingDataset(data, on_bad_sample=BadSamples(**limits), batch_size=8)))

    assert read(max_bad=len(BAD), max_in_a_row=4) == len(GOOD)
    with pytest.raises(TooManyBadSamplesError, match=r"10 bad samples, and max_bad=9; the last: .*sample 699"):
        read(max_bad=9)
    with pytest.raises(TooManyBadSamplesError, match="4 bad samples in a row, and max_in_a_row=3") as caught:
        read(max_in_a_row=3)
    assert (caught.value.sample, caught.value.column) == (122, "doc")
    assert read(max_share=0.01) == len(GOOD)
    with pytest.raises(TooManyBadSamplesError, match=r"10 bad samples of 700 read, and max_share=0\.009"):
        read(max_share=0.009)
    for wrong in ({"max_bad": -1}, {"max_in_a_row": -1}, {"max_share": 1.5}, {"on_bad_sample": "ignore"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            BadSamples(**wrong)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("columnar", [False, True])
def test_a_share_is_of_all_samples_that_were_read(tmp_path: Path, columnar: bool, threads: int) -> None:
    """Good samples of earlier steps of reading count, too."""
    bad = range(8000, 9000, 50)
    folder = write_with_bad(tmp_path / "data", 9000, bad, size_limit=100_000)

    def read(max_share: float) -> int:
        settings = BadSamples(max_share=max_share)
        dataset = StreamingDataset(folder, on_bad_sample=settings, batch_size=8, read=ReadOptions(read_threads=threads))
        return sum(len(batch["id"]) for batch in dataset.batches()) if columnar else len(list(dataset))

    assert read(20 / 8000) == 9000 - len(bad)
    with pytest.raises(TooManyBadSamplesError, match=r"bad samples of (8\d\d\d|9000) read, and max_share"):
        read(17 / 9000)


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip", "replace"])
def test_an_epoch_without_bad_samples_leaves_nothing_to_the_collector(tmp_path: Path, on_bad_sample: Any) -> None:
    write_columns(tmp_path / "data", {"id": np.arange(300)})
    dataset = StreamingDataset(tmp_path / "data", on_bad_sample=on_bad_sample, batch_size=10, shuffle=True)
    assert sum(len(batch["id"]) for batch in dataset.batches()) == len(list(dataset)) == 300  # opens, and imports

    def readers() -> list[Any]:
        return [one for one in gc.get_objects() if issubclass(type(one), ChunkWork | RowReader)]

    gc.collect()
    gc.disable()
    try:
        before = readers()  # of iterations that other tests have not ended
        assert sum(len(batch["id"]) for batch in dataset.batches()) == len(list(dataset)) == 300
        left = [one for one in readers() if not any(one is known for known in before)]
        assert not left  # and so none of the epoch's order
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["skip", "replace"])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("function", ["plain", "filter"])
def test_a_limit_is_met_at_the_sample(data: Path, kind: Any, threads: int, function: str) -> None:
    """However many samples are read at once: those before it are delivered, and a state resumes at it."""

    def opened(max_bad: int) -> StreamingDataset:
        limit = BadSamples(kind, max_bad=max_bad)
        settings: dict[str, Any] = {"batch_size": 8, "read": ReadOptions(read_threads=threads)}
        dataset = StreamingDataset(data, on_bad_sample=limit, **settings)
        return dataset if function == "plain" else dataset.filter(lambda sample: sample["id"] % 3 != 1, name="some")

    whole = [int(sample["id"]) for sample in opened(len(BAD))]
    bad = sorted(BAD)
    for allowed in (0, 3, len(BAD) - 1):
        dataset, found = opened(allowed), list[int]()
        with pytest.raises(TooManyBadSamplesError) as caught:
            found.extend(int(sample["id"]) for sample in dataset)
        assert caught.value.sample == bad[allowed]
        assert found == whole[: len(found)]
        if kind == "skip":
            assert found == [number for number in whole if number < bad[allowed]]
        assert dataset.stats().bad_samples == allowed + 1
        again = opened(len(BAD))
        again.load_state_dict(dataset.state_dict())
        assert found + [int(sample["id"]) for sample in again] == whole


def test_a_whole_shard_that_is_damaged(tmp_path: Path) -> None:
    write_columns(tmp_path / "data", {"id": np.arange(300)}, size_limit=200)
    shards = sorted((tmp_path / "data").glob("*.mds"))
    damaged = bytearray(shards[3].read_bytes())
    damaged[-20] ^= 1
    shards[3].write_bytes(damaged)
    sizes = StreamingDataset(tmp_path / "data").shards
    first = sum(shard.samples for shard in sizes[:3])
    lost = set(range(first, first + sizes[3].samples))

    def opened(on_bad_sample: Any) -> StreamingDataset:
        remote = (tmp_path / "data").as_uri()
        cache = tmp_path / f"cache-{on_bad_sample}"
        return StreamingDataset(remote, local=cache, on_bad_sample=on_bad_sample, batch_size=10, shuffle=True)

    dataset = opened("skip")
    assert {int(number) for batch in dataset.batches() for number in batch["id"]} == set(range(300)) - lost
    assert dataset.stats().bad_samples == len(lost)
    assert dataset.stats().retries <= 3  # the shard was fetched again as often as any, not once for each sample
    assert set(range(300)) - lost == {int(sample["id"]) for sample in opened("skip")}
    assert sum(len(batch["id"]) for batch in opened("replace").batches()) == 300


def test_a_batch_of_bad_samples_alone_is_empty(data: Path) -> None:
    dataset = StreamingDataset(data, on_bad_sample="skip", batch_size=1)
    batches = list(dataset.batches())
    assert [len(batch["id"]) for batch in batches] == [int(number in GOOD) for number in range(SAMPLES)]
    assert np.asarray(batches[119]["id"]).dtype == np.asarray(batches[118]["id"]).dtype == np.int64
    assert isinstance(batches[119]["id"], np.ndarray)
    settings: dict[str, Any] = {"on_bad_sample": "skip", "batch_size": 1}
    with pytest.raises(TransformError, match="all 1 samples of a batch are bad"):
        list(StreamingDataLoader(StreamingDataset(data, **settings)))
    # A function of the user may know what to do.
    found = list(StreamingDataLoader(StreamingDataset(data, **settings), collate_fn=list))
    assert [len(batch) for batch in found] == [int(number in GOOD) for number in range(SAMPLES)]
    with pytest.raises(TransformError, match=r"makes a batch of an empty list \(IndexError"):
        list(StreamingDataLoader(StreamingDataset(data, **settings), collate_fn=lambda samples: samples[0]))


@pytest.mark.parametrize("layout", ["pad", "truncate"])
def test_documents_that_are_rows_are_left_out_of_their_batches(tmp_path: Path, layout: Any) -> None:
    write_samples(tmp_path, ({"doc": [number + 1] * (number % 5 + 1)} for number in range(40)), hashes=[])

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["doc"][0] in (3, *range(9, 13)):
            raise ValueError("a bad one")
        return sample

    def opened() -> LMStream:
        dataset = StreamingDataset(tmp_path, transform=fails, on_bad_sample="skip", batch_size=4)
        return LMStream(dataset, "doc", batch_size=4, seq_len=8, layout=layout, pad_id=0)

    stream = opened()
    found = [batch.input_ids[:, 0].tolist() for batch in stream]
    assert found == [[n for n in range(4 * k + 1, 4 * k + 5) if n not in (3, *range(9, 13))] for k in range(10)]
    assert found[2] == []
    assert len(stream) == len(found)
    for taken in (1, 2, 3, 7):
        first, second = opened(), opened()
        before = [batch.input_ids[:, 0].tolist() for batch in islice(first, taken)]
        second.load_state_dict(first.state_dict())
        assert before + [batch.input_ids[:, 0].tolist() for batch in second] == found


@pytest.mark.processes
def test_where_batches_are_made_elsewhere_samples_are_replaced_not_left_out(data: Path) -> None:
    dataset = StreamingDataset(data, on_bad_sample="skip", batch_size=8)
    assert len(list(DataLoader(dataset, batch_size=None))) == len(GOOD)
    with pytest.raises(ConfigError, match="use 'replace'"):
        all_of(DataLoader(dataset, batch_size=None, num_workers=2))
    with pytest.raises(ConfigError, match="use 'replace'"):
        list(StreamingDataset(data, on_bad_sample="skip", batch_size=8, world=World(0, 2, 2)))
    with pytest.raises(ConfigError, match="remainder='drop'"):
        StreamingDataLoader(dataset, columnar=True, drop_last=True)

    class Iterating(StreamingDataset):
        def __iter__(self) -> Iterator[Any]:
            return super().__iter__()

    with pytest.raises(ConfigError, match=r"Iterating\.__iter__"):
        StreamingDataLoader(Iterating(data, on_bad_sample="skip", batch_size=8))
    replacing = StreamingDataset(data, on_bad_sample="replace", batch_size=8)
    assert len(list(DataLoader(replacing, batch_size=None, num_workers=2))) == SAMPLES


def test_the_environment_overrides(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ON_BAD_SAMPLE", "raise")
    with pytest.raises(DecodeError):
        list(StreamingDataset(data, on_bad_sample="skip"))
    monkeypatch.setenv("STOKER_ON_BAD_SAMPLE", "skip")
    assert len(list(StreamingDataset(data))) == len(GOOD)
    monkeypatch.setenv("STOKER_ON_BAD_SAMPLE", "forget")
    with pytest.raises(ConfigError, match=r"STOKER_ON_BAD_SAMPLE must be .*forget"):
        StreamingDataset(data)


def test_what_is_not_the_sample_s_fault_is_an_error(data: Path) -> None:
    def fails(sample: Any) -> Any:
        raise MemoryError

    def exits(sample: Any) -> Any:
        raise KeyboardInterrupt

    for threads in (0, 2):
        read = ReadOptions(read_threads=threads)
        with pytest.raises(TransformError, match="MemoryError"):
            list(StreamingDataset(data, columns=["id"], transform=fails, on_bad_sample="skip", read=read))
        with pytest.raises(KeyboardInterrupt):
            list(StreamingDataset(data, columns=["id"], transform=exits, on_bad_sample="skip", read=read))


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'cv3'"),
        OSError(errno.ENOSPC, "No space left on device"),
        StorageTimeoutError("the store does not answer"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("threads", [0, 2])
def test_what_a_function_meets_of_the_machine_is_an_error(data: Path, threads: int, error: Exception) -> None:
    def fails(sample: Any) -> Any:
        if int(sample["id"]) == 50:
            raise error
        return sample

    class Overriding(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return fails(super().__getitem__(index))

    settings: dict[str, Any] = {"columns": ["id"], "batch_size": 8, "read": ReadOptions(read_threads=threads)}
    for on_bad_sample in ("skip", "replace"):
        with pytest.raises(TransformError, match=str(error.args[-1])):
            list(StreamingDataset(data, transform=fails, on_bad_sample=on_bad_sample, **settings))
        with pytest.raises(TransformError, match=str(error.args[-1])):
            list(StreamingDataset(data, transform=fails, on_bad_sample=on_bad_sample, **settings).batches())
        with pytest.raises((type(error), TransformError), match=str(error.args[-1])):
            list(Overriding(data, on_bad_sample=on_bad_sample, **settings))


@pytest.mark.parametrize("on_bad_sample", ["skip", "replace"])
def test_a_subclass_s_method_runs_in_the_consumer_s_thread(data: Path, on_bad_sample: str) -> None:
    ran: set[int] = set()

    class Overriding(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            ran.add(threading.get_ident())
            return raises_for_bad(super().__getitem__(index))

    settings: dict[str, Any] = {"columns": ["id"], "batch_size": 8, "transform": dict}
    read = ReadOptions(read_threads=4)
    dataset = Overriding(data, on_bad_sample=on_bad_sample, read=read, **settings)  # type: ignore[arg-type]
    assert {int(sample["id"]) for sample in dataset} == GOOD
    assert ran == {threading.get_ident()}
    assert dataset.stats().bad_samples == len(BAD)


def test_a_transform_is_called_once_for_each_sample(data: Path) -> None:
    called: Counter[int] = Counter()

    def counting(sample: dict[str, Any]) -> dict[str, Any]:
        called[int(sample["id"])] += 1
        return sample

    dataset = StreamingDataset(data, transform=counting, on_bad_sample="skip", batch_size=16, shuffle=True)
    for _ in dataset.batches():
        pass
    assert called == Counter(GOOD)


@pytest.mark.parametrize("threads", [0, 2])
def test_samples_that_a_resume_passes_over_are_not_counted_again(make: Any, tmp_path: Path, threads: int) -> None:
    settings: dict[str, Any] = {"batch_size": 9, "read": ReadOptions(read_threads=threads)}
    for kind, length in (("skip", len(GOOD)), ("replace", SAMPLES)):
        plain = [int(sample["id"]) for sample in make(on_bad_sample=kind, **settings)]
        assert len(plain) == length
        # In the middle of batches that begin with bad ones, that end with some, and that have them on both sides.
        for taken in (1, 4, 6, 7, 115, 117, 118, 119, 123, 290, 295):
            dataset = make(on_bad_sample=kind, **settings)
            before = [int(sample["id"]) for sample in islice(dataset, taken)]
            state = dataset.state_dict()
            file = tmp_path / f"{kind}-{taken}.jsonl"
            listing = BadSamples(kind, file=file, max_bad=len(BAD))  # type: ignore[arg-type]
            again = make(on_bad_sample=listing, **settings)
            again.load_state_dict(state)
            assert before + [int(sample["id"]) for sample in again] == plain
            reached = SAMPLES - len([number for number in range(SAMPLES) if number > before[-1]])
            if kind == "skip":  # the last that was taken has told where it lies
                left = sorted(number for number in BAD if number >= reached)
                assert [json.loads(line)["sample"] for line in file.read_text().splitlines()] == left
                assert again.stats().bad_samples == len(left)


def test_datasets_that_are_made_of_each_other_have_limits_of_their_own(data: Path) -> None:
    limit = BadSamples(max_bad=len(BAD))
    dataset = StreamingDataset(data, on_bad_sample=limit)
    derived = [dataset.map(dict, name) for name in ("a", "b")]
    for one in (dataset, *derived):
        assert len(list(one)) == len(GOOD)
        with pytest.raises(TooManyBadSamplesError, match="11 bad samples, and max_bad=10"):
            list(one)


def test_the_error_of_a_subclass_s_method_is_named_so(data: Path) -> None:
    class Overriding(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return raises_for_bad(super().__getitem__(index))

    for threads in (0, 2):
        limit = BadSamples(max_in_a_row=2)
        dataset = Overriding(data, columns=["id"], on_bad_sample=limit, read=ReadOptions(read_threads=threads))
        told = r"__getitem__\(\) of the subclass raised ValueError: a bad one"
        with pytest.raises(TooManyBadSamplesError, match=told) as caught:
            list(dataset)
        assert isinstance(caught.value.__cause__, TransformError)
        assert isinstance(caught.value.__cause__.__cause__, ValueError)
        assert (caught.value.sample, caught.value.column) == (121, None)
    with pytest.raises(TooManyBadSamplesError, match="column 'doc'") as caught:  # what the method does not reach
        list(Overriding(data, on_bad_sample=BadSamples(max_bad=0)))
    assert isinstance(caught.value.__cause__, DecodeError)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """300 samples in shards of the local directory that they are read from."""
    with MDSWriter({"id": "int", "text": "str"}, tmp_path / "data", size_limit=500, hashes=["xxh64"]) as writer:
        for number in range(300):
            writer.write({"id": number, "text": "x" * (number % 5)})
    return tmp_path / "data"


@pytest.mark.parametrize("left", [0, 3, 60, -9, -1])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_local_shard_that_was_cut_loses_the_samples_after_its_end(shards: Path, left: int, threads: int) -> None:
    path = sorted(shards.glob("*.mds"))[2]
    whole = path.read_bytes()
    path.write_bytes(whole[:left] if left else b"")
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "read": ReadOptions(read_threads=threads)}
    with pytest.raises(CorruptDataError, match=rf"shard.00002.mds has {len(whole[:left]) if left else 0} bytes"):
        list(StreamingDataset(shards, **settings))
    dataset = StreamingDataset(shards, on_bad_sample="skip", **settings)
    sizes = [shard.samples for shard in dataset.shards]
    first, end = sum(sizes[:2]), sum(sizes[:3])
    offsets = np.frombuffer(whole, "<u4", sizes[2] + 1, 4)
    size = path.stat().st_size
    kept = int((offsets[1:] <= size).sum()) if size > offsets[0] else 0
    lost = set(range(first + kept, end))
    file = shards.parent / "bad.jsonl"
    listing = BadSamples(file=file)
    for read in ("samples", "batches", "one"):
        dataset = StreamingDataset(shards, on_bad_sample=listing, **settings)
        if read == "samples":
            found = [(int(sample["id"]), sample["text"]) for sample in dataset]
        elif read == "batches":
            found = [
                pair
                for batch in dataset.batches()
                for pair in zip(np.asarray(batch["id"]).tolist(), batch["text"], strict=True)
            ]
        else:
            found = [(int(one["id"]), one["text"]) for one in (dataset[n] for n in range(300) if n not in lost)]
            for number in lost:
                with pytest.raises(CorruptDataError, match=r"00002\.mds"):
                    dataset[number]
        assert sorted(found) == [(number, "x" * (number % 5)) for number in range(300) if number not in lost]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["sample"] for line in lines) == sorted(lost)
    assert all(line["url"] == str(path) and line["shard"] == 2 for line in lines)
    assert {line["row"] for line in lines} == set(range(kept, sizes[2]))
    assert all(
        f"{size} of {len(whole)} bytes" in line["reason"] or f": {size} bytes" in line["reason"] for line in lines
    )


@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("form", ["arrow", "tar", "tfrecord", "json"])
def test_no_sample_of_a_shard_that_is_fetched_is_a_bad_one(tmp_path: Path, form: Any, columnar: bool) -> None:
    # Before it is fetched it is not here, as a local file that was cut is not; once it is, it is whole.
    with open_writer(form, {"id": "int"}, str(tmp_path / "data"), size_limit=1000) as out:
        for number in range(200):
            out.write({"id": number})
    for where in ("fetched", "here"):
        dataset = StreamingDataset(
            remote=(tmp_path / "data").as_uri(),
            local=tmp_path / "cache",
            batch_size=10,
            on_bad_sample=BadSamples(max_bad=0),
        )
        items = chain.from_iterable(ids_of(dataset.batches())) if columnar else (int(one["id"]) for one in dataset)
        assert list(items) == list(range(200)), where


def test_a_shard_that_is_missing_or_was_cut_after_opening_is_an_error(shards: Path) -> None:
    path = sorted(shards.glob("*.mds"))[2]
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"shard.00002.mds is missing"):
        list(StreamingDataset(shards, on_bad_sample="skip"))
    path.write_bytes(content)
    dataset = StreamingDataset(shards, on_bad_sample="skip")
    path.write_bytes(content[:-5])
    with pytest.raises(DatasetChangedError):
        list(dataset)


def test_a_flipped_byte_shows_where_hashes_are_validated(shards: Path) -> None:
    path = sorted(shards.glob("*.mds"))[2]
    content = bytearray(path.read_bytes())
    begin = int(np.frombuffer(content, "<u4", 1, 4)[0])
    content[begin + 4] ^= 1  # the first sample's number
    path.write_bytes(content)
    dataset = StreamingDataset(shards, on_bad_sample="skip")
    first, size = sum(shard.samples for shard in dataset.shards[:2]), dataset.shards[2].samples
    unseen = [int(sample["id"]) for sample in dataset]
    assert len(unseen) == 300
    assert unseen[first] == first ^ 1
    settings: dict[str, Any] = {"validate_hash": "xxh64", "batch_size": 8, "shuffle": True}
    lost = set(range(first, first + size))
    for read in (iter, lambda one: (sample for batch in one.batches() for sample in np.atleast_1d(batch["id"]))):
        dataset = StreamingDataset(shards, on_bad_sample=BadSamples(max_bad=size), **settings)
        found = [int(one["id"]) if isinstance(one, dict) else int(one) for one in read(dataset)]
        assert sorted(found) == [number for number in range(300) if number not in lost]
        assert dataset.stats().bad_samples == size
    with pytest.raises(TooManyBadSamplesError, match=f"max_bad={size - 1}"):
        list(StreamingDataset(shards, on_bad_sample=BadSamples(max_bad=size - 1), **settings))
    replaced = [int(one["id"]) for one in StreamingDataset(shards, on_bad_sample="replace", **settings)]
    assert len(replaced) == 300
    assert set(replaced) == set(range(300)) - lost


@pytest.mark.parametrize(("writer", "limit"), [(JSONWriter, 4000), (CSVWriter, 1200)])
def test_a_cut_shard_of_lines_loses_the_lines_after_its_end(tmp_path: Path, writer: Any, limit: int) -> None:
    with writer({"id": "int", "text": "str"}, tmp_path, size_limit=limit) as out:
        for number in range(300):
            out.write({"id": number, "text": "x" * (number % 5)})
    path = min(path for path in tmp_path.iterdir() if ".00001." in path.name and "meta" not in path.name)
    lines = path.read_bytes().splitlines(keepends=True)
    samples = StreamingDataset(tmp_path).shards
    first = samples[0].samples
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:-1])  # all but its newline
    kept = set(range(300)) - set(range(first + samples[1].samples - 3, first + samples[1].samples))
    assert len(lines) > 70  # more are read together than one by one
    for shuffle in (False, True):
        dataset = StreamingDataset(tmp_path, on_bad_sample="skip", batch_size=100, shuffle=shuffle)
        found = [
            pair
            for batch in dataset.batches()
            for pair in zip(np.asarray(batch["id"]).tolist(), batch["text"], strict=True)
        ]
        assert dict(found) == {number: "x" * (number % 5) for number in kept}
        assert dataset.stats().bad_samples == 3
        assert {int(sample["id"]) for sample in dataset} == kept
