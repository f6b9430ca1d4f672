"""A state is refused where its data was written anew in place with the same names, counts and sizes."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3server import Bucket
from stoker import (
    LMStream,
    ShardConfig,
    Stream,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.coordination import CoordinationSettings
from stoker.errors import ConfigError, StateError
from stoker.loaders.shard_loader import Adaptive
from stoker.tokens import MegatronWriter, Ragged
from stoker.tokens.sources.source import MegatronSource, RawSource
from support import write_samples

COUNT: Final = 64
ANEW: Final = r"stream 'data' at .*data: its files were rewritten since this (state|checkpoint) was taken"
_engines = count()
_times = count(1)


def write_mds(root: Path, first: int, **options: Any) -> None:
    shutil.rmtree(root, ignore_errors=True)
    samples = ({"x": number, "tokens": np.full(5, number, np.int32)} for number in range(first, first + COUNT))
    write_samples(root, samples, {"x": "int", "tokens": "ndarray:int32"}, size_limit="1kb", **{"hashes": (), **options})


def write_parquet(root: Path, first: int) -> None:
    root.mkdir(exist_ok=True)
    values = np.arange(first, first + COUNT)
    tokens = [[int(value)] * 5 for value in values]
    table = pa.table({"x": values, "input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    pq.write_table(table, root / "a.parquet", compression="none", use_dictionary=False, row_group_size=16)


def write_jsonl(root: Path, first: int) -> None:
    root.mkdir(exist_ok=True)
    (root / "a.jsonl").write_text("".join(f'{{"x": {number}}}\n' for number in range(first, first + COUNT)))


def write_npy(root: Path, first: int) -> None:
    root.mkdir(exist_ok=True)
    np.save(root / "a.npy", np.arange(first, first + COUNT))


WRITERS: Final[dict[str, tuple[Callable[..., None], str | None]]] = {
    "mds": (write_mds, None),
    "headers": (write_mds, "mds"),
    "parquet": (write_parquet, "parquet"),
    "jsonl": (write_jsonl, "jsonl"),
    "npy": (write_npy, "npy"),
}


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    """A format of data without hashes."""
    return str(request.param)


def write(kind: str, root: Path, first: int) -> None:
    """Data whose files were written at a time that no other data was."""
    WRITERS[kind][0](root, first)
    if kind == "headers":
        (root / "index.json").unlink()
    touch(root)


def touch(root: Path) -> None:
    """Give all files a time that none had before; file systems' own clocks may stand still between two writes."""
    moment = 1_700_000_000 + next(_times)
    for path in root.rglob("*"):
        if path.is_file() and ".stoker" not in path.parts:
            os.utime(path, (moment, moment))


def opened(kind: str, source: Path | str, **options: Any) -> StreamingDataset:
    return StreamingDataset(
        remote=str(source), format=WRITERS[kind][1], **{"batch_size": 4, "shuffle": True, "shuffle_seed": 3, **options}
    )


def taken(dataset: StreamingDataset, samples: int = 16) -> dict[str, Any]:
    """A state, as a file would have it."""
    state: dict[str, Any] = json.loads(json.dumps(dataset.state_dict(samples)))
    return state


@pytest.mark.parametrize("algo", ["block", "py1e"])
def test_a_dataset_that_was_rewritten_is_refused_and_a_copy_is_not(tmp_path: Path, kind: str, algo: str) -> None:
    data = tmp_path / "data"
    write(kind, data, 100)
    state = taken(opened(kind, data, shuffle_algo=algo))
    opened(kind, data, shuffle_algo=algo).load_state_dict(state)
    assert len(state["streams"]["data"]["versions"]) == 1
    assert len(json.dumps(state["streams"])) < 300
    shutil.copytree(data, tmp_path / "there" / "data", copy_function=shutil.copyfile)
    touch(tmp_path / "there")
    opened(kind, tmp_path / "there" / "data", shuffle_algo=algo).load_state_dict(state)
    write(kind, data, 500)
    for dataset in (
        opened(kind, data, shuffle_algo=algo),
        opened(kind, data, shuffle_algo=algo, local=str(tmp_path / "c")),
    ):
        with pytest.raises(StateError, match=ANEW) as refused:
            dataset.load_state_dict(state)
        assert str(refused.value).endswith("remove state['streams']['data']['versions']")
    older = copy.deepcopy(state)
    del older["streams"]["data"]["versions"]
    opened(kind, data, shuffle_algo=algo).load_state_dict(older)


