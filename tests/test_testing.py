"""A class of tests that does not say what it tests is an error of stoker's own that says what to define."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker import World
from stoker.errors import ConfigError
from stoker.testing import EngineTests, FormatTests, LoaderTests, OrderTests, ReadOnlyStoreTests, WrittenFormatTests


class OfNPY(FormatTests):
    format = "npy"


class OfMDS(WrittenFormatTests):
    format = "mds"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (OfNPY().test_every_sample_comes_back, r"OfNPY does not define write\(folder, numbers\)"),
        (lambda: OfNPY().sample(1), r"OfNPY does not define sample\(number\)"),
        (FormatTests().test_the_descriptor_leads_to_what_it_names, r'does not define format = "\.\.\.", the name'),
        (lambda: FormatTests().dataset(Path("nowhere")), r'does not define format = "\.\.\."'),
        (OfMDS().test_every_sample_comes_back, r'OfMDS does not define columns = \{"name": "encoding"'),
        (ReadOnlyStoreTests().test_objects_of_any_size_are_read, r"does not define open\(path\)"),
        (EngineTests().test_a_record_is_created_once, r"does not define open\(\).*help\(EngineTests\)"),
        (OrderTests().test_an_epoch_has_all_samples_in_any_world, r"does not define make\(\)"),
        (
            LoaderTests().test_a_run_that_stops_twice_continues_with_what_was_left,
            r"does not define write\(folder, numbers\)",
        ),
        (lambda: LoaderTests().make(Path(), World(0, 1)), r"does not define make\(folder, world\)"),
        (lambda: LoaderTests().samples({}), r"does not define samples\(item\)"),
    ],
)
def test_what_a_subclass_has_to_define_is_said(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()
