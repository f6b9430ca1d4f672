"""How many accelerators a storage feeds: the search, the rules, and the answer for a storage of known speed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import throttled_loader
from bench_threads import ranks_as_threads
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli import main
from stoker.errors import ConfigError
from stoker_bench.mlperf.rules import demanded
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Workload
from stoker_bench.size.size import FILE, DatasetSize, find_border, find_size, probe_steps

GIB = 1 << 30
THROTTLED = (
    "reader.loader=throttled_loader:Throttled",
    "compute.seconds=0.05",
    "dataset.files=10000",
    "metric.au=0.82",
)


@pytest.fixture(autouse=True)
def _loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks that are threads, in time that is data."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    throttled_loader.CLOCK.replace(monkeypatch.setattr)


def sized(results: Path, *settings: str, url: str = "memory://nothing", **options: object) -> DatasetSize:
    resolved = read_workload(None, settings, environ={}, dotenv=None)
    demand = partial(demanded, resolved.workload, hosts=1, host_memory_bytes=GIB)
    with ranks_as_threads():
        return find_size(resolved, results=results, demand=demand, url=url, **options)  # type: ignore[arg-type]


# -- the search ----------------------------------------------------------------------------------------------------


def of_capacity(capacity: int, asked: list[int], noise: Callable[[], float] = lambda: 0.0) -> Callable[[int], float]:
    def probe(accelerators: int) -> float:
        asked.append(accelerators)
        return min(1.0, (capacity + 0.5) / accelerators) * 0.95 + noise()

    return probe


@given(st.integers(0, 300), st.integers(1, 256), st.integers(1, 4))
def test_the_border_is_found_to_one_accelerator_in_few_runs(capacity: int, most: int, repeats: int) -> None:
    asked: list[int] = []
    border = find_border(of_capacity(capacity, asked), 0.949, counts=range(1, most + 1), repeats=repeats)
    assert border.fed == min(capacity, most)
    assert border.starved == (None if capacity >= most else capacity + 1)
    assert len(asked) <= 2 * int(np.ceil(np.log2(most + 1))) + 2 * repeats
    assert max(asked) <= most
    for side in (border.fed, border.starved):
        assert not side or len(border.values[side]) == repeats
    assert not border.sure or repeats > 1


@given(st.integers(0, 70), st.lists(st.integers(1, 64), min_size=1, unique=True).map(sorted))
def test_only_numbers_that_can_be_had_are_tried(capacity: int, counts: list[int]) -> None:
    """Of a cluster whose nodes have as many each."""
    asked: list[int] = []
    border = find_border(of_capacity(capacity, asked), 0.949, counts=counts, repeats=2)
    assert border.fed == max((count for count in counts if count <= capacity), default=0)
    assert border.starved == min((count for count in counts if count > capacity), default=None)
    assert set(asked) == set(border.values) <= set(counts)


def test_noise_below_the_gap_does_not_move_the_border_and_is_distinguished_from_certainty() -> None:
    random = np.random.default_rng(1)
    for capacity in (1, 3, 7, 20):
        border = find_border(
            of_capacity(capacity, [], lambda: random.normal(0, 0.002)), 0.93, counts=range(1, 65), repeats=4
        )
        assert border.fed == capacity
        assert border.sure


def test_a_lucky_run_at_the_border_is_repeated_and_the_search_continues() -> None:
    first: dict[int, float] = {5: 0.99}  # once; after that it is what it is: 4 are fed

    def probe(accelerators: int) -> float:
        return first.pop(accelerators, 0.95 if accelerators <= 4 else 0.6)

    border = find_border(probe, 0.9, counts=range(1, 65), repeats=3)
    assert (border.fed, border.starved) == (4, 5)
    assert len(border.values[5]) >= 2
    assert not border.sure  # what was seen of 5 scatters around the threshold


# -- the rules -----------------------------------------------------------------------------------------------------

PUBLISHED = (
    # "Minimum N files are required which will consume M GB": `benchmark.sh datasize` of MLPerf Storage, in comments of the
    # scripts in mlcommons/storage_results_v1.0, Closed/YanRongTech/code.
    ("unet3d-h100", 36, 1, 251, 126_000, 17_203),
    ("unet3d-h100", 48, 1, 251, 168_000, 22_937),
    ("resnet50-h100", 600, 3, 251, 95_923, 12_814),
    ("cosmoflow-h100", 60, 1, 251, 476_419, 1_254),
)


@pytest.mark.parametrize(("name", "accelerators", "hosts", "memory", "files", "gib"), PUBLISHED)
def test_the_rules_demand_what_mlperf_storage_published(
    name: str, accelerators: int, hosts: int, memory: int, files: int, gib: int
) -> None:
    workload = read_workload(name, environ={}, dotenv=None).workload
    demand = demanded(workload, accelerators, hosts, memory * GIB)
    assert 0 <= demand.files - files <= 1  # mlpstorage before 3.0.43 rounded down
    assert demand.bytes / GIB == pytest.approx(gib, rel=1e-3)
    assert demand.decides == ("memory" if name == "cosmoflow-h100" else "steps")
    assert demand.files * workload.dataset.samples_per_file >= demand.samples
    assert demand.samples >= 500 * workload.reader.batch_size * accelerators
    assert demand.samples * workload.dataset.sample_bytes >= 5 * hosts * memory * GIB
    with pytest.raises(ConfigError, match="hosts must be at least 1"):
        demanded(workload, accelerators, 0, GIB)


def test_the_rules_alone_run_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "size", "unet3d-h100", "--rules-only", "--host-memory", "251gb"]
    assert main([*asked, "--accelerators", "36", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["files"], found["samples_for_steps"], found["enough"]) == (126_000, 126_000, False)
    assert main([*asked, "--accelerators", "36"]) == 0
    assert "126,000" in capsys.readouterr().out
    assert main(asked) == 1
    assert "Give --accelerators N" in capsys.readouterr().err
    assert main(["bench", "size", "unet3d-h100"]) == 1
    assert "Give --results DIR" in capsys.readouterr().err


def test_the_rules_demand_no_data_set_where_nothing_is_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "size", "kv-cache-tiny-1b", "--rules-only", "--accelerators", "1"]) == 1
    assert "kv-cache-tiny-1b trains nothing (stages: kv_cache)" in capsys.readouterr().err


def test_sizes_are_told_by_powers_of_1000(capsys: pytest.CaptureFixture[str]) -> None:
    """As all that the benchmark prints: 18.5 TB was called 16.8."""
    given = ["--rules-only", "--accelerators", "36", "--host-memory", "251gb"]
    assert main(["bench", "size", "unet3d-h100", *given]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "18.5 TB (18,471,679,128,000 bytes)" in words
    assert "1 host of 270 GB" in words


def test_runs_are_as_long_as_their_computing_needs() -> None:
    for seconds, steps in ((0.0005, 750), (0.323, 70), (1.35, 45)):
        workload = read_workload(None, [f"compute.seconds={seconds}"], environ={}, dotenv=None).workload
        assert probe_steps(workload) == steps


# -- the answer ----------------------------------------------------------------------------------------------------


def test_a_storage_of_known_speed_feeds_so_many_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves a batch every 100 / 2.1 ms, an accelerator takes one every 100 ms: two get theirs, three get 0.7 of it."""
    monkeypatch.setenv("THROTTLED_SECONDS", str(0.1 / 2.1))
    seen: list[tuple[int, dict[str, Any]]] = []
    found = sized(
        tmp_path / "out",
        *THROTTLED,
        "compute.seconds=0.1",
        "metric.au=0.78",
        steps=25,
        repeats=2,
        most=8,
        calibrate=False,
        on_run=lambda count, result: seen.append((count, dict(result))),
    )
    assert found.accelerators == 2
    assert found.limited_by == "unknown"
    assert found.broken.keys() <= {"files"}  # there are none
    assert {point.accelerators: point.fed for point in found.points} == {1: True, 2: True, 3: False, 4: False}
    assert [count for count, _ in seen[:4]] == [1, 2, 4, 3]
    workloads = [result["plan"]["workload"] for _, result in seen]
    assert len({workload["train"]["seed"] for workload in workloads}) == len(seen)  # each run reads in another order
    assert {workload["storage"]["cache"] for workload in workloads} == {"drop"}
    # What was read ahead before the first step is used up before steps count.
    assert {block["counted"] for _, result in seen for block in result["epochs"][0]["ranks"][0]["blocks"]} == {17}
    rate = {point.accelerators: point.samples_per_second for point in found.points}
    assert rate == pytest.approx(
        {1: 1 / 0.1, 2: 2 / 0.1, 3: 2.1 / 0.1, 4: 2.1 / 0.1}, rel=1e-3
    )  # no more than there is
    assert json.loads((tmp_path / "out" / FILE).read_text()) == found.as_dict()
    assert len(list((tmp_path / "out").glob("*/results.json"))) == len(seen)
    assert found.demand.accelerators == 2


