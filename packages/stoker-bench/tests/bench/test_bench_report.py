"""The page: its numbers are those of ``results.json``, it needs no network, and files can not make it do anything."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import random
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from bench_example import real_run, variant
from hypothesis import given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from stoker.cli import main
from stoker.errors import FormatError
from stoker_bench.cli.bench.charts.common import named_axis
from stoker_bench.cli.bench.page import bench_page
from stoker_bench.cli.bench.tables.verdicts import verdict_text
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Card, Figure, Table, render
from stoker_bench.measure.step_files import read_steps
from stoker_bench.results.report_files import RunFiles, find_runs, read_run
from stoker_bench.results.report_steps import stall_histogram, timeline
from stoker_bench.results.results import schema
from stoker_bench.results.rules import PUBLISHED, check_rules
from stoker_bench.settings.sources import read_workload

TINY = (
    *("dataset.format=npz", "dataset.files=8", "dataset.samples_per_file=16", "dataset.record_bytes=512"),
    *("reader.batch_size=4", "reader.threads=1", "train.epochs=2", "name=tiny"),
)
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Page(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.data: dict[tuple[int, str], set[tuple[str, str]]] = {}
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._datum: tuple[int, str, str] | None = None
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in found.items()]
        if tag == "data":
            self._datum = int(found["data-run"]), found["data-path"], found["value"]
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"} and self._cell is not None:
            self.tables[-1][-1].append("".join(self._cell))
            self._cell = None
        if tag == "data":
            self._datum = None

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._cell is not None:
            self._cell.append(data)
        if self._datum is not None:
            run, path, value = self._datum
            self.data.setdefault((run, path), set()).add((value, data))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on two ranks, the second with another loader."""
    base = tmp_path_factory.mktemp("report")
    real_run(base / "first", *TINY, ranks=2, url=str(base / "data"), stages=("generate", "train"))
    real_run(base / "second", *TINY, "reader.loader=synthetic", ranks=2, url=str(base / "data"))
    return [base / "first", base / "second"]


@pytest.fixture
def runs(folders: list[Path]) -> list[RunFiles]:
    return find_runs(folders)


def at(result: Any, path: str) -> Any:
    for name in path.split("."):
        result = result[int(name)] if isinstance(result, list) else result[name]
    return result


def labels(page: Page) -> list[str]:
    """Of all charts but that of the page cache, which has something to show on some machines."""
    found = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    return [value for value in found if not value.startswith("bytes a second from the page cache")]


# -- what is on it -------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 2])
def test_the_numbers_are_those_of_results_json(folders: list[Path], tmp_path: Path, count: int) -> None:
    file = tmp_path / "page.html"
    assert main(["bench", "report", *map(str, folders[:count]), "--output", str(file)]) == 0
    page = Page(file.read_text())
    results = [json.loads((folder / "results.json").read_text()) for folder in folders]
    for (run, path), found in page.data.items():
        for value, words in found:
            exact = at(results[run], path)
            assert json.loads(value) == exact
            number = float(re.sub(r"[^\d.e-]", "", words.replace(",", "")) or "nan")
            scale = 100 if words.endswith("%") else 1
            if words[-1] in "%0123456789":  # others have units that were chosen by size
                assert math.isclose(number, exact * scale, rel_tol=6e-3, abs_tol=0.051), (path, words)
    for k in range(count):
        shown = {path for run, path in page.data if run == k}
        rates = {f"train.{name}_per_second.mean" for name in ("samples", "storage_bytes", "delivered_bytes")}
        assert {"train.au.mean", "world.ranks"} | rates <= shown
        for epoch in range(2):
            names = ("au", "stall_part", "samples_per_second", "stall_seconds.p99", "device_bytes")
            assert {f"epochs.{epoch}.{name}" for name in names} <= shown
    for table in page.tables:  # below its own heading
        assert len({len(row) for row in table}) <= 1
    summary = next(table for table in page.tables if table[0][:2] == ["run", "verdict"])
    assert [row[summary[0].index("run")] for row in summary[1:]] == ["first", "second"][:count]
    assert [row[summary[0].index("loader")] for row in summary[1:]] == ["stoker", "synthetic"][:count]
    assert [row[summary[0].index("utilization")] for row in summary[1:]] == [
        f"{result['train']['au']['mean']:.2%}" for result in results[:count]
    ]


