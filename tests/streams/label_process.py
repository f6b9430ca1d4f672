"""A process that wants labels: prints how many times it read the data, and a digest of what it got.

Usage: label_process.py REMOTE LOCAL PAUSE
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import numpy as np

from stoker.cache.base import CacheSettings
from stoker.catalog.location import open_indexed
from stoker.streams import labels

made: list[str] = []


class Count(logging.Handler):
    """Remembers when data are read for labels."""

    def emit(self, record: logging.LogRecord) -> None:
        made.append(record.getMessage())


logging.getLogger("stoker.streams.labels").addHandler(Count())
logging.getLogger("stoker.streams.labels").setLevel(logging.INFO)

remote, local, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
scan = vars(labels)["scan"]


def slow_scan(*arguments: Any) -> Any:
    """The real thing, but so slow that processes meet."""
    for piece in scan(*arguments):
        time.sleep(pause)
        yield piece


vars(labels)["scan"] = slow_scan
place = open_indexed(remote, local, None, settings=CacheSettings())
print(json.dumps("ready"), flush=True)
array = labels.column_labels(place, "lang", "classes")
print(json.dumps([len(made), np.asarray(array).tolist()]), flush=True)
