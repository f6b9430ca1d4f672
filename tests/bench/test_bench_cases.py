"""Each case of the table, as real processes: no wrong number passes, and the page says what comes of it."""

from __future__ import annotations

import re

import pytest
from cases_table import CASES, Case, rows_of_page, run_case

from s3server import S3Server


@pytest.mark.processes
@pytest.mark.s3
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-").strip("`"))
def test_a_case_ends_as_the_table_says(case: Case, s3_server: S3Server) -> None:
    seen = run_case(case, s3_server)
    assert (seen.verdict, seen.code, seen.kept) == (case.verdict, case.code, case.kept), seen.said
    assert re.search(case.says, seen.said, re.MULTILINE), seen.said


def test_the_page_has_each_case_as_it_is() -> None:
    shown = {name: cells[2:] for name, cells in rows_of_page().items()}
    assert shown == {case.name: [case.verdict, str(case.code), case.kept] for case in CASES}


def test_only_runs_whose_number_is_right_pass() -> None:
    passed = [case.name for case in CASES if case.code == 0 or case.verdict == "passed"]
    assert passed == ["nothing is wrong", "more files: the first ones are read", "resized NPZ", "resized HDF5"]