def test_objects_that_were_rewritten_are_refused(tmp_path: Path, kind: str, bucket: Bucket) -> None:
    client, options = bucket.server.client(), {"storage_options": bucket.storage_options}

    def upload(first: int, folder: str = "data") -> None:
        write(kind, tmp_path / "data", first)
        for path in (tmp_path / "data").iterdir():
            if path.is_file():
                # An object store keeps times in seconds: what is uploaded in one differs by its ETag.
                client.upload_file(str(path), bucket.name, f"{folder}/{path.name}")

    upload(100)
    upload(100, "copy")
    state = taken(opened(kind, f"{bucket.url}/data", **options))
    opened(kind, f"{bucket.url}/data", local=str(tmp_path / "cache"), **options).load_state_dict(state)
    opened(kind, f"{bucket.url}/copy", **options).load_state_dict(state)
    if kind == "mds":
        wait_a_second(client, bucket, "data/index.json")
    upload(500)
    with pytest.raises(StateError, match=ANEW):
        opened(kind, f"{bucket.url}/data", **options).load_state_dict(state)


def wait_a_second(client: Any, bucket: Bucket, key: str) -> None:
    """Until an object that is written now has another time than this one: of an index, nothing else may differ."""
    before = client.head_object(Bucket=bucket.name, Key=key)["LastModified"]
    while True:
        client.put_object(Bucket=bucket.name, Key="clock", Body=b"")
        if client.head_object(Bucket=bucket.name, Key="clock")["LastModified"] > before:
            return


