"""Work that is cut into tasks of a Ray cluster gives what it gives on one machine, also when workers are killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from ray_start import start_ray
from stoker import MDSWriter
from stoker.cli import main
from stoker.concurrency.ray_tasks import on_ray
from stoker.conversion import convert
from stoker.errors import ConfigError, TransformError
from stoker.inspection import verify
from stoker.tokens.tokenize.tokenize import tokenize
from stoker_bench.generation import DatasetSpec, generate


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of two processors on this machine."""
    start_ray(num_cpus=2)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can not import it
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """40 samples in 8 shards."""
    with MDSWriter({"id": "int", "x": "ndarray:uint8:100"}, tmp_path / "data", size_limit=None) as writer:
        for first in range(0, 40, 5):
            writer.write_batch({"id": np.arange(first, first + 5), "x": np.full((5, 100), first, np.uint8)})
            writer.flush_shard()
    return tmp_path / "data"


def contents(folder: Path) -> dict[str, bytes]:
    """Name to bytes of all files, without records of the work."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def kill_twice(markers: str) -> None:
    """End this worker as the out-of-memory killer would, in the first two calls."""
    for number in range(2):
        try:
            os.close(os.open(f"{markers}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


class Doubled:
    """A transform whose workers are killed twice."""

    def __init__(self, markers: str) -> None:
        self.markers = markers
        self.caller = os.getpid()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != self.caller:
            kill_twice(self.markers)
        if sample["id"] == 1000:
            raise ValueError("one thousand")
        return {**sample, "id": 2 * sample["id"]}


def test_convert_loses_nothing_when_two_workers_are_killed(data: Path, tmp_path: Path) -> None:
    transform = Doubled(str(tmp_path / "marker"))
    settings: dict[str, Any] = {"transform": transform, "shard_samples": 4}
    convert(data, tmp_path / "here", processes=1, **settings)
    done = convert(data, tmp_path / "there", engine="ray", **settings)
    assert done.samples == 40
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert (tmp_path / "marker-1").exists()


def test_an_error_of_a_task_is_raised(tmp_path: Path) -> None:
    with MDSWriter({"id": "int"}, tmp_path / "data") as writer:
        for number in [*range(100), 1000]:
            writer.write({"id": number})
    (tmp_path / "marker-0").touch()
    (tmp_path / "marker-1").touch()
    settings: dict[str, Any] = {"transform": Doubled(str(tmp_path / "marker")), "shard_samples": 20, "engine": "ray"}
    with pytest.raises(TransformError, match=r"sample 100 .*one thousand"):
        convert(tmp_path / "data", tmp_path / "out", **settings)


def slow(seconds: float, number: int) -> int:
    """Take some milliseconds."""
    time.sleep(seconds)
    return number


def test_work_that_is_given_up_again_and_again_does_not_end_this_process() -> None:
    """As tasks begin and end in the same moments: ray.cancel() ended it within some fifty rounds."""
    for round_ in range(100):
        with contextlib.closing(on_ray(slow, 0.0005 * (round_ % 40), range(100), None)) as running:
            assert len(list(itertools.islice(running, 1 + round_ % 7))) == 1 + round_ % 7
    assert list(on_ray(slow, 0.0, range(3), None, in_order=True)) == [(0, 0), (1, 1), (2, 2)]


def marked(markers: str, number: int) -> None:
    """Leave a mark; all but the first take seconds."""
    time.sleep(2 * (number > 0))
    Path(f"{markers}-{number}").touch()


def test_work_that_is_given_up_leaves_out_what_has_not_begun(tmp_path: Path) -> None:
    with contextlib.closing(on_ray(marked, str(tmp_path / "mark"), range(100), None)) as running:
        assert next(running) == (0, None)
    done = len(list(tmp_path.iterdir()))  # those that ran at the end have ended, too
    assert 2 <= done <= 5, "of eight that Ray had been given, two ran"
    time.sleep(3)
    assert len(list(tmp_path.iterdir())) == done


def test_generate_makes_the_same_files(tmp_path: Path) -> None:
    spec = DatasetSpec(format="mds", files=30, samples_per_file=8, record_bytes=1000)
    here, there = tmp_path / "here", tmp_path / "there"
    generate(spec, here)
    (there / "train").mkdir(parents=True)
    done = generate(spec, there, engine="ray")
    assert (done.made, done.complete) == (30, True)
    assert contents(here) == contents(there)


def test_tokenize_writes_the_same_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["?", "one", "two", "three"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = tmp_path / "texts.jsonl"
    with texts.open("w") as lines:
        for number in range(4000):  # several blocks
            lines.write(json.dumps({"text": "one two three " * (number % 100)}) + "\n")
    for engine in ("local", "ray"):
        tokenize(texts, tmp_path / engine, tmp_path / "tokenizer.json", engine=engine, processes=3)
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")


def test_verify_finds_what_is_broken(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = sorted(data.glob("*.mds"))[3]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    here, there = (verify(data, deep=True, engine=engine) for engine in ("local", "ray"))
    assert there.problems == here.problems
    assert [problem.shard for problem in there.problems] == [3]
    assert (there.shards, there.samples, there.bytes) == (here.shards, here.samples, here.bytes)
    assert main(["verify", str(data), "--engine", "ray", "--json"]) == 3
    assert [problem["shard"] for problem in json.loads(capsys.readouterr().out)["problems"]] == [3]
    (data / "index.json").unlink()
    with pytest.raises(ConfigError, match="a cache is of one node"):
        verify(data, local=data, engine="ray")


def test_verify_checks_files_without_an_index(tmp_path: Path) -> None:
    for number in range(6):
        np.savez(tmp_path / f"{number}.npz", x=np.arange(100 * number + 1))
    (tmp_path / "3.npz").write_bytes((tmp_path / "3.npz").read_bytes()[:-5])
    here, there = (verify(tmp_path, engine=engine, threads=2) for engine in ("local", "ray"))
    assert there.problems == here.problems != ()
    assert (there.samples, there.shards) == (here.samples, here.shards) == (1205, 5)


def test_a_transform_that_can_not_be_sent_is_refused(data: Path, tmp_path: Path) -> None:
    lock = threading.Lock()

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return sample

    with pytest.raises(ConfigError, match="can not be sent to the cluster"):
        convert(data, tmp_path / "out", engine="ray", transform=transform)
