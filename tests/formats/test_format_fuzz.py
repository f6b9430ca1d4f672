"""Damaged files of every format give samples or an error of stoker's own that names the shard, in bounded memory."""

from __future__ import annotations

import pytest

from support import TESTS, run_script

# More at will: python tests/formats/fuzz_formats.py FORMAT COUNT SEED
COUNTS = {
    "arrow": 1500,
    "hdf5": 1500,
    "jpeg": 2000,
    "npy": 3000,
    "npz": 3000,
    "png": 2000,
    "tar": 3000,
    "tfrecord": 3000,
}


@pytest.mark.parametrize("name", COUNTS)
def test_mutations_are_read_or_refused(name: str) -> None:
    (outcome,) = run_script([TESTS / "formats" / "fuzz_formats.py", name, COUNTS[name], 1], timeout=280)
    assert outcome["read"] + outcome["refused"] == COUNTS[name]
    assert outcome["refused"] > COUNTS[name] // 8  # else nothing was damaged
    assert outcome["read"] > COUNTS[name] // 50  # else nothing was read
    assert outcome["peak"] < 300
