"""The stages of the gate, as a plugin of pytest: which tests belong to which, what a pure one may not do, what is reported.

A test that starts processes has the mark ``processes``; one that uses a server has ``s3`` or ``processes``; one that
measures time has ``timing``; one that runs a peer has ``peer``. All others are pure, and run side by side: one that
starts a process or a server all the same fails, and is told to say so.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import patience
from peer import PYTHON

SERVERS: Final = frozenset({"s3_server", "bucket", "proxies"})
"""Fixtures that a test does not use without the S3 server."""
_IMPURE: Final = ("processes", "s3", "timing", "peer", "trainers")
_EVENTS: Final = {
    "subprocess.Popen": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "forks a process",
    "os.forkpty": "forks a process",
    "socket.bind": "starts a server",
    "socket.connect": "connects to a server",
}
_ASKED_BY_IMPORTS: Final = frozenset({"uname", "ldconfig", "gcc", "cc", "ld", "objdump"})
"""Programs by which ``platform`` and ``ctypes.util`` look at the machine, when a package is first imported."""
_MOST: Final = 4000
"""Characters of an error that are reported."""
_seen: list[str] = []
_fixtures: dict[tuple[str, str], set[str]] = {}
"""What fixtures of modules have started, by where they are and their names."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and not (event == "subprocess.Popen" and Path(str(arguments[0])).name in _ASKED_BY_IMPORTS):
        _seen.append(f"{_EVENTS[event]} ({event}: {str(arguments[:2])[:200]})")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--report FILE``: the outcome of each test, for the gate. ``--seconds N``: for ``make check``."""
    parser.addoption(
        "--report", metavar="FILE", help="write the outcome of each test to this file, a line of JSON each"
    )
    parser.addoption("--seconds", type=float, help="share this time among the test files: of each, the first tests run")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A test may take as long as this machine's patience says, unless the command line says how long."""
    if config.getoption("timeout", None) is None:
        config.option.timeout = 5 * patience.PATIENCE
    report = config.getoption("--report")
    if report and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(Path(report), config), "stoker-report")
    seconds = config.getoption("--seconds")
    if seconds is not None:
        from hypothesis import settings

        settings.register_profile("quick", deadline=None, max_examples=10)
        settings.load_profile("quick")
        config.pluginmanager.register(_Shares(seconds), "stoker-shares")
    sys.addaudithook(_audit)


def pytest_collection_finish() -> None:
    """Collections of garbage, and forks, need not go through the tests and modules that are there until the end."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the S3 server is marked so; what needs the peer is skipped where it is not installed."""
    missing = pytest.mark.skip(reason="no mosaicml-streaming here: python3 tools/environments.py mosaic")
    for item in items:
        if item.get_closest_marker("peer") and not PYTHON.exists():
            item.add_marker(missing)
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.s3)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What fixtures of this test start counts as the test's, and nothing of the test before it."""
    _seen.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """What a fixture of a module starts counts for each test that uses it."""
    before = len(_seen)
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _fixtures.setdefault((fixturedef.baseid, fixturedef.argname), set()).update(_seen[before:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test without a mark fails if it, or a fixture of its own, starts a process or a server."""
    try:
        yield
    finally:
        names = getattr(item, "fixturenames", ())
        used = [what for (where, name), what in _fixtures.items() if name in names and item.nodeid.startswith(where)]
        seen = set(_seen).union(*used)
    if seen and not any(item.get_closest_marker(mark) for mark in _IMPURE):
        pytest.fail(f"it has no mark, and {'; '.join(sorted(seen))}: mark it with pytest.mark.processes", pytrace=False)


class _Shares:
    """Gives each test file its share of the time that is left: what one does not need, later ones have."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._files = 0.0
        self._file = ""
        self._file_end = 0.0
        self._left_out = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Of the files, this process has its part."""
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        self._files = len({item.location[0] for item in session.items}) / processes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Leave out a test whose file has had its share: a skip would cost 8 ms, for each of thousands."""
        now = time.monotonic()
        if item.location[0] != self._file:
            self._file = item.location[0]
            self._file_end = now + (self._end - now) / max(1.0, self._files)
            self._files -= 1
            return None  # of each file at least one
        if now <= self._file_end:
            return None
        item.session._setupstate.teardown_exact(nextitem)  # fixtures that only tests before this one use
        self._left_out += 1
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A process of xdist tells the first how many it left out."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of xdist has ended."""
        self._left_out += getattr(node, "workeroutput", {}).get("left_out", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests were left out."""
        terminalreporter.write_line(
            f"{self._left_out} tests were left out: their files have had their share of the time"
        )


class _Report:
    """Writes a line for each test, and more for errors of its fixtures."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._file = path.open("w", buffering=1)
        self._root, self._folder = config.rootpath, config.invocation_params.dir

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has been set up, run or torn down."""
        outcome = report.outcome if report.when == "call" or report.outcome != "passed" else report.when
        self._write(report.nodeid, outcome, report.longreprtext, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module has been imported."""
        if report.outcome == "failed":
            self._write(report.nodeid, report.outcome, report.longreprtext, 0.0)

    def _write(self, test: str, outcome: str, said: str, seconds: float) -> None:
        file, *names = test.split("::")
        name = "::".join([os.path.relpath(self._root / file, self._folder), *names])
        error = {"error": said[-_MOST:]} if outcome == "failed" else {}
        self._file.write(json.dumps({"test": name, "outcome": outcome, "seconds": seconds, **error}) + "\n")
