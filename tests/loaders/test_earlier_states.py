"""States that an earlier version saved are resumed as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from earlier_states import rest, runs, save, write_data

from stoker.errors import StateError
from stoker.pipeline.state.checkpoint import Checkpoint

STATES: dict[str, Any] = json.loads(Path(__file__).with_name("earlier_states.json").read_text())


def load(name: str, reader: Any, state: Any) -> None:
    if name == "checkpoint":
        reader.restore_from_checkpoint(Checkpoint.from_dict(state))
    else:
        reader.load_state_dict(state)


@pytest.mark.parametrize("name", STATES)
def test_a_run_continues_from_a_state_of_an_earlier_version_with_what_was_left(tmp_path: Path, name: str) -> None:
    write_data(tmp_path)
    saved = STATES[name]
    for reader, state, left in zip(runs(tmp_path)[name](), saved["states"], saved["left"], strict=True):
        load(name, reader, state)
        again = save(name, reader)
        assert json.loads(json.dumps(rest(name, reader))) == left
        # What it saves itself now says the same.
        load(name, reader, again)
        assert json.loads(json.dumps(rest(name, reader))) == left


def test_a_start_that_no_version_wrote_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path)
    (reader, _) = runs(tmp_path)["parts"]()
    state = STATES["parts"]["states"][0]
    assert state["terms"] == [2, 4, 0]
    for terms in ([2, -1, 0], [2, 4], [2] * 7, ["2", 4, 0], {"world": 2}, {"world_size": 1 << 63}, "240", 5):
        for key in ("terms", "start"):
            with pytest.raises(StateError, match="this state's start of the epoch"):
                reader.load_state_dict({**state, key: terms})