def test_all_plots_are_there_and_said_in_words(runs: list[RunFiles]) -> None:
    alone, both = Page(bench_page(runs[:1])), Page(bench_page(runs))
    series = [epoch["storage_series"] for epoch in runs[0].result["epochs"]]
    of_block_device = any(one["block_device"] is not None and any(one["block_device"]["reads"]) for one in series)
    of_page_cache = any(label.startswith("bytes a second from the page cache") for label in labels(alone))
    said = [
        "bytes a second from storage over time",
        *(("bytes a second from the page cache over time",) if of_page_cache else ()),
        "requests a second over time",
        *(("reads a second of the block device",) if of_block_device else ()),
        "latency of requests to storage",
        "part of the requests that took at most so long",
        "requests by size",
        "utilization over time",
        "where the time of each epoch goes",
        "computation of a step of each epoch, drawn and measured",
        "how many steps waited",
        "samples a second of each",
    ]
    assert [label[: len(start)] for label, start in zip(labels(alone), said, strict=True)] == said
    more = [*labels(both)]
    assert len(more) == 12
    assert more[1] == "bytes a second from storage of each run"
    assert any(label.startswith("utilization of each run") for label in more)
    assert all(("svg", "role", "img") in page.attributes for page in (alone, both))
    # Each section but utilization over time and the distribution of latency has its numbers as a table, too.
    assert alone.tags.count("details") == 7 + 1  # and all settings
    rates = {
        rank["rank"]: math.fsum(epoch["ranks"][rank["rank"]]["metrics"]["samples_per_second"] for epoch in epochs) / 2
        for epochs in [runs[0].result["epochs"]]
        for rank in epochs[0]["ranks"]
    }
    shown = next(table for table in alone.tables if table[0] == ["run", "rank", "samples/s"])
    assert shown[1:] == [["first", str(rank), f"{rate:,.2f}"] for rank, rate in rates.items()]


def test_rules_verdict_environment_and_command_are_reported(runs: list[RunFiles]) -> None:
    page = Page(bench_page(runs[1:]))
    words = " ".join(page.words)
    broken = [finding for finding in runs[1].result["findings"] if finding["invalid"]]
    assert broken  # synthetic reads nothing
    assert all(finding["reason"] in words for finding in runs[1].result["findings"])
    assert "invalid" in page.words
    assert "stoker bench run" in words
    assert runs[1].result["environment"]["processor"] in words
    assert f"numpy {np.__version__}" in words


def test_the_page_needs_and_may_use_nothing_else(runs: list[RunFiles]) -> None:
    text = bench_page(runs)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "base", "form"} & set(page.tags)
    assert not [one for one in page.attributes if one[1] in {"src", "href"} or one[1].startswith("on")]
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in page.attributes
    assert "url(" not in text
    assert "@import" not in text


def test_text_of_files_stays_text(runs: list[RunFiles]) -> None:
    evil = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: poisoned(one) for name, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one) for one in value]
        return evil if isinstance(value, str) and value not in {"train", "arrays", "none"} else value

    made = [RunFiles(run.folder, evil, poisoned(dict(run.result))) for run in runs]
    honest, page = Page(bench_page(runs)), Page(bench_page(made))
    assert "script" not in page.tags
    assert set(page.tags) <= {*honest.tags, "div"}
    assert {name for _, name, _ in page.attributes} <= {name for _, name, _ in honest.attributes}
    assert evil in page.words
    # Halves of surrogate pairs, which JSON may hold.
    bench_page([RunFiles(runs[0].folder, "\ud800", runs[0].result)])


