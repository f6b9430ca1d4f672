"""Trains a small GPT on a mixture whose weights and sources change in mid-run: ``mixed_gpt.py FOLDER NAME [FIRST [STOP]]``.

Each step's global batch has 8 rows, on any number of ranks. From step ``FIRST`` on it continues from ``FOLDER/state.pt``,
which a run with ``STOP`` writes there. Losses of all steps go to ``FOLDER/NAME.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from stoker import StreamingParquetLoader

ROWS, SEQ, WIDTH, STEPS = 8, 32, 32, 24
WEIGHTS = {"counts": 0.6, "squares": 0.3, "steps": 0.1}
EDITED = {"counts": 0.2, "squares": 0.3, "steps": 0.5}


class GPT(nn.Module):
    """A decoder of one layer, in numbers of 64 bits, so that the order of a sum does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, 64)
        self.double()

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Logits, shape ``(b, s, 64)``."""
        apart = documents[:, :, None] != documents[:, None, :]
        mask = (apart | torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)).repeat_interleave(2, dim=0)
        made: torch.Tensor = self.head(self.block(self.tokens(ids) + self.positions(positions), src_mask=mask))
        return made


def main(folder: Path, name: str, first: int, stop: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = StreamingParquetLoader(
        {source: folder / source for source in WEIGHTS},
        batch_size=ROWS // dist.get_world_size(),
        seq_len=SEQ,
        layout="pack",
        pad_id=0,
        weights=WEIGHTS,
        epoch_tokens=ROWS * SEQ * STEPS,
    )
    if first:
        saved = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    losses = []
    for step, batch in enumerate(loader, first):
        inputs = batch.torch("input_ids", "labels", "position_ids", "document_ids")
        logits = model(inputs["input_ids"], inputs["position_ids"], inputs["document_ids"])
        total = functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
        sums = torch.stack([total.detach(), (inputs["labels"] != -100).sum().double()])
        dist.all_reduce(sums)
        optimizer.zero_grad()
        (total / sums[1]).backward()  # type: ignore[no-untyped-call]
        for one in model.parameters():
            dist.all_reduce(one.grad)
        optimizer.step()
        losses.append(float(sums[0] / sums[1]))
        if step == 7 and name != "unchanged":
            loader.set_weights(EDITED)
        if step == 15 and name != "unchanged":
            loader.remove("steps", {"counts": 0.5, "squares": 0.5})
        if step + 1 == stop:
            break
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    if dist.get_rank() == 0:
        (folder / f"{name}.json").write_text(json.dumps(losses))
        if stop:
            torch.save(state, folder / "state.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = [int(one) for one in sys.argv[3:]]
    main(Path(sys.argv[1]), sys.argv[2], *[*numbers, 0, 0][:2])
