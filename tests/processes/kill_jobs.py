"""Kill conversions and tokenizations with SIGKILL at every step that they take with files.

    python tests/processes/kill_jobs.py

After each kill the same job runs again, and must end well, with the same files as one that was never killed; and once
more, which must find that it is done. Prints a JSON object: how many steps each job took.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import pyarrow.parquet  # noqa: F401 - what children need is imported before they are forked
from kill_steps import run_killed
from tokenizers import Tokenizer, models, pre_tokenizers

from stoker import tokenize
from stoker.conversion import convert
from stoker.tokens.tokenize import texts
from support import files_of, make_dataset

SAMPLES = 18
_NEVER = 1 << 30


def converting(source: Path, out: Path, to: str) -> Any:
    return convert(source / "mds", out, to=to, processes=1, size_limit=1500, compression=None)


def tokenizing(source: Path, out: Path, format: Any) -> Any:  # noqa: A002
    vars(texts)["_BLOCK"] = 300
    return tokenize(
        source / "texts.jsonl", out, source / "t.json", format=format, processes=1, file_tokens=50, resume=True,
        compression=None,
    )  # fmt: skip


def is_done(report: Any) -> bool:
    """Whether a report says that nothing was left to do."""
    if hasattr(report, "made"):  # of stoker-bench
        return not report.made and bool(report.complete)
    if hasattr(report, "tasks"):
        return bool(report.resumed == report.tasks)
    return not report.documents and report.files > 0


JOBS: dict[str, tuple[Callable[[Path, Path, str], Any], str]] = {
    "convert to mds": (converting, "mds"),
    "convert to parquet": (converting, "parquet"),
    "tokenize to parquet": (tokenizing, "parquet"),
    "tokenize to mds": (tokenizing, "mds"),
}


def run_again(job: Callable[[Path, Path, str], Any], source: Path, out: Path, format: str) -> None:  # noqa: A002
    """The job, and once more."""
    job(source, out, format)
    assert is_done(job(source, out, format)), "it was done, and did something"


def prepare(source: Path) -> None:
    make_dataset(source / "mds", SAMPLES)
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(source / "t.json"))
    (source / "texts.jsonl").write_text('{"text": "a b a b a"}\n' * SAMPLES)


def main(jobs: Mapping[str, tuple[Callable[[Path, Path, str], Any], str]] = JOBS) -> None:
    """Kill each job at each step; print how many steps it took."""
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as root:
        source = Path(root, "source")
        source.mkdir()
        assert not run_killed(_NEVER, source, prepare, source)
        for name, (job, format) in jobs.items():  # noqa: A001
            good = Path(root, name, "good")
            good.parent.mkdir()
            assert not run_killed(_NEVER, good, job, source, good, format)
            last, killed = 0, True
            while killed:
                last += 1
                place = Path(root, name, f"step{last}")
                place.mkdir()
                killed = run_killed(last, place, job, source, place / "out", format)
                assert not run_killed(_NEVER, place, run_again, job, source, place / "out", format), name
                here, there = files_of(place / "out"), files_of(good)
                differ = [one for one in {**here, **there} if here.get(one) != there.get(one)]
                assert not differ, f"{name}, killed at step {last}: {differ} differ"
                assert [path.name for path in place.iterdir()] == ["out"], f"{name}, killed at step {last}"
                assert not [path for path in place.rglob("*") if path.is_dir() and not any(path.iterdir())]
            counts[name] = last - 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