def test_text_stays_text_in_every_part_of_a_page() -> None:
    evil = "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&--x"
    chart = Chart(evil, Axis(evil, 0, 1), Axis(evil, 0, 1))
    chart.line([0, 1], np.zeros(2), "red", evil)
    chart.bar(0, 1, 1, evil)
    chart.level(1, evil)
    named = Chart(evil, named_axis(evil, [evil]), Axis(evil, 0, 1))
    figures = [Figure(chart, [(evil, evil)], [(evil, evil)]), Figure(named)]
    table, pairs = Table([evil], [[evil]]), [(evil, evil)]
    values = {"title": evil, "heading": evil, "summary": evil, "node_legend": evil, "warnings": [[evil, "--" + evil]]}
    parts = {"headlines": pairs, "cards": [Card(evil, evil, figures, table)], "nodes": table}
    text = render("simulate.html", **values, **parts, findings=pairs, settings=pairs)
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    assert not [one for one in page.attributes if one[1].startswith("on")]
    assert text.count("alert(1)") == 2 * text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 40
    assert evil in page.words


def test_a_folder_of_runs_and_runs_without_steps_are_shown(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in folders:
        shutil.copytree(folder, tmp_path / "all" / folder.name, ignore=shutil.ignore_patterns("steps"))
    assert main(["bench", "report", str(tmp_path / "all")]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == tmp_path / "all" / "report.html"
    page = Page(file.read_text())
    assert not [label for label in labels(page) if label.startswith(("utilization over time", "how many steps"))]
    assert len(labels(page)) == 10
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == ["report.html"]
    assert main(["bench", "report", str(tmp_path / "nowhere")]) == 1
    assert "is not a directory" in capsys.readouterr().err
    assert main(["bench", "report", str(folders[0]), "--output", str(tmp_path / "no" / "such.html")]) == 1
    assert "such.html can not be written" in capsys.readouterr().err
    assert main(["bench", "report", str(folders[0]), "--output", str(file / "below.html")]) == 1  # nothing to remove
    assert "below.html can not be written: Not a directory" in capsys.readouterr().err


def test_utilization_by_accelerators_is_drawn_where_runs_differ_in_them(runs: list[RunFiles]) -> None:
    result = copy.deepcopy(dict(runs[0].result))
    result["world"]["ranks"] = 16
    page = Page(bench_page([runs[0], RunFiles(runs[0].folder, "more", result)]))
    assert any(label.startswith("utilization by number of accelerators") for label in labels(page))
    table = next(table for table in page.tables if table[0][1] == "accelerators")
    assert [row[1] for row in table[1:]] == ["2", "16"]
    assert page.tags.count("circle") == 2  # few points are seen as such


@pytest.mark.processes
def test_checkpoints_have_their_chart_and_numbers(tmp_path: Path) -> None:
    model = ("model.size_bytes=20000", "checkpoint.writes=2", "checkpoint.reads=1", "checkpoint.fsync=false")
    real_run(tmp_path / "run", *model, url=str(tmp_path / "data"), stages=("checkpoint",))
    runs = find_runs([tmp_path / "run"])
    page = Page(bench_page(runs))
    requests = ["latency of requests to storage: percentiles", "part of the requests that took at most so long"]
    assert labels(page) == [*requests, "requests by size", "bytes a second of each checkpoint"]
    for path in ("saves.0.seconds", "saves.1.bytes_per_second", "loads.0.bytes", "save.bytes_per_second.mean"):
        assert {json.loads(value) for value, _ in page.data[0, f"checkpoint.{path}"]} == {
            at(runs[0].result, f"checkpoint.{path}")
        }
    assert (0, "checkpoint.saves.2.seconds") not in page.data


def test_a_run_that_measured_nothing_has_a_page(runs: list[RunFiles]) -> None:
    nothing = copy.deepcopy(dict(runs[0].result)) | {"epochs": [], "train": None, "evaluate": None, "passed": None}
    nothing["requests"] = {"train": None, "evaluate": None}
    page = Page(bench_page([RunFiles(runs[0].folder / "none", "nothing", nothing | {"failure": "rank 0 was killed"})]))
    assert not labels(page)
    empty = {"au": None, "stall_part": None, "barrier_part": None, "overhead_part": None, "stall_seconds": None}
    assert Page(bench_page([variant(runs[0], [empty])])).tags.count("svg") >= 1


# -- steps ---------------------------------------------------------------------------------------------------------


def test_the_time_line_holds_all_computing(runs: list[RunFiles]) -> None:
    run = runs[0]
    line = timeline(run, 50)
    assert line is not None
    assert line.ranks == 2
    assert (line.low <= line.mean + 1e-9).all()
    assert (line.mean <= line.high + 1e-9).all()
    computed = ended = 0.0
    for epoch in (0, 1):
        steps = [read_steps(run.folder / "steps" / f"rank{rank:05d}-train-0-{epoch}.npz") for rank in (0, 1)]
        computed += sum(int(one.compute.sum()) for one in steps if one is not None) * 1e-9
        ended += max(one.end for one in steps if one is not None) * 1e-9
    assert line.edges[-1] == pytest.approx(ended)
    assert (line.mean * np.diff(line.edges)).sum() * 2 == pytest.approx(computed, rel=1e-6)


def test_the_histogram_has_every_step_that_counts(runs: list[RunFiles]) -> None:
    found = stall_histogram(runs[0])
    assert found is not None
    epochs = runs[0].result["epochs"]
    blocks = [block for epoch in epochs for rank in epoch["ranks"] for block in rank["blocks"]]
    assert found.counts.sum() == sum(block["counted"] for block in blocks)
    mean = np.mean([epoch["stall_seconds"]["mean"] for epoch in epochs])  # epochs have as many steps
    assert found.seconds.sum() / found.counts.sum() == pytest.approx(mean)
    assert found.edges[-1] >= max(epoch["stall_seconds"]["max"] for epoch in epochs)


def hostile_steps(kind: str, path: Path) -> None:
    good: dict[str, Any] = {name: np.arange(4) for name in ("asked", "wait", "compute", "barrier")} | {
        "block": np.zeros(1, np.int64)
    }
    if kind == "pickle":
        np.savez(path, **good | {"wait": np.array([{}] * 4, object)})
    elif kind == "header":
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (%d,), }" % (1 << 50)
        with zipfile.ZipFile(path, "w") as archive:
            for name in good:
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    elif kind == "no zip":
        path.write_bytes(b"PK\x03\x04 nothing")
    elif kind == "missing":
        np.savez(path, asked=np.arange(4))
    else:
        cases: dict[str, dict[str, Any]] = {
            "float": {"wait": np.arange(4.0)},
            "short": {"wait": np.arange(3)},
            "matrix": {"wait": np.zeros((4, 1), np.int64)},
            "negative": {"wait": np.array([0, 1, -5, 2])},
            "huge": {"wait": np.array([0, 1, 1 << 62, 2])},
            "backwards": {"asked": np.array([3, 2, 1, 0])},
            "block": {"block": np.array([0, 99])},
        }
        np.savez(path, **good | cases[kind])


@pytest.mark.parametrize(
    "kind",
    ["pickle", "header", "no zip", "missing", "float", "short", "matrix", "negative", "huge", "backwards", "block"],
)
def test_steps_that_no_rank_wrote_are_not_drawn(kind: str, runs: list[RunFiles], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0].folder, folder)
    for path in (folder / "steps").iterdir():
        hostile_steps(kind, path)
        assert read_steps(path) is None
        break
    page = Page(bench_page(find_runs([folder])))
    assert "steps of 1 of 2 ranks are there" in " ".join(page.words)


