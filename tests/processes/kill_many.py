"""Kill writers and readers with SIGKILL at random moments, and look at what is left.

    python tests/processes/kill_many.py --rounds 100

Prints a JSON object: rounds by kind, and what was readable after writers were killed. Ends with an error at the first
torn dataset, wrong byte, hang or piece of debris, naming the round's seed (``--first`` starts there).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kill_readers import READERS, ReaderJob, write_remote
from kill_writers import WRITERS

KINDS = [*(f"writer {name}" for name in WRITERS), *(f"{how} {name}" for name in READERS for how in ("reader", "pair"))]
_PATIENCE = 60.0


class Killer:
    """Starts work in child processes and kills it.

    Args:
        method: how children are started; ``spawn`` where the parent has used the network.
        draw: where moments come from.
    """

    def __init__(self, method: str, draw: random.Random) -> None:
        self._context: Any = multiprocessing.get_context(method)
        self._draw = draw
        self._lengths: dict[str, float] = {}

    def start(self, work: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
        """Start a child; the connection says when it begins to work, and ends with it."""
        ours, theirs = self._context.Pipe(duplex=False)
        child = self._context.Process(target=_child, args=(theirs, work, args))
        child.start()
        theirs.close()
        if not ours.poll(_PATIENCE):
            child.kill()
            raise AssertionError("a child did not start")
        ours.recv()
        return child, ours

    def run(self, kind: str, work: Callable[..., None], *args: Any) -> None:
        """Let work come to its end, to learn how long it takes."""
        child, _ = self.start(work, *args)
        begin = time.monotonic()
        wait_for(child)
        self._lengths[kind] = max(time.monotonic() - begin, self._lengths.get(kind, 0.0))

    def kill(self, kind: str, child: BaseProcess) -> bool:
        """Kill it at a moment between its start and a little after its usual end; whether it still ran."""
        time.sleep(self._draw.uniform(0, 1.05 * self._lengths[kind]))
        child.kill()
        child.join(_PATIENCE)
        if child.exitcode not in (0, -9):
            raise AssertionError(f"it failed with {child.exitcode} before it was killed")
        return child.exitcode != 0

    def knows(self, kind: str) -> bool:
        return kind in self._lengths


def wait_for(child: BaseProcess) -> None:
    """Wait for the end of a child that must not fail nor hang."""
    child.join(_PATIENCE)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("it hangs")
    assert child.exitcode == 0, f"it failed with {child.exitcode}"


def _child(ready: Connection, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    ready.send(None)
    work(*args)


class Rounds:
    """One round after the other, in a folder of its own.

    Args:
        folder: for everything local.
        remote: root of remotes; a folder or a URL.
        storage_options: of the remote.
        seed: of all random choices.
    """

    def __init__(self, folder: Path, remote: str, storage_options: Any, seed: int) -> None:
        self._folder = folder
        self._remote = remote
        self._storage_options = storage_options
        self._draw = random.Random(seed)
        self._killer = Killer("fork" if storage_options is None else "spawn", self._draw)
        self.counts: Counter[str] = Counter()
        write_remote(f"{remote}/shared", storage_options)

    def run(self, kind: str, number: int) -> None:
        self._draw.seed(number)
        what, _, name = kind.partition(" ")
        folder = self._folder / f"round{number}"
        folder.mkdir()
        if what == "writer":
            self._writer(kind, name, number, folder)
        else:
            self._reader(kind, name, number, folder, pair=what == "pair")
        shutil.rmtree(folder)
        self.counts[what] += 1

    def _writer(self, kind: str, name: str, number: int, folder: Path) -> None:
        make = WRITERS[name]
        if not self._killer.knows(kind):
            (folder / "first").mkdir()
            first = make(folder / "first", f"{self._remote}/{number}-first", self._storage_options)
            first.prepare()
            self._killer.run(kind, first.write)
            first.look_at_end()
        job = make(folder, f"{self._remote}/{number}", self._storage_options)
        job.prepare()
        child, _ = self._killer.start(job.write)
        killed = self._killer.kill(kind, child)
        found = job.look()
        assert killed or found == "whole"
        self.counts[f"writer killed, readable: {found}" if killed else "writer ended first"] += 1
        job.resume()
        job.look_at_end()

    def _reader(self, kind: str, name: str, number: int, folder: Path, *, pair: bool) -> None:
        shared = f"{self._remote}/shared"
        if not self._killer.knows(kind):
            self._killer.run(kind, ReaderJob(name, shared, folder / "first", self._storage_options).read, number)
        job = ReaderJob(name, shared, folder / "cache", self._storage_options)
        other = self._killer.start(job.read, number + 1)[0] if pair else None
        child, _ = self._killer.start(job.read, number)
        killed = self._killer.kill(kind, child)
        self.counts["reader killed" if killed else "reader ended first"] += 1
        if other is not None:
            wait_for(other)
        job.look()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, which seeds it")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these; default: all in turn")
    parser.add_argument("--remote", help="URL to put remotes below; default: a folder")
    parser.add_argument("--storage-options", type=json.loads, help="of the remote, as JSON")
    options = parser.parse_args()
    kinds = options.kind or KINDS
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = Rounds(folder, options.remote or str(folder / "remotes"), options.storage_options, options.first)
        for number in range(options.first, options.first + options.rounds):
            kind = kinds[number % len(kinds)]
            try:
                rounds.run(kind, number)
            except BaseException:
                print(f"round {number}, {kind}, left {os.listdir(folder / f'round{number}')}", file=sys.stderr)
                raise
    print(json.dumps({"seconds": round(time.monotonic() - begin, 1), **dict(sorted(rounds.counts.items()))}))


if __name__ == "__main__":
    main()
