"""What went wrong in another benchmark, DLIO with MLPerf Storage, by its own history of changes; and what keeps it from here.

``LESSONS`` has all of it. A test of each would fail if stoker had the same fault; those that had no other place are below.
"""

from __future__ import annotations

import ast
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_threads import run_in_threads

import stoker_bench.generation
from patience import PATIENCE
from s3server import Bucket
from stoker.cluster import World
from stoker.errors import StokerError, StorageTimeoutError
from stoker.storage import open_store
from stoker_bench.loaders import get_loader
from stoker_bench.loaders.base import LoaderJob
from stoker_bench.measure import generation
from stoker_bench.measure.generation import await_listing, make_data
from stoker_bench.ranks.world import read_threads
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage, Workload

HERE = "bench/test_bench_lessons.py"
RUN, FORMATS, FAULTS = "bench/test_bench_run.py", "bench/test_bench_formats.py", "bench/test_bench_faults.py"
PEERS, RANKS, STEPS = "bench/test_bench_peers.py", "bench/test_bench_ranks.py", "bench/test_bench_steps.py"
COUNTS = "bench/test_bench_counts.py"
WORKLOAD, DLIO = "bench/test_bench_workload.py", "bench/test_bench_dlio.py"
CHECKPOINT, SAVING = "bench/test_bench_checkpoint.py", "bench/test_bench_checkpoint_runs.py"
JOB = "generation/test_generate_job.py"
CONTENT, KINDS = "generation/test_generated_content.py", "generation/test_generated_formats.py"
STORE, FORK = "../src/stoker/testing/stores.py", "storage/fork_proxy/test_fork.py"

