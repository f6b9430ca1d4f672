"""A conversion as a process of its own: ``SRC DST [JSON of options]``, which prints the report as JSON.

With ``markers`` among the options, each sample's process leaves its id there, and the samples are slow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.conversion import convert

MARKERS = "CONVERT_JOB_MARKERS"
DELAY = "CONVERT_JOB_DELAY"


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself, after a moment; says which process is at work."""
    time.sleep(float(os.environ.get(DELAY, "0.005")))
    folder = os.environ.get(MARKERS)
    if folder:
        Path(folder, str(os.getpid())).touch()
    return sample


def main() -> None:
    """Convert."""
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    if options.pop("slowly", False):
        options["transform"] = slowly
    print(json.dumps(asdict(convert(sys.argv[1], sys.argv[2], **options))))


if __name__ == "__main__":
    main()
