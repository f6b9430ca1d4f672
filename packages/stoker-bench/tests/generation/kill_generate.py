"""Kill generations with SIGKILL at every step that they take with files, as ``tests/processes/kill_jobs.py`` does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "processes"))

from kill_jobs import main

from stoker_bench import DatasetSpec, generate


def generating(_: Path, out: Path, format: str) -> Any:  # noqa: A002
    spec = DatasetSpec(format=format, files=3, samples_per_file=4, record_bytes=100)
    return generate(spec, str(out), processes=1, threads=1)


if __name__ == "__main__":
    main({"mds": (generating, "mds"), "parquet": (generating, "parquet")})
