"""Makes a data set slowly, to be killed: ``generate_process.py SPEC URL PROCESSES THREADS``."""

from __future__ import annotations

import json
import sys
import time

from stoker_bench.generation import DatasetSpec, generate

if __name__ == "__main__":
    _, spec, url, processes, threads = sys.argv
    generate(
        DatasetSpec(**json.loads(spec)),
        url,
        processes=int(processes),
        threads=int(threads),
        progress=lambda _: time.sleep(0.005),
    )
