"""A state in which any value is another is refused by an error of stoker's, or resumes: nothing else, and no large arrays."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import MDSWriter, Stream, StreamingDataset
from stoker.errors import StokerError

WRONG: tuple[Any, ...] = (None, -1, 1 << 40, 1 << 61, "x", [], [1], {"a": {"b": [1]}}, 1.5, True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name in "abc":
        with MDSWriter({"x": "int", name: "str"}, root / name, size_limit="700", hashes=["sha1"]) as out:
            for number in range(60):
                out.write({"x": number, name: f"{name}{number}"})
    return root


def one(root: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(local=root / "a", batch_size=4, shuffle=True, columns=["x"], **options)


def mixed(root: Path, *names: str) -> StreamingDataset:
    streams = [Stream(local=root / name) for name in names]
    return StreamingDataset(streams=streams, batch_size=4, shuffle=True, columns=["x"])


def state_of(dataset: StreamingDataset) -> Any:
    batches = dataset.batches()
    for _ in range(3):
        next(batches)
    return json.loads(json.dumps(dataset.state_dict()))


def cases(root: Path, kind: str) -> tuple[StreamingDataset, Any, dict[str, bool]]:
    """A dataset, a state, and how it is loaded."""
    if kind == "one":
        return one(root), state_of(one(root)), {}
    if kind == "joined":
        dataset = one(root).join(StreamingDataset(local=root / "b"), on="x")
        return dataset, state_of(dataset), {}
    if kind == "reference":
        dataset = one(root, shuffle_algo="py1s")
        return dataset, state_of(dataset)["mosaicml-streaming"], {}
    if kind == "mosaicml":
        dataset = one(root, shuffle_algo="py1e")
        return dataset, state_of(dataset), {}
    changed = mixed(root, "a", "b")
    changed.load_state_dict(state_of(mixed(root, "a", "c")), change_streams=True)
    if kind == "changed":
        return mixed(root, "a", "b"), state_of(changed), {}
    return mixed(root, "a", "c"), state_of(changed), {"change_streams": True}


def damaged(value: Any) -> Iterator[tuple[str, Any]]:
    """The value with each part of it, and itself, as something else; and which it is."""
    yield from ((f"is {wrong!r}", wrong) for wrong in WRONG)
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        without = copy.copy(value)
        del without[key]
        yield f"{key} is gone", without
        for told, part in damaged(value[key]):
            changed = copy.copy(value)
            changed[key] = part
            yield f"{key} {told}", changed


@pytest.mark.parametrize("kind", ["one", "joined", "mosaicml", "reference", "changed", "back"])
def test_a_state_in_which_a_value_is_another(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(root / "cache"))
    dataset, state, how = cases(root, kind)
    found: list[str] = []
    refused = 0
    for told, changed in damaged(state):
        try:
            dataset.load_state_dict(changed, **how)
            next(dataset.batches(), None)
        except StokerError:
            refused += 1
        except Exception as error:
            found.append(f"{told}: {type(error).__name__}: {error}")
    assert found == []
    assert refused > 20
