"""Division by wrappers: one around a dataset may divide among the ranks what it delivers, so that the dataset must not.

accelerate, and transformers with it, put such wrappers around every ``IterableDataset``: ``IterableDatasetShard``, with which
each rank reads all and keeps its slice, and ``DataLoaderDispatcher``, with which rank 0 reads all and sends slices. So does
``split_dataset_by_node`` of the ``datasets`` package. A dataset is not told. But when it is asked for samples or for its
length, the wrapper's method is on the call stack: it calls the loader that calls the dataset. That holds in forked workers
too, as a fork keeps the stack. In a thread that reads for a wrapper it is not: see :func:`may_divide`.

Other wrappers divide what has been divided already: ``sharding_filter`` of torch's datapipes, ``split_by_node`` and
``split_by_worker`` of webdataset. They are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from stoker.cluster.call_stack import callers, in_other_thread, module_of
from stoker.concurrency.user_code import in_user_code
from stoker.errors import ConfigError

REMEDY: Final = (
    "let each rank read its own part: accelerate.data_loader.prepare_data_loader(loader, accelerator.device, "
    "num_processes=1, process_index=0, put_on_device=True, dispatch_batches=False) instead of accelerator.prepare(loader)"
)
"""The call by which accelerate does not divide, for errors."""

_ACCELERATE: Final = "accelerate.data_loader"
_DATASETS: Final = "datasets.iterable_dataset"
# transformers has an IterableDatasetShard of its own, with the same attributes.
_SHARDS: Final = ((_ACCELERATE, "IterableDatasetShard"), ("transformers.trainer_pt_utils", "IterableDatasetShard"))
_PIPES: Final = "torch.utils.data.datapipes.iter.sharding"
_WEBDATASET: Final = "webdataset.shardlists"
_OF_WORKERS: Final = ("datasets", "webdataset", "torch.utils.data.datapipes")
# Functions that divide, and their variable that says among how many.
_SPLITTERS: Final = {"split_by_node": "world_size", "split_by_worker": "num_workers"}
_OF_RANKS: Final = (*(module for module, _ in _SHARDS), _DATASETS, _WEBDATASET)
_MODULES: Final = frozenset({_PIPES, *_OF_RANKS})


@dataclass(frozen=True, slots=True)
class OuterDivision:
    """The way in which a wrapper divides what a dataset delivers.

    Attributes:
        wrapper: name of its class, for messages.
        ranks: number of ranks among which it divides.
        batch_size: samples of a global batch, over all ranks; ``None``: it takes whole batches of the dataset's size, as
            many as there are ranks.
        requests: batches in which the loader asks for a global batch.
        kept: the rank whose slice of each global batch is kept, all else that is delivered in this process being thrown
            away; ``None``: all is used, or what is thrown away is not known.
        sends: whether one rank reads for all and sends them their slices; else each rank reads all and keeps its own.
        fills: whether the wrapper repeats samples where a last batch can not be divided equally.
        direct: whether it is around a data set of ours, with nothing between that may add or leave out samples.
    """

    wrapper: str
    ranks: int
    batch_size: int | None
    requests: int = 1
    kept: int | None = None
    sends: bool = False
    fills: bool = True
    direct: bool = False


def wrappers_imported() -> bool:
    """Return whether this process has imported a package that wraps datasets. If not, no wrapper can surround ours."""
    return not sys.modules.keys().isdisjoint(_MODULES)  # looks up the few among the many


def outer_division() -> OuterDivision | None:
    """The division by a wrapper that calls this process now; ``None``: there is none, and the dataset divides.

    ConfigError if there are two wrappers, one in the other, or one that would divide single batches of a dataset.
    """
    if not wrappers_imported() or in_user_code():
        return None  # a dataset that a transform reads: its samples are for the transform, not for the wrapper
    found: Any = None
    division: OuterDivision | None = None
    direct = True
    for frame in callers():
        module = module_of(frame)
        _check_not_divided_again(module, frame)
        one = _wrapper(module, frame)
        described = None if one is None or one is found else _describe(one, frame, direct=direct)
        if described is not None and (described.ranks > 1 or described.sends):
            if division is not None:
                raise ConfigError(
                    f"{division.wrapper} in {described.wrapper}: samples would be divided among the ranks twice. Prepare "
                    "the loader once"
                )
            found, division = one, described
        direct = direct and module.partition(".")[0] == "stoker"
    return division


def may_divide() -> str | None:
    """The module of a wrapper that may divide, unseen, among ranks what this thread reads for another; ``None``: none may."""
    loaded = next((name for name in _OF_RANKS if name in sys.modules), None)
    return loaded if loaded is not None and in_other_thread() and not in_user_code() else None


def may_read_ahead() -> bool:
    """Whether a loader of accelerate may wait, unseen, for what this thread reads, and read ahead or leave batches out."""
    return _ACCELERATE in sys.modules and in_other_thread() and not in_user_code()


def divides_among_workers() -> str | None:
    """The package of the loader's dataset, where that may divide among workers what this thread reads in one of them."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    if info is None or not in_other_thread() or in_user_code():
        return None
    modules = [f"{kind.__module__}." for kind in type(info.dataset).__mro__]
    return next((one for one in _OF_WORKERS if any(name.startswith(f"{one}.") for name in modules)), None)


