"""The documents hold: their code runs, their links lead somewhere, their pages are short, and an index lists all of them."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from patience import PATIENCE
from stoker import cli, errors

ROOT = Path(__file__).parent.parent
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
MOST_LINES = 160
MOST_LINES_OF_THE_README = 100

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.processes
@each_page
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page, one after the other, in an empty directory."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if not blocks:
        pytest.skip("no code")
    python = Path(sys.executable)
    environment = re.search(r"<!-- environment (\w+) -->", page.read_text())
    if environment is not None:
        python = ROOT / ".venvs" / environment[1] / "bin" / "python"
        if not python.exists():
            pytest.skip(f"no environment {environment[1]!r}: make trainers")
    # Workers are forked (the default on Linux until Python 3.14), so the blocks need no main guard.
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [str(python), "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


@cache
def anchors(page: Path) -> frozenset[str]:
    """Names of the headings of a page as GitHub links to them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def links(page: Path) -> list[tuple[str, str]]:
    """Path and anchor of each link of a page that does not leave the repository."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text)
    return [(path, anchor) for path, anchor in found if not path.startswith(("http://", "https://"))]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}: there are {sorted(anchors(target))}"


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


def commands(page: Path) -> list[list[str]]:
    """The arguments of each ``stoker`` command in the shell blocks of a page."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("stoker ")]


@each_page
def test_commands_have_these_arguments(page: Path) -> None:
    for given in commands(page):
        if any(one.startswith("--help") for one in given):
            continue
        parser = argparse.ArgumentParser(exit_on_error=False)
        import_module(f"stoker.cli.{given[0]}").add(parser.add_subparsers())
        cli._parse(parser, given)


def test_the_command_line_page_lists_every_command() -> None:
    listed = re.findall(r"^\| `stoker (\w+)", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(cli.COMMANDS)


def test_the_page_on_errors_names_every_error() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    assert not [name for name in errors.__all__ if f"`{name}`" not in text and f".{name}`" not in text]


def test_the_benchmarks_page_names_every_benchmark() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert not [one.name for one in (ROOT / "benchmarks").glob("*.py") if f"{one.name}" not in text]
