"""Two epochs with ``gather_for_metrics`` and gradient accumulation; writes what it saw to ``--checkpoint``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from stoker import StreamingDataset
from stoker.errors import StateError
from trainers.launch import arguments, record


def main() -> None:
    options = arguments(__doc__)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    dataset = StreamingDataset(options.data, shuffle=True, batch_size=options.batch_size)
    loader: Any = DataLoader(dataset, batch_size=options.batch_size)
    if options.variant == "own":
        loader = prepare_data_loader(
            loader, accelerator.device, num_processes=1, process_index=0, put_on_device=True, dispatch_batches=False
        )
    else:
        loader = accelerator.prepare(loader)
    model = torch.nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    steps: list[Any] = []
    orders: list[list[int]] = []
    updates, refused = 0, []
    for _ in range(2):
        gathered = []
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"]).square().mean())
                optimizer.step()
                updates += accelerator.sync_gradients
                optimizer.zero_grad()
            gathered += accelerator.gather_for_metrics(batch["id"]).tolist()
            steps.append(batch["id"])
            if not orders and len(steps) == 2:
                refused.append(_is_refused(dataset))
        orders.append(gathered)
    refused.append(_is_refused(dataset))
    if accelerator.is_main_process:
        said = {
            "gathered": [len(order) for order in orders],
            "orders_differ": orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]),
            "length": len(loader),
            "updates": updates,
            "refused": refused,
        }
        Path(options.checkpoint).write_text(json.dumps(said))
    record(options.out, accelerator.process_index, steps)
    accelerator.end_training()


def _is_refused(dataset: StreamingDataset) -> bool:
    try:
        dataset.state_dict()
    except StateError:
        return True
    return False


if __name__ == "__main__":
    main()