LESSONS: dict[str, tuple[str, ...]] = {
    # -- what is measured
    "a loop that ended too early never closed its block: all numbers of training were 0, and the run a success": (
        f"{RUN}::test_an_epoch_too_short_to_measure_is_no_success",
        f"{STEPS}::test_an_epoch_that_ends_early_still_has_its_numbers",
        f"{STEPS}::test_a_loader_that_fails_leaves_what_was_measured_until_then",
    ),
    "means of nothing warned, and pinned memory was asked for on hosts without an accelerator": (
        f"{HERE}::test_a_run_has_no_warnings_even_where_it_measured_nothing",
    ),
    "data was decoded, thrown away, and a constant handed over": (
        f"{HERE}::test_without_decoding_nothing_is_decoded",
        f"{HERE}::test_what_is_handed_over_is_what_was_read",
        f"{RUN}::test_bytes_alone_are_the_files_bytes_and_labelled",
        f"{DLIO}::test_columns_that_are_not_to_be_read_are_not_read",
    ),
    "readers of files decoded one at a time where readers of objects fetched many and decoded nothing": (
        f"{HERE}::test_objects_and_files_are_read_alike",
    ),
    "the last batch was filled up, which made steps that no sample was for": (
        f"{HERE}::test_a_last_batch_that_is_kept_is_not_filled_up",
        f"{RUN}::test_samples_that_do_not_fill_a_batch_are_said",
    ),
    "each reading thread dropped a last batch of its own": (
        f"{RUN}::test_each_rank_reads_its_own_part_in_every_epoch",
    ),
    "all ranks but rank 0 read rank 0's files from the second sample on": (
        f"{RUN}::test_each_rank_reads_its_own_part_in_every_epoch",
        f"{RUN}::test_ranks_with_the_same_data_are_noticed",
    ),
    "no reading thread at all, which was allowed, ended in a KeyError": (
        f"{RUN}::test_each_rank_reads_its_own_part_in_every_epoch",
    ),
    "more files in the folder than the workload has were a warning of each rank": (
        f"{COUNTS}::test_of_more_files_the_first_are_read_and_nothing_is_said",
    ),
    # -- generating
    "the same seed on all ranks made the same data": (
        f"{HERE}::test_files_of_all_ranks_differ_in_every_block",
        f"{CONTENT}::test_no_512_bytes_come_twice_in_a_data_set",
        f"{RUN}::test_ranks_with_the_same_data_are_noticed",
    ),
    "what was generated depended on the number of threads": (
        f"{JOB}::test_any_number_of_threads_makes_the_same",
        f"{FAULTS}::test_generation_that_was_killed_is_completed_and_not_begun_again",
    ),
    "a rank wrote its files one after the other": (
        f"{FAULTS}::test_every_rank_makes_its_share_of_the_files",
        f"{HERE}::test_threads_of_generation_are_shared_by_the_ranks_of_a_host",
    ),
    "a whole file of several GB was kept in memory to be written": (f"{JOB}::test_memory_does_not_grow_with_the_file",),
    "images were no images, as nobody decoded them": (f"{KINDS}::test_images_decode_have_natural_sizes_and_differ",),
    "a generator for each pair of format and storage: one did not exist, and six knew directories alone": (
        f"{FORMATS}::test_a_format_is_generated_and_trained_on",
        f"{JOB}::test_s3_gets_the_same_as_a_directory",
    ),
    "files were read before the store listed them": (
        f"{HERE}::test_files_that_are_listed_late_are_waited_for",
        f"{HERE}::test_files_that_are_never_listed_are_an_error_that_names_one",
    ),
    # -- storage
    "an object store was given an open buffer instead of its bytes, or text": (
        f"{STORE}::test_objects_of_any_size_are_read",
        f"{STORE}::test_what_is_not_bytes_in_one_piece_is_refused",
    ),
    "s3:// went to open(), abspath(), PIL and tf.io.gfile, or through two functions that each changed it": (
        f"{FORMATS}::test_a_format_is_generated_and_trained_on",
        f"{RUN}::test_objects_are_generated_and_trained_on",
        f"{HERE}::test_no_url_of_objects_becomes_a_path",
    ),
    "a listing had two slashes, or the bucket's name": (
        f"{STORE}::test_listing_gives_keys_and_sizes_of_whole_folders",
    ),
    "a store failed that was asked whether a file is there before anything else": (
        f"{STORE}::test_objects_of_any_size_are_read",
        f"{STORE}::test_a_missing_object_is_named",
    ),
    "a local file went to the reader of objects": (f"{FORMATS}::test_a_format_is_generated_and_trained_on",),
    "what a storage can not do was a list that nobody kept up": (
        f"{FORMATS}::test_a_format_is_generated_and_trained_on",
    ),
    "a pool of ten connections for more threads, and a new one for each epoch": (
        f"{HERE}::test_as_many_connections_as_readers_and_they_are_kept",
    ),
    "one client was asked for and another read": (
        f"{PEERS}::test_torch_reads_through_the_client_that_was_requested",
        f"{PEERS}::test_a_client_of_objects_reads_all_bytes",
    ),
    "an upload in parts waited for itself": (
        f"{CHECKPOINT}::test_objects_hold_the_same_bytes",
        f"{JOB}::test_files_of_several_parts_reach_s3_whole_or_not_at_all",
    ),
    "O_DIRECT that was asked for was not used": (f"{PEERS}::test_direct_reads_leave_the_page_cache_alone",),
    # -- processes
    "fork() after threads and async runtimes had begun": (
        f"{HERE}::test_worker_processes_read_objects_after_this_process_has",
        f"{FORK}::test_a_fork_in_the_midst_of_requests_is_as_good",
    ),
    "threads were counted by all ranks of the world, and 1 meant that nobody had said": (
        f"{RANKS}::test_threads_are_shared_by_the_ranks_of_the_host_and_not_of_the_world",
        f"{HERE}::test_one_thread_is_one_thread",
    ),
    "a rank that ended early took with it what it had measured": (
        f"{RUN}::test_a_killed_rank_ends_all_and_leaves_what_was_measured",
        f"{RUN}::test_ctrl_c_leaves_what_was_measured_marked_as_invalid",
        f"{FAULTS}::test_a_killed_rank_of_a_launcher_ends_the_others_and_the_results_say_so",
    ),
    "what one run had set was there in the next one of the process": (
        f"{HERE}::test_a_run_leaves_nothing_for_the_next_one",
    ),
    # -- settings
    "a boolean crashed where only text was understood": (
        f"{DLIO}::test_object_storage_becomes_one_url_and_typed_options",
    ),
    "variables were read in many places, held over the file, or did nothing": (
        f"{WORKLOAD}::test_arguments_hold_over_the_file_over_the_environment_over_dotenv",
        f"{WORKLOAD}::test_each_setting_knows_where_it_was_given",
        f"{WORKLOAD}::test_a_variable_that_means_nothing_is_an_error",
    ),
    "settings of Parquet were in the file and nobody read them": (
        f"{DLIO}::test_every_key_is_a_setting_that_exists_or_says_why_not",
        f"{WORKLOAD}::test_what_is_wrong_is_reported_with_its_line",
    ),
    # -- packages
    "importing a factory imported TensorFlow; a package that is missing warned those who did not want it": (
        f"{HERE}::test_nothing_is_imported_that_was_not_requested",
    ),
    "a package that is missing was found at the first read, or replaced in silence by what is 155 times slower": (
        f"{RUN}::test_a_missing_library_is_an_error_before_anything_starts",
        f"{FAULTS}::test_a_library_that_generation_needs_is_an_error_before_anything_starts",
        f"{PEERS}::test_a_client_that_can_not_read_there_or_is_missing_is_an_error",
        f"{PEERS}::test_what_is_missing_is_an_error_at_the_start_and_nothing_else_is_run",
    ),
    "extras that messages name did not exist, and three lists of requirements differed": (
        "test_extras.py::test_extras_that_messages_name_exist",
    ),
    # -- the code
    "what was printed for finding a mistake stayed": (f"{HERE}::test_a_run_prints_its_result_and_nothing_else",),
    "a name that was never imported, a branch that is never reached, a class that was there twice": (
        f"{HERE}::test_the_checkers_of_the_code_are_as_strict_as_they_were",
    ),
    "tests that looked for files by a pattern that matches nothing, or were expected to fail": (
        f"{HERE}::test_every_lesson_names_tests_that_exist",
    ),
}

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parents[2]
TINY = (
    "dataset.files=4",
    "dataset.samples_per_file=1",
    "dataset.record_bytes=4096",
    "reader.batch_size=1",
    "reader.threads=1",
    "metric.exclude_start=0",
)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.chdir(tmp_path)


