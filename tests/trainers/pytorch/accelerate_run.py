"""Trains for an epoch under accelerate; see ``trainers.launch``.

``--variant`` has words: ``loader`` (StreamingDataLoader, else torch's DataLoader), ``columnar``, ``shard`` (each rank reads,
else rank 0 dispatches), ``split`` (``split_batches``), ``own``
(divided by the dataset alone), ``stateful``, ``drop_last``, ``spawn``, ``static`` (a
partition that gives each rank its part), ``parquet`` (StreamingParquetLoader); and between loader and dataset ``ahead`` (a
thread that reads ahead), ``map`` (a function in C), ``chain`` (two datasets, one after the other), ``there`` (it is
opened where it is read), each ``told`` that accelerate divides, or not; ``tp`` (a
device mesh along which all ranks read the same), ``replicated`` (the dataset knows).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import prepare_data_loader
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

from stoker import KeepIds, StreamingDataLoader, StreamingDataset, StreamingParquetLoader, World
from trainers.launch import arguments, record


class Ahead(IterableDataset[Any]):
    """Reads a dataset in a thread."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        read: queue.Queue[Any] = queue.Queue(8)

        def run() -> None:
            try:
                for sample in self.dataset:
                    read.put(sample)
            except Exception as error:
                read.put(error)
            else:
                read.put(None)

        threading.Thread(target=run, daemon=True).start()
        for sample in iter(read.get, None):
            if isinstance(sample, Exception):
                raise sample
            yield sample


class Mapped(IterableDataset[Any]):
    """A dataset whose samples go through a function, by an iterator in C."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(dict, iter(self.dataset))


class MadeThere(IterableDataset[Any]):
    """A dataset that is opened where it is read."""

    def __init__(self, data: str, batch_size: int, world: World | None) -> None:
        self.data = data
        self.how: dict[str, Any] = {"batch_size": batch_size, "world": world}

    def __iter__(self) -> Iterator[Any]:
        return iter(StreamingDataset(self.data, **self.how))


def main() -> None:
    options = arguments(__doc__)
    words = set(options.variant.split())
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(
            dispatch_batches=False if "shard" in words else None,
            split_batches="split" in words,
            use_stateful_dataloader="stateful" in words,
        )
    )
    batch_size = options.batch_size * (accelerator.num_processes if "split" in words else 1)
    partition = "round_robin" if "static" in words else "elastic"
    dataset: Any = StreamingDataset(
        options.data,
        shuffle=True,
        batch_size=batch_size,
        partition_algo=partition,
        replication=2 if "replicated" in words else None,
        world=World() if "told" in words else None,
    )
    if "there" in words:
        dataset = MadeThere(options.data, batch_size, World() if "told" in words else None)
    if "ahead" in words:
        dataset = Ahead(dataset)
    if "map" in words:
        dataset = Mapped(dataset)
    if "chain" in words:
        parts = (KeepIds(list(range(begin, end))) for begin, end in ((0, 47), (47, 100)))
        dataset = ChainDataset([StreamingDataset(options.data, batch_size=batch_size, subset=part) for part in parts])
    how: dict[str, Any] = {"num_workers": options.workers, "drop_last": "drop_last" in words}
    if options.workers and "spawn" in words:
        how["multiprocessing_context"] = "spawn"
    if "parquet" in words:
        dataset = _parquet(accelerator, Path(options.out), options.batch_size)
        loader: Any = DataLoader(dataset, batch_size=None, collate_fn=_columns, num_workers=options.workers)
    elif "loader" in words or "columnar" in words:
        loader = StreamingDataLoader(dataset, columnar="columnar" in words, **how)
    else:
        loader = DataLoader(dataset, batch_size=batch_size, **how)
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    if "tp" in words:
        mesh = init_device_mesh("cpu", (accelerator.num_processes,), mesh_dim_names=("tp",))
        loader = prepare_data_loader(
            loader,
            accelerator.device,
            put_on_device=True,
            dispatch_batches=False if "shard" in words else None,
            torch_device_mesh=mesh,
        )
    elif "own" in words:
        # Each rank reads its own part, which is accelerate's way for a loader that is divided already.
        loader = prepare_data_loader(
            loader,
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
            use_stateful_dataloader="stateful" in words,
        )
        if "stateful" in words:
            accelerator.register_for_checkpointing(loader)
    else:
        loader = accelerator.prepare(loader)
    checkpoint = Path(options.checkpoint or ".")
    batches = loader
    if options.resume:
        accelerator.load_state(str(checkpoint / "state"))
        if "stateful" not in words:
            # Saved on any number of ranks: what counts is the samples that all ranks had.
            samples = int((checkpoint / "samples").read_text())
            batches = accelerator.skip_first_batches(loader, samples // options.batch_size // accelerator.num_processes)
    steps = []
    for batch in batches:
        loss = model(batch["x"]).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(batch["id"])
        if len(steps) == options.stop_after:
            accelerator.save_state(str(checkpoint / "state"))
            (checkpoint / "samples").write_text(str(len(steps) * options.batch_size * accelerator.num_processes))
            break
    record(options.out, accelerator.process_index, steps)
    accelerator.end_training()


def _parquet(accelerator: Accelerator, out: Path, batch_size: int) -> StreamingParquetLoader:
    """100 rows of tokens, each of which is its number."""
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            rows = pa.table({"input_ids": [np.full(8, number) for number in range(100)]})
            pq.write_table(rows, out / "rows.parquet", row_group_size=10)
    return StreamingParquetLoader(str(out / "rows.parquet"), batch_size=batch_size, seq_len=8)


def _columns(batch: Any) -> dict[str, torch.Tensor]:
    rows = torch.from_numpy(batch.input_ids[:, :8]).long()
    return {"id": rows[:, 0], "x": rows.float()}


if __name__ == "__main__":
    main()
