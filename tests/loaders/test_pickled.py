"""Pickles of loaders are of one version: another one says so, whatever else has changed."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
from loader_kinds import LOADERS, make_loader

from stoker import __version__
from stoker.errors import StateError
from stoker.loaders import pickled

VERSION = re.escape(__version__)


@pytest.mark.parametrize("kind", LOADERS)
def test_another_version_refuses_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    loader = make_loader(kind, tmp_path)
    length = len(loader)
    for copied in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(copied) == length
        assert type(copied) is type(loader)
    monkeypatch.setattr(pickled, "__version__", "0.0.9")
    written = pickle.dumps(loader)
    monkeypatch.undo()
    # What another version may lack comes after the version.
    written = written.replace(b"stoker.loaders.dataset", b"stoker.loaders.datazet")
    with pytest.raises(StateError, match=rf"written by stoker 0\.0\.9, and this is stoker {VERSION}: .*state_dict\(\)"):
        pickle.loads(written)
