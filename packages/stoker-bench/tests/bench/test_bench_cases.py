"""Each case of the table, as real processes: no wrong number passes, and the page says what comes of it."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from cases_table import CASES, Case, Seen, open_store, rows_of_page, run_case

from s3server import S3Server

Ends = dict[str, "Future[Seen]"]


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest, s3_server: S3Server) -> Ends:
    """The ends of all cases that are tested, some of which run at once: those first that wait until a hang is noticed.

    They have ended before the first test begins: pytest changes the environment between tests, which threads would read.
    """
    tests = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    given = [one for item in tests if isinstance(item, pytest.Function) for one in item.callspec.params.values()]
    cases = [one for one in given if isinstance(one, Case)]
    cases.sort(key=lambda case: not re.search("hang|stopped", case.name))
    with open_store(s3_server) as store, ThreadPoolExecutor(4) as pool:
        found = {case.name: pool.submit(run_case, case, store) for case in cases}
        wait(found.values())
    return found


@pytest.mark.processes
@pytest.mark.s3
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-").strip("`"))
def test_a_case_ends_as_the_table_says(case: Case, ends: Ends) -> None:
    seen = ends[case.name].result()
    assert (seen.verdict, seen.code, seen.kept) == (case.verdict, case.code, case.kept), seen.said
    assert re.search(case.says, seen.said, re.MULTILINE), seen.said


def test_the_page_has_each_case_as_it_is() -> None:
    shown = {name: cells[2:] for name, cells in rows_of_page().items()}
    assert shown == {case.name: [case.verdict, str(case.code), case.kept] for case in CASES}


def test_only_runs_whose_number_is_right_pass() -> None:
    passed = [case.name for case in CASES if case.code == 0 or case.verdict == "passed"]
    assert passed == ["nothing is wrong", "more files: the first ones are read", "resized NPZ", "resized HDF5"]
