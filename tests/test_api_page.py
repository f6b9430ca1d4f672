"""docs/api.md and help(stoker) list what is public, and nothing else."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import stoker

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_code_makes_it() -> None:
    made = runpy.run_path(str(DOCS / "make_api.py"))["api_page"]()
    assert (DOCS / "api.md").read_text(encoding="utf-8") == made, "run `make api`"


def test_help_and_the_page_have_all_names() -> None:
    public = {name for name in stoker.__all__ if not name.startswith("_")}
    assert set(re.findall(r"^    (\w+) ", stoker.__doc__ or "", re.MULTILINE)) == public
    assert set(re.findall(r"^`(\w+)", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)) == public


def test_the_error_for_a_name_elsewhere_names_its_module() -> None:
    for name, where in {"RoundRobin": "stoker.partitions", "Coordination": "stoker.coordination"}.items():
        with pytest.raises(AttributeError, match=f"it is in {where}"):
            getattr(stoker, name)
