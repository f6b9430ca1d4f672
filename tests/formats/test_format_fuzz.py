"""Damaged files of every format give samples or an error of stoker's own that names the shard, in bounded memory."""

from __future__ import annotations

import pytest
from fuzz_formats import FORMATS

from support import TESTS, run_script

# More at will: python tests/formats/fuzz_all.py --mutations 100000
COUNTS = {**dict.fromkeys(FORMATS, 3000), "arrow": 1500, "hdf5": 1500, "jpeg": 2000, "tfrecord": 2000}


@pytest.mark.parametrize("name", COUNTS)
def test_mutations_are_read_or_refused(name: str) -> None:
    (outcome,) = run_script([TESTS / "formats" / "fuzz_formats.py", name, COUNTS[name], 1], timeout=280)
    assert outcome["read"] + outcome["refused"] == COUNTS[name]
    assert outcome["refused"] > COUNTS[name] // 8  # else nothing was damaged
    assert outcome["read"] > COUNTS[name] // 25  # else nothing was read
    assert outcome["peak"] < 300
