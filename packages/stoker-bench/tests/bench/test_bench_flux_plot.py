"""The plot of utilization against accelerators, with and without decoding: a browser shows the numbers of the runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_example import real_run

from patience import PATIENCE
from stoker.cli import main

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TINY = (
    *("dataset.format=npz", "dataset.files=24", "dataset.samples_per_file=1", "dataset.record_bytes=20000"),
    *("reader.batch_size=2", "reader.threads=1", "train.epochs=2", "train.barrier=false", "storage.cache=keep"),
)
TITLE = "utilization by number of accelerators"


class Plot(HTMLParser):
    """One chart: lines by name, texts along the axes with their places, and the table below it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: dict[str, list[tuple[float, float]]] = {}
        self.texts: list[tuple[dict[str, str], str]] = []
        self.rows: list[list[str]] = []
        self.exact: list[tuple[int, str, Any]] = []
        self._tag = ""
        self._at: dict[str, str] = {}
        self._points: list[tuple[float, float]] | None = None
        start = page.index(f'aria-label="{TITLE}"')
        self.feed(page[page.rindex("<svg", 0, start) : page.index("</table>", start)])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "polyline":
            pairs = (pair.split(",") for pair in found["points"].split())
            self._points = [(float(across), float(up)) for across, up in pairs]
        elif tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        elif tag == "data":
            self.exact.append((int(found["data-run"]), found["data-path"], json.loads(found["value"])))
        self._tag, self._at = tag, found

    def handle_endtag(self, tag: str) -> None:
        if tag == "polyline":
            self._points = None
        self._tag = "td" if tag == "data" else ""

    def handle_data(self, data: str) -> None:
        if self._tag == "title" and self._points is not None:
            self.lines[data] = self._points
        elif self._tag == "text":
            self.texts.append((self._at, data))
        elif self.rows and self.rows[-1] and self._tag in {"td", "th", "data"}:
            self.rows[-1][-1] += data

    def read_off(self, name: str) -> list[tuple[float, float]]:
        """A line's points, by the numbers along both axes: accelerators and percent."""
        across = [(float(at["x"]), float(text)) for at, text in self.texts if _number(text) and "middle" in str(at)]
        # The numbers upwards stand four pixels below the lines that they belong to.
        up = [(float(at["y"]) - 4, float(text)) for at, text in self.texts if _number(text) and "end" in str(at)]
        return [(_along(across, x), _along(up, y)) for x, y in self.lines[name]]


def _number(text: str) -> bool:
    return re.fullmatch(r"[\d.]+", text) is not None


def _along(marks: list[tuple[float, float]], place: float) -> float:
    (first, low), (last, high) = marks[0], marks[-1]
    return low + (place - first) / (last - first) * (high - low)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One and two accelerators, with and without decoding, and one of them twice."""
    base = tmp_path_factory.mktemp("plot")
    real_run(base / "generated", *TINY, url=str(base / "data"), stages=("generate",))
    runs = [(1, True), (1, False), (2, True), (2, False), (2, True)]
    for number, (ranks, decode) in enumerate(runs):
        settings = (*TINY, f"compute.seconds={0.004 * ranks}", f"reader.decode={str(decode).lower()}")
        real_run(base / "runs" / f"{number}-{ranks}", *settings, ranks=ranks, url=str(base / "data"))
    return base / "runs"


def in_browser(file: Path, profile: Path) -> str:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--enable-logging=stderr", f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "CONSOLE" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("browser", [False, pytest.param(True, marks=pytest.mark.processes)])
def test_the_plot_and_its_table_show_the_utilization_of_the_runs(results: Path, tmp_path: Path, browser: bool) -> None:
    if browser and BROWSER is None:
        pytest.skip("no chromium: apt-get install chromium")
    file = tmp_path / "page.html"
    assert main(["bench", "report", str(results), "--output", str(file)]) == 0
    plot = Plot(in_browser(file, tmp_path / "profile") if browser else file.read_text())
    found = [json.loads((folder / "results.json").read_text()) for folder in sorted(results.iterdir())]
    aus: dict[tuple[bool, int], list[float]] = {}
    for one in found:
        decode = one["plan"]["workload"]["reader"]["decode"]
        aus.setdefault((decode, one["world"]["ranks"]), []).append(one["train"]["au"]["mean"])
    assert {key: len(values) for key, values in aus.items()} == {
        (True, 1): 1,
        (False, 1): 1,
        (True, 2): 2,
        (False, 2): 1,
    }
    kind = found[0]["storage"]["kind"]
    names = {True: f"stoker, {kind}, decoded", False: f"stoker, {kind}, bytes alone"}
    assert set(plot.lines) == set(names.values())
    for decode, name in names.items():
        expected = [
            (count, 100 * sum(values) / len(values)) for (one, count), values in sorted(aus.items()) if one == decode
        ]
        for (accelerators, percent), (count, au) in zip(plot.read_off(name), expected, strict=True):
            assert accelerators == pytest.approx(count, abs=0.01)
            assert percent == pytest.approx(au, abs=0.1)  # a tenth of a pixel and its rounding
    assert sorted(plot.exact) == sorted(
        [(k, "world.ranks", one["world"]["ranks"]) for k, one in enumerate(found)]
        + [(k, "train.au.mean", one["train"]["au"]["mean"]) for k, one in enumerate(found)]
    )
    assert plot.rows[0] == ["loader and storage", "accelerators", "run", "utilization"]
    assert {tuple(row[1:]) for row in plot.rows[1:]} == {
        (str(one["world"]["ranks"]), folder.name, f"{one['train']['au']['mean']:.2%}")
        for one, folder in zip(found, sorted(results.iterdir()), strict=True)
    }