def test_steps_of_more_than_a_bound_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.npz"
    names = ("asked", "wait", "compute", "barrier")
    arrays: dict[str, Any] = {name: np.zeros(100_000, np.int64) for name in names}
    np.savez_compressed(path, **arrays, block=np.zeros(1, np.int64))
    assert path.stat().st_size < 100_000
    assert read_steps(path) is not None
    monkeypatch.setattr("stoker_bench.measure.step_files._MOST_BYTES", 1 << 20)
    assert read_steps(path) is None


# -- files of another shape ----------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for name, one in value.items():
            yield from places(one, (*path, name))
    elif isinstance(value, list):
        for k, one in enumerate(value):
            yield from places(one, (*path, k))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([None, True, "x", -3, 2.5, 7, [], {}, ["a"], {"a": 1}]), st.booleans())
def test_results_of_another_shape_are_refused(seed: int, other: Any, drop: bool) -> None:
    result = copy.deepcopy(_EXAMPLE)
    where = random.Random(seed).choice([path for path in places(result) if path])
    parent = at(result, ".".join(map(str, where[:-1]))) if len(where) > 1 else result
    if drop:
        del parent[where[-1]]
    else:
        parent[where[-1]] = other
    valid = not list(jsonschema.Draft202012Validator(schema()).iter_errors(result))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "results.json").write_text(json.dumps(result))
        with contextlib.nullcontext() if valid else pytest.raises(FormatError, match="not what stoker bench writes"):
            read_run(Path(folder))