def test_touching_files_whose_index_has_hashes_is_harmless_and_other_hashes_are_not(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", 100, hashes=("xxh64",))
    state = taken(opened("mds", tmp_path / "data"))
    assert "versions" not in state["streams"]["data"]
    touch(tmp_path / "data")
    opened("mds", tmp_path / "data").load_state_dict(state)
    write_mds(tmp_path / "data", 500, hashes=("xxh64",))
    with pytest.raises(StateError, match="other hashes"):
        opened("mds", tmp_path / "data").load_state_dict(state)


def test_a_stream_that_was_rewritten_starts_again_with_change_streams(tmp_path: Path, kind: str) -> None:
    for name in ("data", "other"):
        write(kind, tmp_path / name, 100)

    def both() -> StreamingDataset:
        streams = [Stream(str(tmp_path / name), format=WRITERS[kind][1]) for name in ("data", "other")]
        return StreamingDataset(streams=streams, batch_size=4, shuffle=True, shuffle_seed=3)

    state = taken(both())
    write(kind, tmp_path / "data", 500)
    with pytest.raises(StateError, match=ANEW):
        both().load_state_dict(state)
    changed = both()
    changed.load_state_dict(state, change_streams=True)
    after = changed.state_dict()
    assert (after["epoch"], after["position"]) == (0, state["position"])
    (away,) = after["origin"]["away"]
    assert away["name"] == "data"
    assert {**after["origin"]["consumed"]} == {"other": state["position"] - away["consumed"]}


def test_the_dataloader_and_the_stream_of_rows_refuse_what_the_dataset_refuses(tmp_path: Path) -> None:
    write("parquet", tmp_path / "data", 100)

    def dataset() -> StreamingDataset:
        return opened("parquet", tmp_path / "data")

    def rows() -> LMStream:
        return LMStream(dataset(), "input_ids", batch_size=2, seq_len=8)

    def loaders() -> tuple[StreamingDataLoader | LMStream, ...]:
        return StreamingDataLoader(opened("parquet", tmp_path / "data", columns=["x"])), rows()

    states = []
    for loader in loaders():
        next(iter(loader))
        states.append(json.loads(json.dumps(loader.state_dict())))
    write("parquet", tmp_path / "data", 500)
    for loader, state in zip(loaders(), states, strict=True):
        with pytest.raises(StateError, match=ANEW):
            loader.load_state_dict(state)


@pytest.mark.parametrize("source", ["parquet", "megatron", "raw"])
def test_token_files_that_were_rewritten_are_refused(tmp_path: Path, source: str) -> None:
    data = tmp_path / "data"

    def make(first: int) -> None:
        if source == "parquet":
            write("parquet", data, first)
            return
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        tokens = np.arange(first, first + COUNT, dtype=np.uint16)
        if source == "megatron":
            with MegatronWriter(data / "t", "uint16") as out:
                out.write(Ragged(tokens, np.arange(0, COUNT + 1, 4, dtype=np.int64)))
        else:
            (data / "t.bin").write_bytes(tokens.tobytes())
        touch(data)

    def loader() -> StreamingParquetLoader:
        files: Any = data
        if source == "megatron":
            files = MegatronSource(data)
        elif source == "raw":
            files = RawSource(data, "uint16", row_tokens=8)
        return StreamingParquetLoader(files, ShardConfig.single(), seq_len=8, batch_size=2)

    make(100)
    before = loader()
    next(iter(before))
    state = json.loads(json.dumps(before.state_dict()))
    loader().load_state_dict(state)
    make(500)
    with pytest.raises(StateError, match="rewritten since this state was taken"):
        loader().load_state_dict(state)


QUICK: Final = CoordinationSettings(lease=2.0, heartbeat=0.25, split=0.05, attempts=3, grid=16)


@pytest.fixture
def engine() -> str:
    """An engine of one test, in memory."""
    return f"memory://rewritten{next(_engines)}"


@pytest.mark.parametrize("config", [{"batch_size": 4}, {"global_batch_size": 8}], ids=["lockstep", "planned"])
def test_checkpoints_of_shard_loaders(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    def loader(data: str = "data") -> StreamingShardLoader:
        return StreamingShardLoader(opened(kind, tmp_path / data), StreamingConfig(1, 0, **config))

    write(kind, tmp_path / "data", 100)
    with loader() as first:
        first.next()
        checkpoint = first.get_checkpoint()
    shutil.copytree(tmp_path / "data", tmp_path / "there" / "data")
    touch(tmp_path / "there")
    loader("there/data").restore_from_checkpoint(checkpoint)
    write(kind, tmp_path / "data", 500)
    with pytest.raises(StateError, match=ANEW + r".*remove checkpoint.state\['streams'\]\['data'\]\['versions'\]"):
        loader().restore_from_checkpoint(checkpoint)
    del checkpoint.state["streams"]["data"]["versions"]
    loader().restore_from_checkpoint(checkpoint)


def test_coordinated_runs_their_checkpoints_and_their_records(tmp_path: Path, kind: str, engine: str) -> None:
    def loader(rank: int = 0, world: int = 2, data: str = "data", engine: str = engine) -> StreamingShardLoader:
        config = StreamingConfig(
            world, rank, Adaptive(), coordinator=engine, coordination=QUICK, batch_size=4, patience=10.0
        )
        return StreamingShardLoader(opened(kind, tmp_path / data), config)

    write(kind, tmp_path / "data", 100)
    shutil.copytree(tmp_path / "data", tmp_path / "there" / "data")
    touch(tmp_path / "there")
    with loader(0, 1, engine=f"{engine}record") as whole:
        list(whole)
        record = whole.assignment()
    with loader() as first:
        first.next()
        checkpoint = first.get_checkpoint()
        with loader(1, data="there/data") as second:
            second.next()
        write(kind, tmp_path / "data", 500)
        with (
            loader(1) as third,
            pytest.raises(ConfigError, match="files of stream 'data' were rewritten since the run"),
        ):
            third.next()
    with loader(engine=f"{engine}anew") as again, pytest.raises(StateError, match=ANEW):
        again.restore_from_checkpoint(checkpoint)

    def replay(data: str) -> StreamingShardLoader:
        config = StreamingConfig(1, 0, Adaptive(replay=record), batch_size=4)
        return StreamingShardLoader(opened(kind, tmp_path / data), config)

    with replay("there/data") as same:
        same.next()
        replayed = same.get_checkpoint()
    replay("there/data").restore_from_checkpoint(replayed)
    with pytest.raises(StateError, match=r"'data' at .*rewritten since this assignment.*assignment\['identity'\]"):
        replay("data")
    touch(tmp_path / "there")
    with pytest.raises(StateError, match="rewritten since this checkpoint"):
        replay("there/data").restore_from_checkpoint(replayed)
