"""Tells which trainer asks, where a loader's batches are not trained on at once, or a setting would be left out.

The functions look at who asked the method that calls them, once an iteration, and only where the trainer is imported. The
trainers have no public names for it; tests with their real packages hold what is looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from stoker.errors import ConfigError

_LIGHTNING: Final = ("lightning.pytorch.", "pytorch_lightning.")
# Modules of torch that take numbers from 0 to the length for ids, but for one class.
_BY_ID: Final = ("torch.utils.data.dataset", "torch.utils.data.distributed", "torch.utils.data.sampler")
_CHAIN: Final = "ChainDataset."
_LOADER: Final = "stoker.loaders.dataloader"
_BY_LENGTH: Final = ("group_by_length", "batch_rebalance")


def reads_ahead() -> bool:
    """Whether batches are asked for before the one before is handed out, so that a state of all would leave one out.

    So do Ray Train's ``prepare_data_loader``, Keras with JAX on an accelerator, and Lightning where the length of its
    loader, or of one of several, is not known.
    """
    frame = asks = _first_outside()
    while frame is not None and (module := _name(frame)).startswith(_LIGHTNING):
        if module.endswith(".loops.fetchers") and frame.f_code.co_name == "__next__":
            fetcher = frame.f_locals["self"]
            return hasattr(fetcher, "prefetch_batches") and fetcher.length is None
        frame = frame.f_back
    if asks is not None and _name(asks).startswith("ray.train."):
        return True
    return any(frame.f_code.co_name == "_one_batch_ahead_iterator" for frame in _frames_of_keras())


def looks_only() -> bool:
    """Whether Keras asks for a batch to build a model by, and then begins anew: the rest of the epoch would be left out."""
    return any(frame.f_code.co_name == "_symbolic_build" for frame in _frames_of_keras())


def check_sampling(dataset: object, *, shuffle: bool) -> None:
    """See that a ``Trainer`` of transformers which asks for the length of its training set has no sampler for it.

    Trainer uses no sampler with an ``IterableDataset``, and says so at the level of ``INFO`` alone. ConfigError if it has
    one, which it would leave out. ``dataset``: whose length is asked for. ``shuffle``: whether its samples are shuffled.
    """
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    frame: FrameType | None = None if trainer is None else sys._getframe(2)
    if frame is None or not _name(frame).startswith("transformers."):
        return
    one: Any = None
    while frame is not None and not isinstance(one, trainer):
        one, frame = frame.f_locals.get("self"), frame.f_back
    if not isinstance(one, trainer) or one.train_dataset is not dataset:
        return
    strategy = getattr(one.args, "train_sampling_strategy", None)
    if strategy in _BY_LENGTH:
        remedy = (
            "Leave it out and write rows of one length, or pack documents, see StreamingParquetLoader(layout='pack'); or "
            "give Trainer the samples by id, train_dataset=LocalDataset(...), which has no order and no state of its own"
        )
    elif strategy == "sequential" and shuffle:
        remedy = "Leave it out and give the dataset shuffle=False"
    else:
        return
    raise ConfigError(
        f"TrainingArguments(train_sampling_strategy={strategy!r}) is for datasets that are read by id. Trainer iterates over "
        f"this one, in the dataset's order, and would leave it out. {remedy}"
    )


def check_divides_by_id(length: int, size: int) -> None:
    """See that torch does not ask for a length to divide samples by their ids, where that is not the number of all samples.

    So do ``random_split``, ``DistributedSampler`` and other samplers. ConfigError if it does: the ids from ``length`` on
    would never come. ``length``: samples that this rank gets in an epoch. ``size``: all samples of the dataset.
    """
    frame = sys._getframe(2)
    if length == size or _name(frame) not in _BY_ID or frame.f_code.co_qualname.startswith(_CHAIN):
        return
    asks = frame.f_code.co_qualname.removesuffix(".__init__")
    raise ConfigError(
        f"{asks} takes the length of a StreamingDataset, {length}, for the number of its samples. That is what this rank "
        f"gets in an epoch; ids are 0 to {size - 1}. A StreamingDataset divides its samples among ranks itself, without a "
        "sampler; to split it write subset=train_validation_split(...)[0]; for samples by id take LocalDataset(...)"
    )


def fetches_by_id() -> bool:
    """Whether a torch ``DataLoader`` over another dataset, which reads by id, asks for a sample."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_qualname == "_MapDatasetFetcher.fetch":
            return True
        frame = frame.f_back
    return False


def _frames_of_keras() -> Iterator[FrameType]:
    """The functions of Keras by which the iterator is asked, the innermost first."""
    frame: FrameType | None = sys._getframe(1) if "keras" in sys.modules else None
    while frame is not None and _name(frame) != _LOADER:
        frame = frame.f_back
    while frame is not None and _name(frame) == _LOADER:  # whose generators lie in each other
        frame = frame.f_back
    while frame is not None and _name(frame).startswith("keras."):
        yield frame
        frame = frame.f_back


def _first_outside() -> FrameType | None:
    """The innermost function on the stack that is not of stoker: it asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _name(frame).startswith("stoker."):
        frame = frame.f_back
    return frame


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


# -- Composer ----------------------------------------------------------------------------------------------------------
#
# Its Trainer counts the samples of its epoch, and asks the training set for state_dict(samples) after so many. When it has
# ended an epoch, it counts 0, although the next one was not begun. A checkpoint that it saves after an epoch's last batch,
# but before it ends the epoch, it resumes with an iteration over what is left, which is nothing.


def ended_by_composer(dataset: object) -> bool:
    """Whether Composer, which asks for a state after no sample of its epoch, has ended the epoch that was begun last."""
    state = _caller("composer.core.state", "State", "state_dict")
    return state is not None and _reads(state, dataset) and int(state.timestamp.epoch) > 0


def nothing_left_for_composer(dataset: object) -> bool:
    """Whether Composer, which begins to iterate, is within an epoch whose state it has resumed from."""
    trainer = _caller("composer.trainer.trainer", "Trainer", "_train_loop")
    if trainer is None or not _reads(trainer.state, dataset):
        return False
    return int(trainer.state.timestamp.batch_in_epoch) > 0 and "train" in trainer.state.dataset_resumption


def _reads(state: Any, dataset: object) -> bool:
    """Whether a dataset is the training set, and its loader the one that is read now."""
    loader = state.train_dataloader
    return getattr(loader, "dataset", None) is dataset and state.dataloader in (loader, None)


def _caller(module: str, kind: str, method: str) -> Any:
    """The object of this class whose method is on the call stack; ``None`` where there is none."""
    wanted: Any = getattr(sys.modules.get(module), kind, None)
    frame: FrameType | None = None if wanted is None else sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == method and isinstance(one := frame.f_locals.get("self"), wanted):
            return one
        frame = frame.f_back
    return None
