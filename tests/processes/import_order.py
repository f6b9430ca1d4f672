"""Reads a dataset through a DataLoader, torch being imported at a given moment: ``import_order.py DATA ORDER``."""

import json
import sys
from typing import Any

from support import ids_of


def main(data: str, order: str) -> None:
    if order == "torch first":
        import torch

        assert torch.__version__
    import stoker

    if order == "stoker first":
        import torch
    dataset: Any = stoker.StreamingDataset(local=data, shuffle=True)
    from torch.utils.data import DataLoader, IterableDataset

    loader: Any = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    ids = ids_of(loader)
    assert sorted(ids) == list(range(len(ids)))
    print(json.dumps({"samples": len(ids), "iterable": isinstance(dataset, IterableDataset)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
