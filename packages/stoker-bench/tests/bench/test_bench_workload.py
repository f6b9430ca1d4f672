"""Workload files: strict, with lines in their errors, and one order of precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker_bench.settings.duration import Duration
from stoker_bench.settings.sources import default_yaml, read_workload, shipped
from stoker_bench.settings.workload import Workload, as_plain
from stoker_bench.settings.yaml import parse_yaml


def read(
    tmp_path: Path, text: str, *arguments: str, environ: dict[str, str] | None = None, dotenv: str = ""
) -> Workload:
    (tmp_path / "w.yaml").write_text(text)
    (tmp_path / ".env").write_text(dotenv)
    found = read_workload(tmp_path / "w.yaml", arguments, environ=environ or {}, dotenv=tmp_path / ".env")
    return found.workload


def test_the_commented_file_parses_to_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, default_yaml()) == Workload()
    assert all(line.lstrip().startswith("#") or ":" in line or not line.strip() for line in default_yaml().splitlines())


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_workload_parses_and_is_written_back_as_the_same(name: str, tmp_path: Path) -> None:
    workload = read_workload(name, environ={}, dotenv=None).workload
    assert read(tmp_path, default_yaml(workload)) == workload
    assert workload != Workload()
    assert shipped()[name]


def test_the_field_s_parameters_are_shipped() -> None:
    found = {name: read_workload(name, environ={}, dotenv=None).workload for name in shipped()}
    flux, dlrm = found["flux-b200"], found["dlrm-b200"]
    assert flux.dataset.sample_bytes == 2_164_832
    assert dlrm.dataset.sample_bytes == 761
    assert len(dlrm.dataset.read_columns or ()) == 40
    assert found["unet3d-h100"].compute.seconds == Duration(mean=0.323)
    assert found["llama-405b-checkpoint"].model.pipeline == 32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name: x\nreader:\n  batch_sice: 4\n",
            "w.yaml, line 3: reader.batch_sice is not a setting; did you mean 'batch_size'",
        ),
        ("name: x\nreader: {}\nname: y\n", "w.yaml, line 3: 'name' is given twice; first at .*line 1"),
        ("reader:\n  batch_size: four\n", "line 2: reader.batch_size must be a whole number, got 'four'"),
        ("reader:\n  batch_size: true\n", "line 2: reader.batch_size must be a whole number, got True"),
        ("reader:\n  last_batch: off\n", "line 2: reader.last_batch must be one of drop, keep, got False .YAML reads"),
        ("reader: [1]\n", "line 1: reader is a section of settings"),
        ("a: &x 1\nb: *x\n", "line 1: anchors"),
        ("reader:\n - {\n", "line 3: not YAML"),
        ("dataset:\n  record_bytes: 1.5\n", "line 2: dataset.record_bytes: 1.5 is not a whole number"),
        ("compute:\n  seconds: {mean: 1, stdev: x}\n", "line 2: compute.seconds: parameters must be numbers"),
        (
            "compute:\n  seconds: {distribution: gamma, mean: 1}\n",
            "line 2: compute.seconds: a gamma duration needs shape, scale",
        ),
        (
            "stages:\n  - train\n  - evaluate\n",
            "evaluation needs files: dataset.files_eval is 0 .stages: .*w.yaml, line 1",
        ),
        ("metric:\n  au: 90\n", "line 2: metric: au is a part of 1"),
        ("train:\n  epochs: 0\n", "line 2: train: epochs must be at least 1, got 0"),
        ("dataset:\n  columns:\n    - {name: a, dtype: flaot32}\n", "line 3: .*'flaot32' is not a dtype"),
        (
            "dataset:\n  columns: [{name: a}]\n  record_bytes_stdev: 5\n",
            "columns have a fixed size.*record_bytes_stdev: .*line 3",
        ),
        ("compute: {kind: torch}\nreader: {decode: false}\n", "reader.decode is false .*line 1.*line 2"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_arguments_hold_over_the_file_over_the_environment_over_dotenv(tmp_path: Path) -> None:
    text = "reader: {batch_size: 3}\n"
    environ = {"STOKER_BENCH_READER__BATCH_SIZE": "2", "STOKER_BENCH_READER__PREFETCH": "7"}
    dotenv = "export STOKER_BENCH_READER__PREFETCH=9\nSTOKER_BENCH_READER__THREADS='5'\nOTHER=1\n"
    got = read(tmp_path, text, "reader.batch_size=4", environ=environ, dotenv=dotenv).reader
    assert (got.batch_size, got.prefetch, got.threads) == (4, 7, 5)
    assert read(tmp_path, text, environ=environ, dotenv=dotenv).reader.batch_size == 3
    assert read(tmp_path, "name: x\n", environ=environ, dotenv=dotenv).reader.batch_size == 2


def test_each_setting_knows_where_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: x\nreader:\n  prefetch: 3\n")
    found = read_workload(
        tmp_path / "w.yaml", ["reader.batch_size=4"], environ={"STOKER_BENCH_TRAIN__EPOCHS": "2"}, dotenv=None
    )
    assert found.origins["reader.batch_size"] == "the argument reader.batch_size=4"
    assert found.origins["reader.prefetch"].endswith("w.yaml, line 3")
    assert found.origins["train.epochs"] == "the variable STOKER_BENCH_TRAIN__EPOCHS"


def test_a_variable_that_means_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the variable STOKER_BENCH_READER__BACTH_SIZE: reader.bacth_size is not a setting"
    ):
        read(tmp_path, "name: x\n", environ={"STOKER_BENCH_READER__BACTH_SIZE": "2"})


def test_an_argument_that_means_nothing_is_an_error(tmp_path: Path) -> None:
    two = ["vectors.count=5", "vectors.queries=3"]
    with pytest.raises(ConfigError, match=r"^the argument vectors.count=5: vectors: count must be"):
        read_workload("vectors-diskann", two, environ={}, dotenv=None)
    with pytest.raises(ConfigError, match=r"the argument reader.sice=2: reader.sice is not a setting"):
        read(tmp_path, "name: x\n", "reader.sice=2")
    with pytest.raises(ConfigError, match=r"the argument \+\+reader.batch_size=2: DLIO's overrides begin with"):
        read(tmp_path, "name: x\n", "++reader.batch_size=2")


def test_an_unknown_workload_names_those_that_are_shipped() -> None:
    with pytest.raises(ConfigError, match=r"neither a file nor a shipped workload; those are .*flux-b200"):
        read_workload("flux", environ={}, dotenv=None)


def test_sizes_counts_and_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    got = read(tmp_path, "dataset: {record_bytes: 64MB, files: 10k}\ncompute: {seconds: 1e-3}\n")
    assert (got.dataset.record_bytes, got.dataset.files, got.compute.seconds.mean) == (64 << 20, 10_000, 1e-3)


@given(
    st.one_of(
        st.builds(Duration, st.just("constant"), mean=st.floats(0, 10)),
        st.builds(Duration, st.just("normal"), mean=st.floats(0, 10), stdev=st.floats(0, 3)),
        st.builds(Duration, st.just("exponential"), scale=st.floats(0, 10)),
    ),
    st.integers(1, 1 << 20),
    st.booleans(),
)
def test_any_workload_is_written_and_read_as_the_same(seconds: Duration, batch: int, decode: bool) -> None:
    from stoker_bench.settings.schema import build, tree_of

    plain = as_plain(Workload()) | {
        "compute": {"seconds": seconds.plain},
        "reader": {"batch_size": batch, "decode": decode},
    }
    got = build(Workload, tree_of(plain, "here"))
    assert got.compute.seconds == seconds
    assert build(Workload, tree_of(as_plain(got), "here")) == got


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * (1 << 17), "nested too deeply"),
        ("{a: " * (1 << 15), "nested too deeply"),
        ("? " * (1 << 16), "nested too deeply"),
        ("- " * (1 << 16), "nested too deeply"),
        ("a: 1" + ":1" * (1 << 16), "more than 4096 characters"),
        ("a: " + "9" * (1 << 17), "more than 4096 characters"),
        ("a: 1\n" * (1 << 17), "more than"),
    ],
)
def test_yaml_is_bounded_before_anything_is_made_of_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_yaml(text, "file.yaml")