def test_a_host_or_loader_that_is_too_slow_is_not_taken_for_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    for k in range(60):
        np.savez(data / f"img_{k:02d}_of_60.npz", x=np.zeros((8, 8, 1), np.uint8), y=[0])
    monkeypatch.setenv("THROTTLED_SECONDS", "0.1")
    settings = (*THROTTLED, "dataset.files=60", "dataset.record_bytes=64")
    found = sized(tmp_path / "out", *settings, url=str(tmp_path / "data"), steps=12, repeats=1, most=4)
    assert (found.accelerators, found.limited_by) == (0, "host")
    assert found.ceiling is not None
    assert found.ceiling < 0.82
    assert "this host or the loader" in found.said
    assert "Not a single accelerator" in found.said
    assert not found.sure
    # None of it came from the device, which the rules do not let pass.
    assert "page cache" in found.broken


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_an_answer_from_memory_is_marked_and_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path("/dev/shm") / f"stoker-{tmp_path.name}-size"
    made = ("dataset.files=8", "dataset.samples_per_file=8", "dataset.record_bytes=256", "compute.seconds=0.003")
    try:
        asked = ["--data", str(data), "--results"]
        (tmp_path / "w.yaml").write_text("name: tiny\n")
        run = ["bench", "run", str(tmp_path / "w.yaml"), *made, *asked, str(tmp_path / "g"), "--stages", "generate"]
        with ranks_as_threads():
            assert main(run) == 0
        size = ["bench", "size", str(tmp_path / "w.yaml"), *made, *asked, str(tmp_path / "out"), "--steps", "30"]
        capsys.readouterr()
        with ranks_as_threads():
            assert main([*size, "--repeats", "1", "--most", "2", "--no-calibrate"]) == 3
        shown = capsys.readouterr().out
        assert "invalid:" in shown
        assert "is in memory (tmpfs)" in shown
        assert main([*size, "--most", "2"]) == 1  # the directory has results
        assert "is not empty" in capsys.readouterr().err
    finally:
        shutil.rmtree(data, ignore_errors=True)


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        (("compute.seconds=0",), {}, "never utilized"),
        (("compute.seconds=1", "dataset.files=8"), {"steps": 20}, "generate more"),
    ],
)
def test_what_can_give_no_answer_is_said_before_anything_runs(
    settings: tuple[str, ...], options: dict[str, int], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        sized(tmp_path / "out", *settings, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_launcher_is_refused_as_ranks_are_started_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="without torchrun"):
        sized(tmp_path / "out", "compute.seconds=1", "dataset.files=1000")


def test_memory_of_all_hosts_counts() -> None:
    demand = demanded(Workload(), 3, 2, GIB)
    assert demand.samples == demand.samples_for_memory == 5 * 2 * GIB // 65536
    assert demand.decides == "memory"
