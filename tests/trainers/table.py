"""Prints which samples came, trainer by trainer: each cell is a run in processes of its own, with a limit of time.

    python tests/trainers/table.py                    # all trainers whose environments are there, as Markdown
    python tests/trainers/table.py --only accelerate  # those whose name begins so
    python tests/trainers/table.py --check            # fails unless every cell is right; without those of one rank alone

A run is of one epoch. "Resumed" is a run that is stopped in the middle of it, and goes on with another number of ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tools")]

from environments import TRAINERS as ENVIRONMENTS  # noqa: E402 - of the folders above
from environments import Variant, is_made, python_of  # noqa: E402
from trainers.launch import Outcome, launch, write_dataset  # noqa: E402

SAMPLES: Final = 100
"""12.5 global batches of two ranks with 4 samples each: the last one is not full."""


@dataclass(frozen=True)
class Trainer:
    """A line of the table.

    Attributes:
        name: in the first column.
        environment: of its packages.
        script: below the environment's folder.
        variant: which of the script's ways.
        fills: most samples that the trainer itself repeats to fill its last batch.
        by_itself: it starts its ranks itself.
        refuses: part of the error with which some resumed runs are refused.
    """

    name: str
    environment: str
    script: str
    variant: str = ""
    fills: int = 0
    by_itself: bool = False
    refuses: str = ""


TRAINERS: Final[tuple[Trainer, ...]] = (
    Trainer("accelerate, DataLoader", "pytorch", "accelerate_run.py"),
    Trainer("accelerate, DataLoader, dispatch_batches=False", "pytorch", "accelerate_run.py", "shard", fills=8),
    Trainer("accelerate, StreamingDataLoader(columnar=True)", "pytorch", "accelerate_run.py", "columnar own"),
    Trainer(
        "accelerate, use_stateful_dataloader=True",
        "pytorch",
        "accelerate_run.py",
        "own stateful",
        refuses="was taken inside an epoch on",
    ),
    Trainer("transformers.Trainer", "pytorch", "transformers_run.py"),
    Trainer("transformers.Trainer, dispatch_batches=False", "pytorch", "transformers_run.py", "shard", fills=8),
    Trainer("trl.SFTTrainer", "pytorch", "transformers_run.py", "sft", fills=8),
    Trainer("Lightning, ddp", "pytorch", "lightning_run.py", "setup", by_itself=True),
    Trainer("Lightning, ddp_spawn", "pytorch", "lightning_run.py", "module spawn", by_itself=True),
    Trainer("FSDP2, torch.distributed.checkpoint", "pytorch", "fsdp_run.py"),
    Trainer("Ray Train", "ray", "train_run.py", "prepared", by_itself=True),
    Trainer("JAX", "jax", "jax_run.py"),
    Trainer("Keras on torch", "jax", "keras_run.py", "torch"),
    Trainer("Keras on JAX", "jax", "keras_run.py", "jax"),
)

CELLS: Final = (
    ("1 rank, workers 0", 1, 0, None),
    ("1 rank, workers 2", 1, 2, None),
    ("2 ranks, workers 0", 2, 0, None),
    ("2 ranks, workers 2", 2, 2, None),
    ("2 → 1 ranks, workers 0", 2, 0, 1),
    ("1 → 2 ranks, workers 2", 1, 2, 2),
)
"""Header, ranks, workers, and the ranks that it is resumed on."""
STOP_AFTER: Final = 6


def run(trainer: Trainer, data: Path, ranks: int, workers: int, resumed_on: int | None) -> Outcome:
    """One cell."""
    script = HERE / trainer.environment / trainer.script
    more = ["--data", data, "--workers", workers, "--variant", trainer.variant]

    def on(count: int, *others: object) -> Outcome:
        return launch(python_of(trainer.environment), script, count, *more, *others, by_itself=trainer.by_itself)

    if resumed_on is None:
        return on(ranks)
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as checkpoint:
        first = on(ranks, "--stop-after", STOP_AFTER, "--checkpoint", checkpoint)
        return first if first.error else first + on(resumed_on, "--resume", "--checkpoint", checkpoint)


def right(trainer: Trainer, outcome: Outcome, resumed: bool) -> bool:
    """Whether each sample came, and came once but for what the trainer fills its last batch with; or was refused."""
    if resumed and trainer.refuses and trainer.refuses in outcome.error:
        return True
    if outcome.error:
        return False
    equal = resumed or outcome.steps_equal
    return outcome.unique == SAMPLES and outcome.twice <= trainer.fills and equal


def shown(trainer: Trainer, outcome: Outcome, resumed: bool) -> str:
    """A cell's text."""
    if outcome.error:
        refused = resumed and trainer.refuses and trainer.refuses in outcome.error
        return "refused" if refused else "hang" if outcome.error == "hang" else "error"
    text = f"{outcome.unique}/{SAMPLES}, {outcome.twice} twice"
    return text if resumed or outcome.steps_equal else f"{text}, steps differ"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "environments", nargs="*", metavar="ENVIRONMENT", help=f"of {', '.join(ENVIRONMENTS)}; default all"
    )
    parser.add_argument("--only", default="", metavar="BEGINNING", help="trainers whose names begin so")
    parser.add_argument("--check", action="store_true", help="fail unless every cell is right")
    options = parser.parse_args()
    chosen = [
        one
        for one in TRAINERS
        if one.environment in (options.environments or ENVIRONMENTS) and one.name.startswith(options.only)
    ]
    missing = {one.environment for one in chosen if not is_made(Variant(one.environment))}
    for name in sorted(missing):
        print(f"no environment {name!r}: make trainers", file=sys.stderr)
    chosen = [one for one in chosen if one.environment not in missing]
    # The resumed runs begin with one rank and workers, and end with one rank and none.
    cells = [cell for cell in CELLS if not options.check or cell[1] > 1 or cell[3]]
    print("| trainer |", " | ".join(header for header, *_ in cells), "|")
    print("|---" * (len(cells) + 1) + "|", flush=True)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="trainers-data-") as folder, ThreadPoolExecutor(2) as threads:
        data = write_dataset(Path(folder) / "data", SAMPLES)
        for trainer in chosen:
            found = [threads.submit(run, trainer, data, *cell) for _, *cell in cells]
            texts = []
            for (header, *_, resumed_on), cell in zip(cells, found, strict=True):
                outcome, resumed = cell.result(), resumed_on is not None
                good = right(trainer, outcome, resumed)
                wrong += not good
                texts.append(shown(trainer, outcome, resumed) + ("" if good else " **wrong**"))
                if outcome.error and not good:
                    print(f"{trainer.name}, {header}: {outcome.error}", file=sys.stderr)
            print(f"| {trainer.name} |", " | ".join(texts), "|", flush=True)
    return 1 if options.check and (wrong or missing) else 0


if __name__ == "__main__":
    sys.exit(main())
