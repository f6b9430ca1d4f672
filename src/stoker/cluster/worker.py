"""``LoaderWorker``: the number of this process among a DataLoader's workers."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from stoker.concurrency.user_code import in_user_code

__all__ = ["LoaderWorker"]


@dataclass(frozen=True, slots=True)
class LoaderWorker:
    """This process among the worker processes of one torch ``DataLoader``.

    Attributes:
        number: this worker, in ``[0, count)``.
        count: number of workers; 1 outside a worker process.
        token: equal in all workers that were started together, different each time workers are started; ``None``
            outside a worker process.
    """

    number: int = 0
    count: int = 1
    token: int | None = None

    @classmethod
    def detect(cls) -> LoaderWorker:
        """Ask torch, if it is imported; a process in which it is not is no worker of its DataLoader.

        What a transform reads of another data set is not shared among workers: each has samples of its own to transform.
        """
        data = sys.modules.get("torch.utils.data")
        info = None if data is None else data.get_worker_info()
        if info is None or in_user_code():
            return cls()
        # DataLoader draws a base seed each time it starts workers and gives worker w that plus w.
        return cls(int(info.id), int(info.num_workers), int(info.seed) - int(info.id))
