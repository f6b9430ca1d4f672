"""The documents hold: their code runs, their links lead somewhere, their pages are short, and an index lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import MOST_LINES, ROOT, check_code, check_commands, check_links, links, named
from stoker import cli, errors

README = ROOT / "README.md"
INDEX = ROOT / "docs" / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    README,
    ROOT / "examples" / "README.md",
    *DOCS,
    *sorted((ROOT / "benchmarks").glob("*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
]
MOST_LINES_OF_THE_README = 100

each_page = pytest.mark.parametrize("page", PAGES, ids=named)


@pytest.mark.processes
@each_page
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    check_code(page, tmp_path)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    check_links(page)


@each_page
def test_pages_are_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= (MOST_LINES_OF_THE_README if page == README else MOST_LINES)


def test_the_index_lists_every_page() -> None:
    listed = {(INDEX.parent / path).resolve() for path, _ in links(INDEX)}
    assert not {str(page.relative_to(ROOT)) for page in DOCS if page not in listed and page != INDEX}


def test_pages_that_the_code_names_exist() -> None:
    for module in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"\bdocs/[\w/]+\.md\b", module.read_text()):
            assert (ROOT / name).exists(), f"{module.relative_to(ROOT)} names {name}"


def test_the_glossary_has_fewer_than_twenty_words() -> None:
    rows = re.findall(r"^\| \*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert 0 < len(rows) < 20


@each_page
def test_commands_have_these_arguments(page: Path) -> None:
    check_commands(page)


def test_the_command_line_page_lists_every_command() -> None:
    listed = re.findall(r"^\| `stoker (\w+)", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert set(listed) == {*cli.COMMANDS, *cli.OF_BENCH}


def test_the_page_on_errors_names_every_error() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    assert not [name for name in errors.__all__ if f"`{name}`" not in text and f".{name}`" not in text]


def test_the_benchmarks_page_names_every_benchmark() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert not [one.name for one in (ROOT / "benchmarks").glob("*.py") if f"{one.name}" not in text]
