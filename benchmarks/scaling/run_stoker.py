"""Measures one side of one direction, and prints the figures as JSON. Started by ``benchmarks/scale.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scaling import timing
from scaling.directions import DIRECTIONS


def main() -> None:
    job = json.loads(sys.argv[1])
    direction = next(one for one in DIRECTIONS if one.name == job["direction"])
    folder = Path(job["folder"])
    if job["side"] == "prepare":
        direction.prepare(folder, job["size"])
        print("{}")
    else:
        timing.use(job["clock"], job["seconds"])
        print(json.dumps(direction.sides[job["side"]](folder)))


if __name__ == "__main__":
    main()
