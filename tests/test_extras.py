"""Remedies of messages: every extra that one names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_extras_that_messages_name_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    named = {name: path.name for path in files for name in re.findall(r"stoker\[([\w-]+)\]", path.read_text())}
    assert named, "messages name no extra any more"
    assert {name: path for name, path in named.items() if name not in known} == {}
