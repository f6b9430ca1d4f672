"""Starts Ray for tests, also on a machine where others work."""

from __future__ import annotations

from typing import Any

import ray

_TRIALS = 4


def start_ray(**settings: Any) -> Any:
    """``ray.init`` with a cluster of this machine alone, and without a dashboard.

    Ray gives its node 30 s to start, which no setting changes; on a busy machine that is too short at times, and Ray says
    itself that the machine may be overloaded.
    """
    for trial in range(_TRIALS):
        try:
            return ray.init(address="local", include_dashboard=False, log_to_driver=False, **settings)
        except Exception as error:
            ray.shutdown()
            if "timed out during startup" not in str(error) or trial + 1 == _TRIALS:
                raise
    raise AssertionError
