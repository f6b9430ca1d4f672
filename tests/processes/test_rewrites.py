"""Datasets that are written anew while processes read them through shared caches: no sample of another dataset or version."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_script

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("no_debris")]


def test_readers_of_rewritten_datasets_get_one_version_or_an_error() -> None:
    (counts,) = run_script([Path(__file__).parent / "rewrite_many.py", "--seconds", 8])
    assert counts["killed"] > 0
    assert counts["rewritten"] > 0
    assert counts["disk: read"] > 0
    assert counts["in place: read"] > 0