def skipped_batches() -> int:
    """Batches that a loader of accelerate leaves out of the epoch that it begins to read now (``skip_first_batches``)."""
    frames = (frame for frame in callers() if module_of(frame) == _ACCELERATE)
    return max((int(getattr(frame.f_locals.get("self"), "skip_batches", 0)) for frame in frames), default=0)


def _check_not_divided_again(module: str, frame: FrameType) -> None:
    """See that no function runs that divides what a dataset delivers, without a way for the dataset to leave it to that.

    ConfigError if one does.
    """
    if module == _PIPES:
        name, parts = "sharding_filter", getattr(frame.f_locals.get("self"), "num_of_instances", 1)
    elif module == _WEBDATASET and frame.f_code.co_name in _SPLITTERS:
        name = frame.f_code.co_name
        parts = frame.f_locals.get(_SPLITTERS[name], 1)
    else:
        return
    if parts > 1:
        raise ConfigError(
            f"{name} keeps one of {parts} samples that it gets, and the dataset has already divided them among ranks and "
            f"DataLoader workers: leave {name} out"
        )


def _wrapper(module: str, frame: FrameType) -> Any:
    """The wrapper whose method a frame runs, if it is one that divides."""
    if module not in _MODULES:
        return None
    one = frame.f_locals.get("self")
    if module == _DATASETS:  # an IterableDataset over us, of split_dataset_by_node
        return one if getattr(one, "_distributed", None) is not None else None
    # Not isinstance: a loader of accelerate that is being made has no attributes yet, not even its class.
    return one if issubclass(type(one), _shards()) or _is_dispatcher(one) else None


def _shards() -> tuple[type, ...]:
    classes = (getattr(sys.modules.get(module), name, None) for module, name in _SHARDS)
    return tuple(one for one in classes if isinstance(one, type))


def _is_dispatcher(one: Any) -> bool:
    dispatcher = getattr(sys.modules.get(_ACCELERATE), "DataLoaderDispatcher", None)
    return dispatcher is not None and issubclass(type(one), dispatcher)


def _describe(one: Any, frame: FrameType, *, direct: bool) -> OuterDivision | None:
    """The division of a wrapper whose method runs; ``None`` where only a method further out tells.

    ``one``: the wrapper. ``frame``: of its method. ``direct``: whether it takes the samples from the dataset's own iterator.
    """
    if _is_dispatcher(one):
        return _describe_dispatcher(one, vars(one), frame)
    name = type(one).__name__
    is_shard = isinstance(one, _shards())
    if not is_shard:
        return OuterDivision(name, int(one._distributed.world_size), None, fills=False)
    ranks, rank = int(one.num_processes), int(one.process_index)
    if one.batch_size is None:
        raise ConfigError(
            f"{name} divides single samples, and this loader, with batch_size=None, has whole batches: {REMEDY}"
        )
    if rank >= ranks:
        raise ConfigError(f"{name} divides among {ranks} ranks, of which this should be number {rank}: {REMEDY}")
    size = int(one.batch_size) * (1 if getattr(one, "split_batches", False) else ranks)
    direct = direct and _iterates_itself(one.dataset)
    return OuterDivision(name, ranks, size, kept=rank if direct else None, fills=not one.drop_last, direct=direct)


def _iterates_itself(dataset: Any) -> bool:
    """Whether a wrapper that iterates over this gets a dataset's samples; functions in C between are not on the stack."""
    method = getattr(type(dataset), "__iter__", None)
    return str(getattr(method, "__module__", "")).startswith("stoker.")


def _describe_dispatcher(one: Any, made: Mapping[str, Any], frame: FrameType) -> OuterDivision | None:
    # While it is made it already asks a torchdata loader for its first state, which starts the workers.
    split = made.get("split_batches", frame.f_locals.get("split_batches"))
    if split is None:
        return None
    ranks = int((made.get("state") or sys.modules["accelerate.state"].PartialState()).num_processes)
    if ranks == 1:
        return None
    name, direct = type(one).__name__, _iterates_itself(one.dataset)
    if made.get("submesh_tp") is not None:  # all ranks get the same batches
        return OuterDivision(name, 1, None, sends=True, fills=False, direct=direct)
    size, requests = one.batch_size, 1 if split else ranks
    together = None if size is None else size * requests
    return OuterDivision(name, ranks, together, requests, sends=True, fills=not one.drop_last, direct=direct)