@pytest.mark.parametrize("number", ["1.0", "1e999", "NaN", "-Infinity"])
def test_numbers_that_python_could_not_use_are_refused(number: str, tmp_path: Path) -> None:
    text = json.dumps(_EXAMPLE | {"world": {**_EXAMPLE["world"], "ranks": "here"}}).replace('"here"', number)
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(FormatError, match=r"not what stoker bench writes|is not finite"):
        read_run(tmp_path)


_EXAMPLE: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _example(folders: list[Path]) -> None:
    if not _EXAMPLE:
        _EXAMPLE.update(json.loads((folders[0] / "results.json").read_text()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "not what stoker bench writes"),
        ('{"version": 1}', "is a required property"),
        ("\xff", "is not JSON"),
    ],
)
def test_other_files_are_refused_with_the_path(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=said) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_numbers_that_are_none_and_files_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(_EXAMPLE | {"seconds": math.nan}))
    with pytest.raises(FormatError, match="NaN is not finite"):
        read_run(tmp_path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="more than results have"):
        read_run(tmp_path)


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium")
def test_a_browser_shows_the_plots_and_has_no_complaint(folders: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert main(["bench", "report", *map(str, folders), "--output", str(file)]) == 0
    picture = tmp_path / "page.png"

    def browse(*more: str) -> subprocess.CompletedProcess[str]:
        assert BROWSER is not None
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", *more, file.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)

    done = browse("--dump-dom")
    assert "CONSOLE" not in done.stderr
    seen, written = Page(done.stdout), Page(file.read_text())
    assert labels(seen) == labels(written)
    for tag in ("svg", "rect", "polyline", "line", "data", "table", "section"):
        assert seen.tags.count(tag) == written.tags.count(tag) > 0
    assert seen.data == written.data
    browse(f"--screenshot={picture}", "--window-size=1240,2000", "--hide-scrollbars")
    from PIL import Image

    with Image.open(picture) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or []}
    bars = [(0x3B, 0x82, 0xC4), (0xD9, 0x82, 0x2B)]  # of both runs
    assert all(bar in colours for bar in bars)


# -- many runs -----------------------------------------------------------------------------------------------------


def many(run: RunFiles, count: int) -> list[RunFiles]:
    """Runs whose host was too busy, each by another part, and all of them measured once."""
    made = []
    for k in range(count):
        result = copy.deepcopy(dict(run.result))
        reason = f"in epoch 0 a step's computation took {20 + k}.5 ms, {k + 3}% longer than the 20 ms drawn for it"
        result["findings"] = [
            {"rule": "computation", "invalid": True, "reason": reason},
            {"rule": "repeats", "invalid": False, "reason": "the training was run once"},
        ]
        result["plan"]["workload"]["train"]["seed"] = k
        made.append(RunFiles(run.folder, f"run-{k:02d}", result))
    return made


