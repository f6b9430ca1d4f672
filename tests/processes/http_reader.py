"""Reads a dataset over HTTP, checking every byte: ``http_reader.py URL CACHE DOWNLOAD_TIMEOUT WORKERS``."""

import json
import sys
from typing import Any

from stoker import StreamingDataset
from support import ids_of


def main(url: str, cache: str, download_timeout: str, workers: str) -> None:
    dataset: Any = StreamingDataset(remote=url, local=cache, download_timeout=float(download_timeout), batch_size=8)
    samples = iter(dataset)
    if int(workers):
        from torch.utils.data import DataLoader

        options: dict[str, Any] = {"num_workers": int(workers), "multiprocessing_context": "fork", "collate_fn": list}
        samples = (sample for batch in DataLoader(dataset, batch_size=8, **options) for sample in batch)
    print(json.dumps("begun"), flush=True)
    print(json.dumps(ids_of(samples)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
