"""The documents hold: their code runs, their links lead somewhere, they are short, and the README lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import MOST_LINES, check_code, check_commands, check_links, links, named

HERE = Path(__file__).parents[1]
README = HERE / "README.md"
DOCS = sorted((HERE / "docs").rglob("*.md"))

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
