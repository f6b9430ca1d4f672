"""The reference implementation, in the environment of its own that ``tools/environments.py mosaic`` makes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import peer_server
from patience import PATIENCE

_ROOT = Path(__file__).parents[1]
PYTHON = _ROOT / ".venvs" / "mosaic" / "bin" / "python"

needs_peer = pytest.mark.peer
"""Mark of the tests that compare with it: ``make nightly``."""


class Peer:
    """Calls functions of ``peer_server`` in a process of the peer's environment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def call(self, function: str, **arguments: Any) -> Any:
        """What the function returns; a failure there fails the test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        peer_server.send(self._process.stdin, (function, arguments))  # type: ignore[arg-type]
        kind, answer = peer_server.receive(self._process.stdout)  # type: ignore[arg-type]
        assert kind == "ok", answer
        return answer


@contextmanager
def run_peer(tmp: Path) -> Iterator[Peer]:
    """A peer whose temporary files lie in ``tmp``."""
    environment = {**os.environ, "TMPDIR": str(tmp), "PYTHONWARNINGS": "ignore"}
    script = Path(__file__).with_name("peer_server.py")
    with (tmp / "peer.log").open("wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        )
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=PATIENCE)
            assert process.stdout is not None
            process.stdout.close()
