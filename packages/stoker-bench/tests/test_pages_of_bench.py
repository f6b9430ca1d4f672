"""The documents hold: their code runs, their links lead somewhere, they are short, and the README lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import MOST_LINES, check_code, check_commands, check_links, commands, links, named
from stoker.cli import main
from stoker.cli.running import ExitCode

HERE = Path(__file__).parents[1]
README = HERE / "README.md"
DOCS = sorted((HERE / "docs").rglob("*.md"))

SMALL = {"168": "48", "140MB": "4kb", "68MB": "1kb", "unet3d-h100": "small.yaml"}
"""What the commands of the README are run with instead, to take less time and room."""
SMALL_WORKLOAD = """
like: unet3d-h100
compute: {seconds: 0.001}
dataset: {files: 48, record_bytes: 4096, record_bytes_stdev: 1024, resize_bytes: 0}
train: {epochs: 1}
"""

each_page = pytest.mark.parametrize("page", [README, *DOCS], ids=named)


@pytest.mark.processes
@each_page
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    check_code(page, tmp_path)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    check_links(page)


@each_page
def test_pages_are_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= MOST_LINES


@each_page
def test_commands_have_these_arguments(page: Path) -> None:
    check_commands(page)


def test_the_readme_lists_every_page() -> None:
    listed = {(README.parent / path).resolve() for path, _ in links(README)}
    assert not {named(page) for page in DOCS if page not in listed}


def test_pages_that_the_code_names_exist() -> None:
    for module in (HERE / "src").rglob("*.py"):
        for name in re.findall(r"\bdocs/[\w/]+\.md\b", module.read_text()):
            assert (HERE / name).exists(), f"{module.relative_to(HERE)} names {name}"


@pytest.mark.processes
def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL_WORKLOAD)
    given = [[SMALL.get(word, word.replace("/data/", f"{tmp_path}/")) for word in words] for words in commands(README)]
    assert [words[0] for words in given] == ["generate", "bench", "bench", "bench", "simulate"]
    for words in given:
        invalid = words[:2] == ["bench", "run"]  # as its data fits in memory
        assert main(words) == (ExitCode.PROBLEMS if invalid else ExitCode.FINE), words
    assert Path("runs/first/report.html").exists()
    assert Path("order.html").exists()
