"""The report's charts: where bytes came from, asked and real computation, latencies, names; and the user's own words."""

from __future__ import annotations

import copy
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_example import real_run, variant, with_setting

from stoker.cli import main
from stoker_bench.cli.bench.charts.common import named_axis
from stoker_bench.cli.bench.page import bench_page
from stoker_bench.cli.render.charts import Axis, Chart
from stoker_bench.cli.render.html import Table
from stoker_bench.cli.render.picture import COLOURS
from stoker_bench.results.report_files import RunFiles, find_runs
from stoker_bench.results.report_steps import delivered_rate

TINY = (
    *("dataset.format=npz", "dataset.files=8", "dataset.samples_per_file=16", "dataset.record_bytes=512"),
    *("reader.batch_size=4", "reader.threads=1", "train.epochs=2", "name=tiny"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("charts")
    real_run(base / "run", *TINY, url=str(base / "data"), stages=("generate", "train"))
    return base / "run"


@pytest.fixture
def run(folder: Path) -> RunFiles:
    return find_runs([folder])[0]


def titles(text: str) -> list[str]:
    """What the pieces of all charts say of themselves."""
    return [unescape(one) for one in re.findall(r"<title>([^<]*)</title>", text)]


def stored(run: RunFiles, *, local: bool, **values: Any) -> RunFiles:
    """The run with two epochs of two seconds, of a device or of objects."""
    moments = ({"began_at": 100.0, "ended_at": 102.0}, {"began_at": 103.0, "ended_at": 105.0})
    uncounted = {"requests": None, "storage_series": None}
    made = variant(run, [each | uncounted | values for each in moments], a_repeat=2)
    made.result["storage"]["local"] = local
    made.result["requests"]["train"] = None
    return made


def test_bytes_of_the_device_the_page_cache_and_the_network_stand_apart(run: RunFiles) -> None:
    some = {"storage_bytes": 8e6, "storage_bytes_per_second": 4e6, "read_bytes": 20e6}
    said = titles(bench_page([stored(run, local=True, **some)]))
    assert "epoch 1: 4 MB/s of the device" in said
    assert "epoch 1: 6 MB/s from the page cache" in said
    assert not [one for one in said if "of the network" in one]
    # A rate that holds for the last quarter of an epoch is drawn there.
    bars = r'<rect class="bar"[^>]* x="([\d.]+)" width="([\d.]+)"[^>]*><title>epoch 1: '
    whole = re.findall(f"{bars}4 MB/s of the device", bench_page([stored(run, local=True, **some)]))
    late = bench_page([stored(run, local=True, **some | {"storage_bytes_per_second": 16e6})])
    (begun, width), (later, part) = whole[0], re.findall(f"{bars}16 MB/s of the device", late)[0]
    assert float(part) == pytest.approx(float(width) / 4, abs=3)
    assert float(later) + float(part) == pytest.approx(float(begun) + float(width), abs=3)
    # What a process reads of sockets and of its own code is not the page cache's share of objects.
    said = titles(bench_page([stored(run, local=False, **some)]))
    assert "epoch 0: 4 MB/s of the network" in said
    assert not [one for one in said if "of the device" in one or "page cache" in one]
    # Mapped files need no read calls.
    said = titles(bench_page([stored(run, local=True, **some | {"read_bytes": 10})]))
    assert not [one for one in said if "page cache" in one]
    # Where nobody knows what came from storage, only what was delivered is drawn.
    unknown = dict.fromkeys(some)
    text = bench_page([stored(run, local=True, **unknown)])
    assert "epoch 1: delivered to the steps" in " ".join(titles(text))
    assert 'data-path="epochs.0.storage_bytes_per_second"' not in text


def test_storage_comes_before_what_it_did_to_the_training(run: RunFiles) -> None:
    text = bench_page([run])
    headings = re.findall(r"<h2>([^<]*)</h2>", text)
    assert headings[:3] == ["Storage over time", "Requests: latency", "Requests: distribution of latency"]
    tiles = re.findall(r'<div class="tile"><b>.*?</b><span>([^<]*)</span>', text)
    assert tiles[:3] == ["verdict", "bytes a second from storage", "requests a second to storage"]


def test_times_that_no_run_has_are_not_drawn(run: RunFiles) -> None:
    for began, ended in ((None, 5.0), (5.0, None), (5.0, 4.0), (-1e308, 1e308), (0.0, 1e300)):
        text = bench_page([variant(run, [{"began_at": began, "ended_at": ended}])])
        assert "Storage over time" not in text
        assert "nan" not in text


@pytest.mark.parametrize("width", [1e9, 1e308])
def test_a_series_of_more_time_than_its_epoch_is_not_drawn(run: RunFiles, width: float) -> None:
    series = {"began_at": 0.0, "bin_seconds": width, "bytes": {"device": [7, 8]}, "requests": {}, "block_device": None}
    text = bench_page([stored(run, local=True, storage_series=series)])
    assert not [one for one in titles(text) if "over time" in one]
    assert not [one for one in re.findall(r'points="([^"]*)"', text) if "nan" in one or "inf" in one]


def test_the_delivered_rate_holds_all_bytes(run: RunFiles) -> None:
    epoch = run.result["epochs"][1]
    found = delivered_rate(run, epoch, 5)
    assert found is not None
    edges, rates = found
    assert edges[-1] == 0
    assert 1 < len(rates) <= 5
    assert (rates * np.diff(edges)).sum() == pytest.approx(epoch["bytes"])
    assert delivered_rate(run, epoch | {"epoch": 9}, 5) is None


def test_pages_of_many_epochs_stay_small(run: RunFiles) -> None:
    bins = {"device": [1000] * 100}
    series = {"began_at": 0.0, "bin_seconds": 0.01, "bytes": bins, "requests": bins, "block_device": None}
    epochs = [{"began_at": float(k), "ended_at": k + 1.0, "storage_series": series} for k in range(500)]
    lines = re.findall(r'<polyline class="line"[^>]* points="([^"]*)"', bench_page([variant(run, epochs)]))
    points = sum(len(one.split()) for one in lines)
    assert 1000 <= points < 6000
    assert len(bench_page([variant(run, epochs)])) < 2_000_000


def test_both_utilizations_and_both_computations_are_drawn(run: RunFiles) -> None:
    values = {"au": 0.92, "au_nominal": 0.46, "compute_drawn": 0.005, "compute_measured": 0.01}
    one = variant(run, [values, values], name="busy", a_repeat=2)
    text = bench_page([one])
    assert "busy, epoch 1: nominal 46.00%" in titles(text)
    assert {"0, drawn: 5 ms", "0, measured: 10 ms", "1, measured: 10 ms"} <= set(titles(text))
    assert "<td>+100.00%</td>" in text
    # Of several runs, side by side.
    train = dict(one.result["train"] or {})
    for name, value in values.items():
        train[name] = {"mean": value, "stdev": 0.0, "min": value, "max": value, "count": 2}
    made = RunFiles(one.folder, "busy", dict(one.result) | {"train": train})
    said = titles(bench_page([run, made]))
    assert "busy, measured: 92.00%, 92.00% to 92.00% of 2 epochs" in said
    assert "busy, nominal: 46.00%, 46.00% to 46.00% of 2 epochs" in said
    # And each of their epochs.
    assert {"busy, 0, drawn: 5 ms", "busy, 1, measured: 10 ms"} <= set(said)
    assert {"busy, 0, measured: 92.00%", "busy, 1, nominal: 46.00%"} <= set(said)
    assert "busy, 1: computing 92.00%" in said
    card = bench_page([run, made]).split("<h2>Utilization, run by run</h2>")[1].split("</section>")[0]
    assert re.findall(r"<tr><td>(busy, \d)</td><td>nominal</td>", card) == ["busy, 0", "busy, 1"]
    several = bench_page([run, variant(run, [values] * 200, name="long")])
    assert "Drawn are the first 96 of 202 epochs." in several


def test_epochs_have_the_names_that_the_terminal_gives_them(run: RunFiles) -> None:
    text = bench_page([run])
    table = text[text.index("<h2>Epochs</h2>") :]
    assert "<tr><td>0</td>" in table
    assert "<tr><td>1</td>" in table
    again = with_setting(variant(run, [{}, {}, {}, {"kind": "valid"}], a_repeat=2), "train.repeats", 2)
    text = bench_page([again])
    table = text[text.index("<h2>Epochs</h2>") :]
    assert re.findall(r"<tr><td>([^<]*)</td>", table)[:4] == ["0.0", "0.1", "1.0", "eval 1.1"]
    assert "1.0: computing" in " ".join(titles(text))


@pytest.mark.processes
def test_latencies_and_the_share_of_the_host_are_drawn(tmp_path: Path) -> None:
    model = ("model.layers=2", "model.hidden_size=256", "model.attention_heads=4", "model.kv_heads=2")
    users = ("users=4", "seconds=0", "paced=false", "requests=60", "memory_bytes=1048576", "workers=2")
    kinds = "kv_cache.kinds=[{name: short, context: [50, 100]}, {name: long, context: [200, 400]}]"
    given = (*model, kinds, *(f"kv_cache.{one}" for one in users))
    real_run(tmp_path / "kv", *given, url=str(tmp_path / "entries"), stages=("kv_cache",))
    small = ("count=500", "dimension=16", "degree=12", "queries=50", "workers=2", "repeats=2")
    vectors = tuple(f"vectors.{one}" for one in small)
    real_run(tmp_path / "vectors", *vectors, url=str(tmp_path / "index"), stages=("vectors",))
    kv, found = find_runs([tmp_path / "kv", tmp_path / "vectors"])

    text = bench_page([kv])
    assert {"read storage", "write storage", "read memory", "write memory"} <= set(titles(text))
    done = kv.result["kv_cache"]["repeats"][0]["tiers"]["storage"]["read"]
    path = "kv_cache.repeats.0.tiers.storage.read"
    for name in ("latency.p99", "device_latency.p50", "host_share", "bytes_per_second"):
        value: Any = done
        for part in name.split("."):
            value = value[part]
        assert f'<data value="{json.dumps(value)}" data-run="0" data-path="{path}.{name}">' in text
    assert "size of a request" in text
    assert not [one for one in titles(text) if one.startswith("read accelerator")]

    text = bench_page([found])
    assert {"queries 0", "reads alone 0", "queries 1", "reads alone 1"} <= set(titles(text))
    both = titles(bench_page([kv, found]))
    assert "kv: read storage" in both
    assert "vectors: queries 1" in both

    # Of a mapped index nobody knows whose time it is.
    mapped = copy.deepcopy(dict(found.result))
    mapped["vectors"]["unit"] = 0
    text = bench_page([RunFiles(found.folder, "mapped", mapped)])
    assert "Request latency" in text
    assert "Share of the host" not in text
    assert "device_latency" not in text


# -- axes of names -------------------------------------------------------------------------------------------------


def drawn(names: list[str]) -> str:
    chart = Chart("x", named_axis("run", names), Axis("y", 0, 1))
    chart.bar(0.6, 1.4, 0.5, "bar")
    return chart.svg()


def test_names_that_do_not_fit_side_by_side_are_aslant() -> None:
    short = drawn(["stoker", "torch"])
    assert ">stoker<" in short
    assert "rotate(-35" not in short
    assert 'viewBox="0 0 540 260"' in short
    long = drawn([f"results-of-a-long-name-{k}" for k in range(12)])
    assert long.count("rotate(-35") == 12
    assert "<title>results-of-a-long-name-11</title>" in long
    assert ">result…g-name-11<title>" in long
    assert 'viewBox="0 0 540 260"' not in long  # room below
    many = drawn([str(k) for k in range(1000)])
    assert 1 < many.count("<title>") < 60
    assert "<script>" not in drawn(["<script>"])
    wide = Chart("x", named_axis("run", ["run1: generated, device", *"bcdef"]), Axis("y", 0, 1), width=1110).svg()
    assert wide.count("rotate(-35") == 6  # they would fit, but not with the larger letters of a narrow page
    assert ">run1: generated, device<" in wide


def test_parts_of_an_axis_are_named_where_all_have_room() -> None:
    def named(end: float) -> str:
        chart = Chart("x", Axis("s", 0, 10), Axis("y", 0, 1))
        chart.headings([(0, end, "epoch 0"), (end, 10, "epoch eval 0")])
        return chart.svg()

    assert ">epoch 0<" in named(4)
    assert ">epoch eval 0<" in named(4)
    assert ">epoch" not in named(0.5)


def test_the_utilization_that_was_asked_for_is_in_the_legend_and_hides_no_line(run: RunFiles) -> None:
    text = bench_page([run])
    assert 'class="name"' not in text
    assert '<i class="dash" style="color:var(--ink)"></i>asked for: 90%' in text


# -- stages other than training ------------------------------------------------------------------------------------


def test_generated_and_evaluated_are_on_the_page(run: RunFiles) -> None:
    """A run that only generated data had a page without a number of its own."""
    one = dict(run.result["epochs"][0])
    loader = one["loader"] | {"order": "by number, each once"}
    made = variant(run, [{}, {"kind": "valid", "loader": loader}], a_repeat=2)
    over = made.result["train"]
    made = RunFiles(run.folder, "made", {**made.result, "evaluate": over | {"au": over["au"] | {"mean": 0.875}}})
    made.result["generate"].update(made=3, kept=2, bytes=4_000_000, seconds=2.0)
    text = bench_page([made])
    assert "<b>2 MB/s</b><span>bytes a second, data set generated</span>" in text
    assert "3 files, 4 MB, in 2.00 s (2 MB/s); 2 files were there already" in text
    assert ">87.50%</data></b><span>utilization of evaluation</span>" in text
    assert f"<td>loader</td><td>stoker: {one['loader']['decoded']}, {one['loader']['parallel']}, shuffled" in text
    assert "by number, each once</td>" in text.split("<td>loader of evaluation</td>")[1].split("</tr>")[0]
    made.result["generate"].update(made=0, kept=1, bytes=0)
    text = bench_page([made])
    assert "data set generated" not in text
    assert "<td>generated</td><td>1 file was there already</td>" in text


def test_requests_have_the_colours_of_their_runs(run: RunFiles) -> None:
    """With data generated by the first of them, each run had another run's colour in these charts."""
    result = copy.deepcopy(dict(run.result))
    served = {
        "latency": dict.fromkeys(("p50", "p90", "p95", "p99", "p99.9", "max", "mean"), 0.01),
        "latency_histogram": {"to": [0.02], "count": [4]},
        "sizes": {"4096": 4},
        "count": 4,
        "per_second": 1.0,
        "bytes_per_second": 1.0,
        "mean_bytes": 4096.0,
    }
    stages = dict.fromkeys(("generate", "train", "evaluate", "save", "load"))
    result["requests"] = stages | {"train": {"device": served}}
    second = RunFiles(run.folder, "second", result)
    first = RunFiles(run.folder, "first", result | {"requests": result["requests"] | {"generate": {"device": served}}})
    sizes = bench_page([first, second]).split("<h2>Requests: size</h2>")[1].split("</section>")[0]
    assert re.findall(r'<i style="background:([^"]*)"></i>([^<]*)<', sizes) == [
        (f"{COLOURS[0]}a0", "first: generated, device"),
        (COLOURS[0], "first: device"),
        (COLOURS[1], "second: device"),
    ]


def test_a_run_keeps_its_colour_where_the_others_have_nothing_to_draw(run: RunFiles) -> None:
    """The bars of the stalls were the other run's colour, and the legend named it."""
    empty: dict[str, Any] = {"epochs": [], "train": None, "requests": None, "generate": None}
    nothing = RunFiles(run.folder, "nothing", copy.deepcopy(dict(run.result)) | empty)
    text = bench_page([nothing, run])
    for title in ("Storage over time", "Utilization over time", "Stalls", "Throughput by rank"):
        card = text.split(f"<h2>{title}</h2>")[1].split("</section>")[0]
        assert re.findall(r'<i style="background:([^"]*)"></i>([^<]*)<', card) == [(COLOURS[1], run.name)]
        fills = re.findall(r'class="(?:bar|band)"([^>]*?) (?:x|points)=', card)
        assert all(COLOURS[1] in fill for fill in fills)
    left, width = map(float, re.findall(r'<rect class="bar"[^>]* x="([\d.]+)" width="([\d.]+)"', card)[0])
    assert left + width / 2 == pytest.approx(float(re.findall(r'<text x="([\d.]+)"[^>]*>0</text>', card)[0]), abs=0.2)


# -- the user's own words ------------------------------------------------------------------------------------------


def made_page(folder: Path, *more: str) -> str:
    file = folder.parent / "own.html"
    assert main(["bench", "report", str(folder), "--output", str(file), *more]) == 0
    return file.read_text()


def test_a_title_and_a_text_of_ones_own(folder: Path, tmp_path: Path) -> None:
    described = tmp_path / "system.txt"
    described.write_text("8 NVMe drives\n<script>alert(1)</script> & a switch\n")
    text = made_page(folder, "--title", "Array <A>", "--system", str(described))
    assert "<h1>Array &lt;A&gt;</h1>" in text
    assert "<title>stoker bench: Array &lt;A&gt;</title>" in text
    assert "8 NVMe drives\n&lt;script&gt;" in text
    assert text.index("<h2>System</h2>") < text.index("<h2>Storage over time</h2>")
    assert "<h1>tiny</h1>" in made_page(folder)


def test_a_system_as_names_and_values(folder: Path, tmp_path: Path) -> None:
    described = tmp_path / "system.yaml"
    described.write_text("storage: {drives: 8, kind: NVMe}\nclients: [a, b]\nnodes: [{name: n0}, {name: n1}]\nnotes:\n")
    text = made_page(folder, "--system", str(described))
    for name, value in (("storage.drives", "8"), ("clients", "a, b"), ("nodes.1.name", "n1"), ("notes", "-")):
        assert f"<tr><td>{name}</td><td>{value}</td></tr>" in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.txt", None, "none.txt can not be read: No such file"),
        ("other.txt", b"\xff\xfe\x00", "other.txt is not text in UTF-8"),
        ("large.txt", b"x" * ((1 << 20) + 1), "large.txt has more than 1048576 bytes"),
        ("list.yaml", b"- a\n", "list.yaml: names and values are expected"),
        ("broken.yaml", b"a: [\n", "broken.yaml"),
    ],
)
def test_a_description_that_is_none_is_refused(
    name: str, content: bytes | None, said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["bench", "report", str(folder), "--system", str(tmp_path / name)]) == 1
    assert said in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_wide_tables_say_that_they_scroll_and_paper_has_a_style_of_its_own(run: RunFiles) -> None:
    text = bench_page([run])
    told = r'<div class="scroll" tabindex="0"><p>[^<]*scroll to the right[^<]*</p>'
    outside = re.sub(rf"(?s){told}\s*<table.*?</table>\s*</div>", "", text)
    assert re.findall(r'<table(?! class="pairs")', outside) == []
    assert "@media print" in text
    tables = re.findall(r'<table( class="many")?><thead>(.*?)</thead>', text)  # which has smaller letters on paper
    assert {bool(many) for many, _ in tables} == {True, False}
    assert all(bool(many) == (head.count("<th ") > 18) for many, head in tables)


def test_a_row_that_does_not_fit_its_headings_is_an_error() -> None:
    with pytest.raises(ValueError, match="rows need 2 cells: a, b"):
        Table(["a", "b"], [["1", "2"], ["1"]])
