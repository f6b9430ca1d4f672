"""Damaged files of the formats that take longest to read, with the other half of the tests; see test_format_fuzz.py."""

from __future__ import annotations

import sys

import pytest

from support import TESTS

sys.path.insert(0, str(TESTS / "formats"))

from fuzz_all import HEAVY, run_tested


@pytest.mark.processes
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", HEAVY)
def test_mutations_are_read_or_refused(name: str) -> None:
    run_tested(name)
