"""One reader delivers the samples, however work is divided: errors and stops neither skip nor repeat any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.errors import TransformError

SAMPLES = 90
KINDS = ["samples", "batches", "joined", "planned", "leased", "leased batches", "replayed", "replayed batches"]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., StreamingShardLoader]:
    """Makes a loader of all samples, with a transform and as many in its buffer as is said."""
    kind: str = request.param
    settings: dict[str, Any] = {"shuffle_seed": 5}
    if "batches" in kind or kind == "joined":
        settings["batch_size"] = 6
    if kind == "joined":
        settings["remainder"] = "join"
    if kind == "planned":
        settings["global_batch_size"] = 6
    if kind.startswith(("leased", "replayed")):
        settings |= {"partition": Adaptive(), "coordinator": f"memory://{tmp_path}"}
    if kind.startswith("replayed"):
        with StreamingShardLoader(arrays(), StreamingConfig(**settings)) as recorded:
            for _ in recorded:
                pass
            settings["partition"] = Adaptive(replay=recorded.assignment())
        del settings["coordinator"]

    def made(transform: Callable[[Any], Any] | None = None, buffer: int = 16) -> StreamingShardLoader:
        return StreamingShardLoader(
            arrays(), StreamingConfig(prefetch_buffer_size=buffer, **settings), transform=transform
        )

    return made


def arrays() -> dict[str, Any]:
    return {"id": np.arange(SAMPLES)}


def numbers(item: Any) -> list[int]:
    return [int(number) for number in np.atleast_1d(item["id"])]


@pytest.mark.parametrize("buffer", [0, 4, 64])
def test_an_error_skips_nothing(make: Callable[..., StreamingShardLoader], buffer: int) -> None:
    failing = {7, 21, 60}

    def transform(sample: Any) -> Any:
        number = int(sample["id"])
        if number in failing:
            failing.discard(number)
            raise OSError(f"number {number}")
        return sample

    found: list[int] = []
    errors = 0
    with make(transform, buffer) as loader:
        while True:
            try:
                item = loader.next()
            except TransformError:
                errors += 1
                continue
            if item is None:
                break
            found += numbers(item)
    assert errors == 3
    assert sorted(found) == list(range(SAMPLES))


@pytest.mark.parametrize("buffer", [0, 16])
def test_a_loader_that_was_closed_continues_where_it_was(
    make: Callable[..., StreamingShardLoader], buffer: int
) -> None:
    found: list[int] = []
    with make(buffer=buffer) as loader:
        for _ in range(4):
            found += numbers(loader.next())
        loader.commit()  # of leased work, what is not committed comes again
        loader.close()
        while (item := loader.next()) is not None:
            found += numbers(item)
    assert sorted(found) == list(range(SAMPLES))


def test_samples_are_counted_as_they_are_delivered(make: Callable[..., StreamingShardLoader]) -> None:
    with make() as loader:
        for _ in range(5):
            size = len(numbers(loader.next()))
        assert loader._worker.delivered == 5 * size
        assert loader.get_checkpoint().position == 5 * size
        loader.prefetch(10)
        assert loader._worker.delivered == 5 * size
