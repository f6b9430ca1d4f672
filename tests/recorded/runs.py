"""What today's code does with features, their pairs and triples, and with token loaders: the runs that are recorded.

    python tests/recorded/runs.py             # runs all, and writes runs.json
    python tests/recorded/runs.py NAME...     # prints what these give

``recording.py`` says what is kept of a run. A run that differs on purpose is listed in ``differences.json`` with the reason,
until it is recorded anew.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from dataset_runs import BY_NAME, SEPARATOR, DatasetRun
from features import FEATURES, PROCESSES, Feature, write_data
from recording import Recorded, Run
from token_runs import TokenRun, write_tokens

from stoker.formats.mds.encodings import images

__all__ = ["RECORD", "names", "run", "starts_processes", "write_all"]

RECORD: Final = Path(__file__).with_name("runs.json")
_TRIPLES: Final = 500
_TOKEN_RUNS: Final = {"rows": 150, "stream": 100}
_ORDER: Final = {name: at for at, name in enumerate(BY_NAME)}


def _name(features: Iterable[Feature]) -> str:
    return SEPARATOR.join(sorted((one.name for one in features), key=_ORDER.__getitem__))


def names() -> list[str]:
    """All runs: a plain one, each feature, each pair, pairs of steps in both orders, triples by lot, and token loaders."""
    found = ["plain", *BY_NAME]
    for pair in itertools.combinations((*FEATURES, *PROCESSES), 2):
        if pair[0].group != pair[1].group:
            found.append(_name(pair))
        elif pair[0].group == "step":
            found += [_name(pair), SEPARATOR.join((pair[1].name, pair[0].name))]
    lot, triples = random.Random(34), dict[str, None]()
    while len(triples) < _TRIPLES:
        chosen = lot.sample(FEATURES, 3)
        groups = [one.group for one in chosen if one.group != "step"]
        if len(set(groups)) == len(groups):
            triples[_name(chosen)] = None
    tokens = [f"{kind} {number}" for kind, count in _TOKEN_RUNS.items() for number in range(count)]
    return [*found, *triples, *tokens]


def starts_processes(name: str) -> bool:
    """Whether a run starts processes, or a server, as the cache in memory does for shards that it decompresses."""
    features = set(name.split(SEPARATOR))
    return not features.isdisjoint(one.name for one in PROCESSES) or features >= {"zstd", "memory"}


def write_all(root: Path) -> None:
    """The data of all runs."""
    write_data(root)
    write_tokens(root / "tokens")


def run(name: str, root: Path, scratch: Path) -> Recorded:
    """Run one by its name. ``root`` has the data; ``scratch`` is emptied first."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    os.environ["STOKER_CACHE"] = str(scratch / "home")
    images._last_left = None  # as in a process of its own
    kind: Callable[[str, Path, Path], Run] = TokenRun if name.split(maxsplit=1)[0] in _TOKEN_RUNS else DatasetRun
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(name, root, scratch).record()


def _run_part(first: int, of: int) -> None:
    """Run every so many, and write a line of JSON for each."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        write_all(root)
        for name in names()[first::of]:
            sys.stdout.write(json.dumps({name: run(name, root, Path(folder) / "scratch")}) + "\n")


def _record_all() -> None:
    """Run all, in a process for each processor: fresh ones, so that DataLoaders fork as they do in any program."""
    parts = os.cpu_count() or 1
    started = [
        subprocess.Popen([sys.executable, __file__, "--part", str(at), str(parts)], stdout=subprocess.PIPE)
        for at in range(parts)
    ]
    found: dict[str, Recorded] = {}
    for one in started:
        for line in one.communicate()[0].splitlines():
            found |= json.loads(line)
        if one.returncode:
            raise SystemExit(f"a process ended with {one.returncode}")
    lines = [f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in names()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _print_runs(chosen: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        write_all(root)
        for name in chosen:
            sys.stdout.write(f"{name} {json.dumps(run(name, root, Path(folder) / 'scratch'), indent=1)}\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            _record_all()
        case ["--part", first, of]:
            _run_part(int(first), int(of))
        case chosen:
            _print_runs(chosen)