def test_findings_of_many_runs_that_are_alike_are_told_once_with_all_their_numbers(runs: list[RunFiles]) -> None:
    """31 runs began with 31 warnings."""
    text = bench_page(many(runs[0], 31))
    page = Page(text)
    warnings = [value for tag, name, value in page.attributes if (tag, name, value) == ("div", "class", "warning")]
    assert len(warnings) == 1
    assert "<b>Invalid: all 31 runs</b>" in text
    assert "<li>computation: run-00: in epoch 0 a step&#39;s computation took 20.5 ms, 3% longer" in text
    rules = next(table for table in page.tables if table[0] == ["run", "rule", "", "reason"])
    assert [row[:3] for row in rules[1:]] == [
        ["all 31 runs", "computation", "broken"],
        ["all 31 runs", "repeats", "remark"],
    ]
    assert all(f"run-{k:02d}: in epoch 0 a step's computation took {20 + k}.5 ms" in rules[1][3] for k in range(31))
    assert rules[2][3] == "the training was run once"
    assert text.index("<h2>Storage over time</h2>") < text.index("<h2>Summary</h2>") < text.index("<h2>Rules</h2>")
    differing = re.findall(r"Settings that differ from those of run-00</summary><pre>(.*?)</pre>", text)
    assert differing == [f"train.seed: {k}" for k in range(1, 31)]


def test_many_broken_rules_are_one_warning_and_the_rest_is_in_the_table(runs: list[RunFiles]) -> None:
    """A small run under MLPerf Storage's rules began with a screen of eleven warnings."""
    broken = [{"rule": f"rule {chr(97 + k)}", "invalid": True, "reason": f"because {chr(97 + k)}"} for k in range(11)]
    results = [copy.deepcopy(dict(runs[0].result)) | {"findings": found} for found in (broken, broken[:1], [])]
    made = [RunFiles(runs[0].folder, name, result) for name, result in zip("xyz", results, strict=True)]
    text = bench_page(made)
    (warning,) = re.findall(r'<div class="warning" role="note">(.*?)</div>', text)
    assert warning.startswith("<b>Invalid: x and y</b><ul><li>rule a: because a</li><li>rule b, x: because b</li>")
    assert warning.endswith("<li>6 more, in the table of rules below</li></ul>")
    assert all(f"because {chr(97 + k)}</td>" in text for k in range(11))
    assert "<b>This run is invalid</b>" in bench_page(made[:1])
    assert "is invalid<" not in bench_page(made[2:])


def test_names_of_many_runs_have_room(runs: list[RunFiles]) -> None:
    svg = next(
        one for one in bench_page(many(runs[0], 31)).split("<svg")[1:] if "from storage of each run" in one
    ).split("</svg>")[0]
    at = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*rotate', svg)]
    assert len(at) == 31
    assert min(after - before for before, after in itertools.pairwise(at)) > 19


def test_a_smoke_test_that_was_asked_for_is_no_alarm(runs: list[RunFiles]) -> None:
    result = copy.deepcopy(dict(runs[0].result)) | {"verdict": "smoke test"}
    assert '<span class="bad">smoke test</span>' in bench_page([RunFiles(runs[0].folder, "x", result)])
    result["plan"]["workload"]["metric"]["smoke"] = True
    assert '<span class="bad">smoke test</span>' not in bench_page([RunFiles(runs[0].folder, "x", result)])


