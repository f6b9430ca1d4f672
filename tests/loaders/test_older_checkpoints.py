"""Checkpoints, assignments and records that an earlier version wrote are resumed from: what follows is what followed then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.coordination import open_store

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "checkpoints.json").read_text())
SAMPLES = 60


def make(name: str, **more: Any) -> StreamingShardLoader:
    settings = dict(WRITTEN[name]["config"]) | more
    if "weights" in settings:
        settings["weights"] = tuple(settings["weights"])
    return StreamingShardLoader({"id": np.arange(SAMPLES, dtype=np.int64)}, StreamingConfig(**settings))


def numbers(loader: StreamingShardLoader) -> list[int]:
    return [int(number) for item in loader for number in np.atleast_1d(item["id"])]


@pytest.mark.parametrize("name", ["lockstep samples", "lockstep batches", "planned", "leased", "replay"])
@pytest.mark.parametrize("buffer", [0, 16])
def test_a_checkpoint_of_an_earlier_version_is_resumed_from(tmp_path: Path, name: str, buffer: int) -> None:
    written = WRITTEN[name]
    more: dict[str, Any] = {"prefetch_buffer_size": buffer}
    if name == "leased":
        more |= {"partition": Adaptive(), "coordinator": f"sqlite://{tmp_path}/run.db"}
    if name == "replay":
        more |= {"partition": Adaptive(replay=written["assignment"])}
    with make(name, **more) as loader:
        loader.restore_from_checkpoint(written["checkpoint"])
        again = loader.get_checkpoint()
        assert (again.epoch, [list(part) for part in again.processed]) == (0, written["checkpoint"]["processed"])
        assert numbers(loader) == written["rest"]


def test_the_records_of_an_earlier_version_are_resumed_from() -> None:
    """Rank 0 had 20 samples and left; rank 1 of this version comes to the same run."""
    written = WRITTEN["run"]
    url = "memory://older"
    store = open_store(url)
    for key, value in written["records"].items():
        assert store.create(key, value.encode()) is not None
    with make("run", rank=1, partition=Adaptive(), coordinator=url) as loader:
        rest = numbers(loader)
        assert sorted(written["delivered"] + rest) == list(range(SAMPLES))
        assert {row[2] for row in loader.assignment()["entries"]} == {0, 1}
