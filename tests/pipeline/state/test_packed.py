"""States of runs with many streams are short, and say as much as plain ones."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import MDSWriter, Stream, StreamingDataset
from stoker.errors import StateError
from stoker.pipeline.state.packed import pack_state, unpack_state

COUNT: Final = 66

NUMBERS = st.integers(0, 1 << 61)
HASHES = st.text("0123456789abcdef", min_size=1, max_size=40) | st.text(max_size=12)
ABOUT = st.fixed_dictionaries(
    {"fingerprint": HASHES, "samples": NUMBERS},
    optional={
        "content": st.dictionaries(st.text(max_size=3), HASHES, max_size=2),
        "subset": st.lists(
            st.dictionaries(st.text(max_size=3), st.none() | NUMBERS | st.text(), max_size=2), max_size=2
        ),
        "versions": st.dictionaries(HASHES, HASHES, max_size=1),
        "choose": NUMBERS,
    },
)


def cut(streams: Mapping[str, Any]) -> dict[str, Any]:
    """Descriptions of streams with hashes of ten digits."""
    found = copy.deepcopy(dict(streams))
    for about in found.values():
        about["fingerprint"] = about["fingerprint"][:10]
        if "content" in about:
            about["content"] = {kind: value[:10] for kind, value in about["content"].items()}
    return found


@given(
    kinds=st.lists(ABOUT, min_size=1, max_size=12),
    names=st.lists(st.text(max_size=5), min_size=60, max_size=80, unique=True),
    consumed=st.data(),
)
def test_an_unpacked_state_is_the_plain_one_with_hashes_cut(
    kinds: list[dict[str, Any]], names: list[str], consumed: st.DataObject
) -> None:
    streams = {name: kinds[number % len(kinds)] for number, name in enumerate(names)}
    state = {
        "version": 2,
        "epoch": 3,
        "position": 17,
        "streams": streams,
        "order": {"shuffle": "block", "streams": names},
        "consumed": {name: consumed.draw(NUMBERS) for name in names[:5]},
        "start": {"first": 4},
    }
    packed = json.loads(json.dumps(pack_state(state)))
    if len(names) <= 64:
        assert packed == state
    else:
        assert unpack_state(packed) == {**state, "streams": cut(streams)}
        assert list(unpack_state(packed)["streams"]) == names


def test_the_state_of_a_thousand_streams_is_short() -> None:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    names = [f"web/part-{number:05}" for number in range(1000)]
    state = {
        "version": 2,
        "streams": {
            name: {"fingerprint": digest(name), "content": {"sha1": digest(name + "!")}, "samples": 100_000}
            for name in names
        },
        "order": {"streams": names},
        "consumed": {name: 40_000 + number % 3 for number, name in enumerate(names)},
    }
    assert len(json.dumps(pack_state(state))) < 20_000 < len(json.dumps(state)) / 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams of a few samples, with hashes."""
    root = tmp_path_factory.mktemp("streams")
    for number in range(COUNT + 1):
        write(root / f"{number:02}", number)
    return root


def write(folder: Path, number: int, count: int = 6) -> None:
    """Write a stream whose samples are like those of no other."""
    with MDSWriter({"id": "int"}, folder, hashes=("sha1",), exist_ok=True) as out:
        out.write_batch({"id": np.arange(count) + 10 * number})


def open_streams(data: Path, names: list[str], **options: Any) -> StreamingDataset:
    """Streams as one dataset."""
    streams = [Stream(local=data / name) for name in names]
    return StreamingDataset(streams=streams, batch_size=8, shuffle=True, num_canonical_nodes=2, **options)


NAMES: Final = [f"{number:02}" for number in range(COUNT)]


def test_a_packed_state_and_a_plain_one_resume_the_run(data: Path) -> None:
    run = open_streams(data, NAMES)
    batches = run.batches()
    for _ in range(7):
        next(batches)
    packed = run.state_dict()
    assert "packed" in packed
    rest = [list(batch["id"]) for batch in batches]
    for state in (packed, unpack_state(packed)):
        again = open_streams(data, NAMES)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert [list(batch["id"]) for batch in again.batches()] == rest


@pytest.mark.parametrize("form", [lambda state: state, unpack_state])
def test_streams_that_differ_are_named(data: Path, tmp_path: Path, form: Callable[[Any], Any]) -> None:
    for name in NAMES:
        (tmp_path / name).symlink_to(data / name)
    state = form(open_streams(tmp_path, NAMES).state_dict())

    def said(names: list[str], **options: Any) -> str:
        with pytest.raises(StateError) as caught:
            open_streams(tmp_path, names, **options).load_state_dict(state)
        return str(caught.value)

    assert "stream '65' is gone" in said(NAMES[:-1])
    (tmp_path / "66").symlink_to(data / "66")
    assert "stream '66' is new" in said([*NAMES, "66"])
    assert "seed was 9176 and is 5" in said(NAMES, shuffle_seed=5)
    for name, samples in (("07", 6), ("09", 5)):
        (tmp_path / name).unlink()
        write(tmp_path / name, 80, samples)
    text = said(NAMES)
    assert "stream '07' was rewritten" in text
    assert "stream '09' belongs to another dataset" in text
    assert "'08'" not in text


def test_streams_may_change_after_a_packed_state(data: Path) -> None:
    run = open_streams(data, NAMES)
    for _ in zip(range(5), run.batches(), strict=False):
        pass
    position = run.state_dict()["position"]
    fewer = open_streams(data, NAMES[:3])
    fewer.load_state_dict(run.state_dict(), change_streams=True)
    state = fewer.state_dict()
    assert list(state["origin"]["consumed"]) == NAMES[:3]
    # Those that were left out are known again, by the hashes of the packed state.
    back = open_streams(data, NAMES)
    back.load_state_dict(state, change_streams=True)
    consumed = unpack_state(back.state_dict())["origin"]["consumed"]
    assert {name: consumed[name] for name in NAMES[:3]} == state["origin"]["consumed"]
    assert sum(consumed.values()) == position > 0


def repack(change: Callable[[Any], Any]) -> Callable[[str], str]:
    """A change of what is inside a packed state."""

    def changed(packed: str) -> str:
        text, _, hashes = zlib.decompress(base64.b85decode(packed), 47).partition(b"\n")
        inside = json.loads(text)
        change(inside)
        return base64.b85encode(zlib.compress(json.dumps(inside).encode() + b"\n" + hashes)).decode()

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-9],
        lambda packed: packed[:40] + packed[41:] + "0",
        lambda packed: packed + '"',
        lambda packed: None,
        repack(lambda inside: inside.pop("streams")),
        repack(lambda inside: inside.pop("order")),
        repack(lambda inside: inside["streams"]["names"].pop()),
        repack(lambda inside: inside["streams"]["table"]["shape"].append(9)),
        repack(lambda inside: inside["streams"]["table"]["columns"].update(samples=[1])),
        repack(lambda inside: inside["consumed"].update(values=[])),
    ],
)
def test_a_damaged_packed_state_is_refused(data: Path, damage: Callable[[str], Any]) -> None:
    run = open_streams(data, NAMES)
    next(run.batches())
    state = run.state_dict()
    with pytest.raises(StateError):
        run.load_state_dict({**state, "packed": damage(state["packed"])})
