"""Checks of a page of the documents: its code runs, its links lead somewhere, it is short, its commands can be read."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from patience import PATIENCE
from stoker import cli

ROOT = Path(__file__).parent.parent
MOST_LINES = 160


def named(page: Path) -> str:
    """A page's path in the repository."""
    return str(page.relative_to(ROOT))


def check_code(page: Path, tmp_path: Path) -> None:
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


def check_links(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}: there are {sorted(anchors(target))}"


def commands(page: Path) -> list[list[str]]:
    """The arguments of each ``stoker`` command in the shell blocks of a page."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("stoker ")]


def check_commands(page: Path) -> None:
    for given in commands(page):
        if any(one.startswith("--help") for one in given) or (given[0] in cli.OF_BENCH and not _has_bench()):
            continue
        parser = cli.CommandParser(exit_on_error=False)
        cli.find_command(given[0]).add(parser.add_subparsers())
        cli._parse(parser, given)


@cache
def _has_bench() -> bool:
    return find_spec("stoker_bench") is not None