def workload(*settings: str) -> Workload:
    return read_workload(None, [*TINY, *settings], environ={}, dotenv=None).workload


def bench(
    results: Path, *settings: str, url: str | None = None, ranks: int = 1, stages: tuple[Stage, ...] = ("train",)
) -> dict[str, Any]:
    resolved = read_workload(None, [*TINY, *settings], environ={}, dotenv=None)
    return run_benchmark(resolved, results=results, url=url, accelerators=ranks, stages=stages)


def rows(name: str, made: Workload, url: str, threads: int = 0) -> list[np.ndarray[Any, Any]]:
    """All batches of an epoch, as arrays of bytes."""
    loader = get_loader(name).open(LoaderJob(made, "train", url, World(), threads, made.reader.batch_size))
    try:
        return [
            np.asarray(next(iter(batch.data.values())) if isinstance(batch.data, dict) else batch.data)
            for batch in loader.epoch(0)
        ]
    finally:
        loader.close()


def _texts(batch: Any) -> list[bytes]:
    return [row.tobytes() for row in np.asarray(next(iter(batch.values())) if isinstance(batch, dict) else batch)]


def test_every_lesson_names_tests_that_exist() -> None:
    found: dict[str, set[str]] = {}
    for said, tests in LESSONS.items():
        assert tests, said
        for test in tests:
            file, _, name = test.partition("::")
            if file not in found:
                here = TESTS / file
                tree = ast.parse((here if here.exists() else ROOT / "tests" / file).read_text())
                found[file] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in found[file], test
    mine = {name for name in found[HERE] if name.startswith("test_")}
    named = {test.partition("::")[2] for tests in LESSONS.values() for test in tests if test.startswith(HERE)}
    assert mine == named