def edited(result: dict[str, Any], change: str) -> None:
    """Change results as somebody would who wants another number."""
    epoch, rank = result["epochs"][0], result["epochs"][0]["ranks"][0]
    if change == "utilization of an epoch":
        epoch["au"] = 0.97
    elif change == "all but the steps":
        rank["blocks"][0]["compute"], rank["blocks"][0]["stall"] = rank["blocks"][0]["seconds"], 0.0
    elif change == "utilization of the run":
        result["train"]["au_nominal"]["mean"] = 0.999
    elif change == "utilization of a rank":
        rank["metrics"]["au"] = 0.97
    elif change == "a finding":
        result["findings"] = [one for one in result["findings"] if not one["invalid"]]
        result["valid"], result["verdict"] = True, "valid"
    elif change == "validity":
        result["valid"] = not result["valid"]


EDITS = ("utilization of an epoch", "all but the steps", "utilization of the run", "utilization of a rank", "a finding")


@pytest.mark.parametrize("change", [*EDITS, "validity"])
def test_results_that_were_changed_are_invalid(change: str, tmp_path: Path) -> None:
    real_run(tmp_path / "r", *TINY, "metric.au=0", url=str(tmp_path / "d"), stages=("generate", "train"))
    path = tmp_path / "r/results.json"
    result = json.loads(path.read_text())
    assert read_run(path.parent) == result
    assert any(one["invalid"] for one in result["findings"])  # a small data set
    edited(result, change)
    path.write_text(json.dumps(result))
    found = read_run(path.parent)
    assert (found["valid"], found["verdict"], found["passed"]) == (False, "invalid", False)
    first = found["findings"][0]
    assert (first["rule"], first["invalid"]) == ("as measured", True)
    assert "results.json was changed after the run" in first["reason"]
    assert "as measured" in bench_page(find_runs([path.parent]))


def test_what_a_published_workload_was_run_with_instead_stands_at_the_verdict(tmp_path: Path) -> None:
    settings = ("name=cosmoflow", "accelerator=h100", "compute.seconds=0.001", "dataset.format=tfrecord", *TINY[1:-1])
    real_run(tmp_path / "r", *settings, url=str(tmp_path / "d"), stages=("generate", "train"))
    (run,) = find_runs([tmp_path / "r"])
    changed = "this is not cosmoflow-h100 as it is published: compute.seconds is 0.001, not 0.0035"
    assert changed in verdict_text(run.result)
    result = copy.deepcopy(dict(run.result))
    result["findings"] = [one for one in result["findings"] if not one["invalid"]]
    page = Page(bench_page([RunFiles(run.folder, run.name, result)]))
    assert changed in " ".join(page.words).split("Summary")[0]
    original = read_workload("cosmoflow-h100", environ={}, dotenv=None).workload
    assert not [one for one in check_rules(run.result, original) if one.rule == PUBLISHED]


def test_the_page_begins_with_the_answer_and_what_differs(runs: list[RunFiles]) -> None:
    tiny = runs[0]
    result = copy.deepcopy(dict(tiny.result))
    result |= {"verdict": "passed", "valid": True, "passed": True}
    for name in ("au", "au_nominal"):
        result["train"][name]["mean"] = 0.998
        for epoch in result["epochs"]:
            for number, rank in enumerate(epoch["ranks"]):
                rank["metrics"][name] = 0.998 if number else 0.5
    run = RunFiles(tiny.folder, "first", result)
    ranks = result["world"]["ranks"]
    said = f"feeds {ranks - 1} of {ranks} accelerators at 99.8%, asked 90%: passed"
    assert bench_page([run]).partition("<main>")[2].startswith(f'<p class="answer">{said}')
    other = copy.deepcopy(result)
    other["plan"]["workload"]["reader"]["batch_size"] = 77
    other["train"]["au"]["mean"] = 0.499
    both = bench_page([run, RunFiles(tiny.folder, "second", other)])
    top = Page(both.partition('class="charts"')[0])
    (table,) = (one for one in top.tables if one[0][1:3] == ["first", "second"])
    assert ["reader.batch_size", "4", "77", ""] in table
    assert ["utilization", "99.80%", "49.90%", "-50.0%"] in table
