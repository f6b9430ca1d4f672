"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from s3server import Bucket, CountingProxy, S3Server, make_bucket, run_s3_server
from stoker.formats.mds import encodings as registry
from stoker.formats.mds.encodings import images
from stoker.types import Ids

pytest_plugins = ["stages"]

# A deadline for an example is a timed assert: it fails where the machine is busy.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")

# A job in the background of a shell, nohup and some CI ignore SIGINT, and children inherit that: tests that send it would
# wait for ever. With a handler here, children begin with the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Names of stores and keys that would make a test depend on who runs it.
_FOREIGN = ("AWS_", "S3_ENDPOINT", "GOOGLE_", "AZURE_", "GCE_METADATA")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--histories 3000``, ``--drawn-runs 6000``, ``--lineages 1000``, ``--recorded 1``: more runs that stop and go on."""
    parser.addoption("--histories", type=int, default=150, help="random histories in tests/order/test_histories.py")
    parser.addoption("--drawn-runs", type=int, default=120, help="random runs in tests/loaders/test_drawn_runs.py")
    parser.addoption("--recorded", type=int, default=8, help="of tests/recorded, one of so many runs is compared")
    parser.addoption("--lineages", type=int, default=24, help="random runs in tests/loaders/test_lineage.py")


@pytest.fixture(autouse=True)
def _no_foreign_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no credentials but their own."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture(autouse=True)
def _own_encodings() -> Iterator[None]:
    """Encodings that a test registers are gone after it: readers use fewer threads where there are any."""
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture(autouse=True)
def _no_image_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test begins as a process does: samples are made in another way once an image was left to be loaded."""
    monkeypatch.setattr(images, "_last_left", None)
    monkeypatch.setattr(images, "_at_once", False)


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache: an empty directory for this test alone."""
    path = tmp_path_factory.mktemp("stoker-cache")
    monkeypatch.setenv("STOKER_CACHE", str(path))
    return path


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server that checks signatures."""
    with run_s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    """An empty bucket on it: ``url`` and ``storage_options`` open it."""
    with make_bucket(s3_server) as made:
        yield made


@pytest.fixture
def proxies(bucket: Bucket) -> Iterator[list[CountingProxy]]:
    """Two more endpoints of the bucket's server."""
    made = [CountingProxy(bucket.server.endpoint) for _ in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def no_debris(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the test that leaves anything in the folder for temporary files.

    The test and its children get a ``TMPDIR`` of their own, which must be empty in the end. Nothing else is looked at:
    other programs, other tests and other runs of stoker among them, use the machine's folders meanwhile.
    """
    tmp_path_factory.getbasetemp()  # pytest makes its own folder once, where TMPDIR then is
    own = Path(tempfile.mkdtemp(prefix="st"))
    monkeypatch.setenv("TMPDIR", str(own))
    # Of torch's own, which it leaves from 2.14 on.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "torchinductor"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    try:
        yield
        left = sorted(str(path) for path in own.iterdir())
        assert not left, f"left behind: {left}"
    finally:
        shutil.rmtree(own)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain rotation in place of the keyed bijection, whose values are pinned where it is tested."""

    def turn(index: Ids, n: Ids, key: Any) -> Ids:
        turned: Ids = (index + (key % n.astype(np.uint64)).astype(np.int64)) % n
        return turned

    def turn_back(index: Ids, n: Ids, key: Any) -> Ids:
        turned: Ids = (index - (key % n.astype(np.uint64)).astype(np.int64)) % n
        return turned

    monkeypatch.setattr("stoker.order.selection.permute", turn)
    monkeypatch.setattr("stoker.order.selection.unpermute", turn_back)


@pytest.fixture
def awake_tuners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuners are there from the first step of reading on, also where it is not seen yet whether they are needed."""
    from stoker.pipeline.tuning.tuner import Tuner

    monkeypatch.setattr(Tuner, "sleeps", lambda *_, **__: False)