def test_the_checkers_of_the_code_are_as_strict_as_they_were() -> None:
    """Who runs them is the command for all tests."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert settings["mypy"]["strict"]
    assert {"F", "T20", "PLE", "B"} <= set(settings["ruff"]["lint"]["select"])
    assert "T20" not in settings["ruff"]["lint"]["ignore"]
    gate = (ROOT / "tools" / "gate.py").read_text()
    assert all(name in gate for name in ('ruff", "check"', "mypy", "lint-imports"))


# -- what is measured ----------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("loader", ["synthetic", "torch"])
def test_a_run_has_no_warnings_even_where_it_measured_nothing(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning,error::UserWarning,error::ResourceWarning")
    monkeypatch.setattr("stoker_bench.run.check_settings", lambda *_: None)  # as if the loader ended too early
    settings = ("metric.exclude_start=3", "metric.exclude_end=3", f"reader.loader={loader}", "reader.threads=0")
    result = bench(tmp_path / "r", *settings, url=str(tmp_path / "d"), stages=("generate", "train"))
    assert result["complete"]
    assert result["train"]["au"] is None
    assert not result["valid"]


@pytest.mark.parametrize("name", ["stoker", "torch"])
def test_without_decoding_nothing_is_decoded(name: str, tmp_path: Path) -> None:
    """Files that nobody could decode are read as well as others, and are an error where arrays are asked for."""
    (tmp_path / "train").mkdir()
    for number in range(4):
        (tmp_path / "train" / f"img-{number}.npz").write_bytes(os.urandom(100 + number))
    made = workload("reader.decode=false", f"reader.loader={name}")
    loader = get_loader(name).open(LoaderJob(made, "train", str(tmp_path), World(), 0, 1))
    assert sorted(batch.bytes for batch in loader.epoch(0)) == [100, 101, 102, 103]
    loader.close()
    with pytest.raises(StokerError):
        rows(name, workload(f"reader.loader={name}"), str(tmp_path))


@pytest.mark.parametrize("name", ["stoker", "torch"])
def test_what_is_handed_over_is_what_was_read(name: str, tmp_path: Path) -> None:
    make_data(workload(), str(tmp_path))
    read = {row.tobytes() for row in rows(name, workload(), str(tmp_path))}
    there = set()
    for path in (tmp_path / "train").glob("*.npz"):
        with np.load(path) as arrays:
            there.add(next(iter(arrays.values())).tobytes())
    assert len(there) == 4
    assert read == there


@pytest.mark.s3
@pytest.mark.parametrize("name", ["stoker", "torch"])
def test_objects_and_files_are_read_alike(name: str, bucket: Bucket, tmp_path: Path) -> None:
    """To the same samples, in batches of the same bytes, by as many threads: what differs is where the bytes come from."""
    options = json.dumps(dict(bucket.storage_options))
    chosen = ("dataset.samples_per_file=3", "reader.batch_size=2", f"reader.loader={name}")
    seen, told = [], []
    for place, more in ((str(tmp_path), ()), (f"{bucket.url}/d", (f"storage.options={options}",))):
        made = workload(*chosen, *more)
        make_data(made, place)
        loader = get_loader(name).open(LoaderJob(made, "train", place, World(), 0, 2, str(tmp_path / "scratch")))
        batches = list(loader.epoch(0))
        seen.append(sorted(row for batch in batches for row in _texts(batch.data)))
        report = loader.report()
        told.append(([batch.bytes for batch in batches], report.decoded, report.parallel, report.order))
        loader.close()
    assert len(seen[0]) == 12
    assert seen[0] == seen[1]
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["stoker", "torch"])
def test_a_last_batch_that_is_kept_is_not_filled_up(name: str, tmp_path: Path) -> None:
    made = workload("dataset.samples_per_file=5", "reader.batch_size=3", "reader.last_batch=keep")
    make_data(made, str(tmp_path))
    assert [len(batch) for batch in rows(name, made, str(tmp_path))] == [3] * 6 + [2]


# -- generating ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_files_of_all_ranks_differ_in_every_block(kind: str, tmp_path: Path) -> None:
    chosen = (f"dataset.format={kind}", "dataset.files=7", "dataset.record_bytes=40000", "dataset.samples_per_file=2")
    resolved = read_workload(None, [*TINY, *chosen], environ={}, dotenv=None)
    place = {"results": tmp_path / "r", "url": str(tmp_path / "d")}
    run_in_threads(resolved, **place, accelerators=2, stages=("generate",))
    files = [path for path in (tmp_path / "d" / "train").iterdir() if path.name[0] != "_"]
    assert len(files) == 7
    blocks: dict[bytes, str] = {}
    for path in files:
        data = path.read_bytes()
        for start in range(4096, len(data) - 8192, 512):  # between head and tail, which all have
            assert blocks.setdefault(data[start : start + 512], path.name) == path.name
    assert len(blocks) > 7 * 100


def test_threads_of_generation_are_shared_by_the_ranks_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    made = stoker_bench.generation.generate

    def noted(spec: Any, place: str, *, threads: int, **more: Any) -> Any:
        asked.append(threads)
        return made(spec, place, threads=threads, **more | {"host": (0, 1)})

    monkeypatch.setattr(stoker_bench.generation, "generate", noted)
    monkeypatch.setattr(generation, "processor_count", lambda: 6)
    for count, here in ((1, 1), (2, 2), (8, 2), (8, 8)):  # the last two are of 8 ranks in all, on 4 hosts and on one
        make_data(workload(), str(tmp_path), World(0, count, here))
    assert asked == [6, 3, 3, 1]


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which a listing is slept for, by a clock that is data."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("stoker_bench.measure.generation.time", clock)
    return slept


def test_files_that_are_listed_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    """The description of a data set that lies beside its files is none of them."""
    made = workload("storage.settle_seconds=5")
    make_data(made, str(tmp_path))
    late = tmp_path / "train" / "img-00003.npz"
    late.rename(tmp_path / "hidden")

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            (tmp_path / "hidden").rename(late)

    monkeypatch.setattr("stoker_bench.measure.generation.time.sleep", sleep)
    assert await_listing(made, str(tmp_path)) == sum(naps) == 1.5
    assert late.exists()


@pytest.mark.parametrize("valid", [0, 2])
def test_files_that_are_never_listed_are_an_error_that_names_one(valid: int, tmp_path: Path, naps: list[float]) -> None:
    made = workload("storage.settle_seconds=5", f"dataset.files_eval={valid}")
    make_data(made, str(tmp_path))
    gone = f"{'valid' if valid else 'train'}/img-00001.npz"
    (tmp_path / gone).unlink()
    with pytest.raises(StorageTimeoutError, match=r"1 of \d files are not listed, such as .*img-00001\.npz"):
        await_listing(made, str(tmp_path))
    assert naps == [0.5] * 11  # it is looked for once more when the time is over


# -- storage -------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.s3
def test_no_url_of_objects_becomes_a_path(bucket: Bucket, tmp_path: Path) -> None:
    """Of all stages, from a folder of their own: nothing appears there."""
    (tmp_path / "cwd").mkdir()
    os.chdir(tmp_path / "cwd")
    options = json.dumps(dict(bucket.storage_options))
    chosen = (f"storage.options={options}", "dataset.files_eval=2", "model.size_bytes=1000", "metric.calibrate=true")
    result = bench(
        tmp_path / "r", *chosen, url=f"{bucket.url}/d", stages=("generate", "train", "evaluate", "checkpoint")
    )
    assert result["complete"]
    assert result["checkpoint"]["storage"]["url"] == f"{bucket.url}/d/checkpoints"
    assert not list((tmp_path / "cwd").iterdir())
    written = bucket.keys()
    assert {key.split("/")[0] for key in written} == {"d"}


READERS = 24


class _Kept(http.server.BaseHTTPRequestHandler):
    """Answers once all readers have asked."""

    protocol_version = "HTTP/1.1"
    connections = 0
    together = threading.Barrier(READERS)

    def setup(self) -> None:
        type(self).connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.together.wait(PATIENCE)
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(bytes(1000))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    _Kept.connections = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Kept) as made:
        made.daemon_threads = True
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/d"
        made.shutdown()


@pytest.mark.processes
def test_as_many_connections_as_readers_and_they_are_kept(server: str) -> None:
    """With a pool that is too small the server would wait for ever; without one, each request would open a connection."""
    store = open_store(server, {"allow_http": True})
    opened = []
    with ThreadPoolExecutor(READERS) as pool:
        for _ in range(8):  # as epochs
            before = _Kept.connections
            assert all(len(data) == 1000 for data in pool.map(partial(store.get, max_bytes=1000), ["x"] * READERS))
            opened.append(_Kept.connections - before)
    assert opened[0] >= READERS
    # A client may open one while another becomes free.
    assert min(opened[1:]) < READERS // 2


# -- processes -----------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.s3
def test_worker_processes_read_objects_after_this_process_has(bucket: Bucket, tmp_path: Path) -> None:
    """Whose threads and sockets a fork would have taken along."""
    made = workload(f"storage.options={json.dumps(dict(bucket.storage_options))}", "reader.loader=torch")
    url = f"{bucket.url}/d"
    make_data(made, url)
    alone = sorted(row.tobytes() for row in rows("torch", made, url))  # starts obstore's runtime here
    assert sorted(row.tobytes() for row in rows("torch", made, url, threads=1)) == alone
    assert len(alone) == 4


def test_one_thread_is_one_thread() -> None:
    """And not what stands for a number that was not given."""
    made = workload("reader.threads=1")
    assert made.reader.threads == 1
    assert [read_threads(asked, 1) for asked in (0, 1, 3, 1000)] == [0, 1, 3, 1000]
    assert Workload().reader.threads == "auto"


@pytest.mark.processes
def test_a_run_leaves_nothing_for_the_next_one(tmp_path: Path) -> None:
    before, folder = dict(os.environ), Path.cwd()
    for name in ("first", "second"):
        result = bench(tmp_path / name, "reader.loader=synthetic", f"dataset.files={4 if name == 'first' else 6}")
        assert result["epochs"][0]["steps"] == [4 if name == "first" else 6]
        assert len(result["epochs"]) == 1
    assert dict(os.environ) == before
    assert Path.cwd() == folder


# -- packages, and the code ----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_nothing_is_imported_that_was_not_requested() -> None:
    code = (
        "import sys, stoker_bench.run, stoker_bench.ranks.rank_main\n"
        "from stoker_bench.loaders import get_loader\n"
        "get_loader('stoker'), get_loader('synthetic')\n"
        "heavy = 'torch tensorflow pyarrow h5py PIL obstore ray datasets webdataset litdata streaming minio s3dlio mpi4py'\n"
        "print([name for name in heavy.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


@pytest.mark.processes
def test_a_run_prints_its_result_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: x\n")
    command = [
        sys.executable,
        "-m",
        "stoker",
        "bench",
        "run",
        "w.yaml",
        *TINY,
        "--data",
        "d",
        "--results",
        "r",
        "--json",
    ]
    command += ["--stages", "generate,train"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 3}
    assert json.loads(done.stdout)["complete"]
    assert done.stderr == ""
