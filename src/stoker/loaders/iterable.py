"""Base classes that torch takes for its ``IterableDataset`` and ``Dataset``, without importing torch."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from stoker.errors import ConfigError

__all__ = ["TRAINER", "WHOLE_BATCHES", "TorchIterable", "TorchMap", "refuse_collating"]

WHOLE_BATCHES: Final = (
    "this loader makes whole batches, of which a DataLoader with a batch_size would make batches again: use "
    "DataLoader(loader, batch_size=None)"
)
"""The error of a ``DataLoader`` that is to collate batches of tokens."""

TRAINER: Final = """\
from accelerate.data_loader import prepare_data_loader
from stoker import LMBatch
from torch.utils.data import DataLoader
from transformers import Trainer


class TokenTrainer(Trainer):
    def get_train_dataloader(self):
        loader = DataLoader(
            self.train_dataset,
            batch_size=None,
            collate_fn=LMBatch.hugging_face,
            num_workers=self.args.dataloader_num_workers,
        )
        return prepare_data_loader(
            loader,
            self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
        )
"""
"""The lines with which transformers' ``Trainer`` takes whole batches of tokens, each rank its own."""

_COLLATES: Final = ("transformers.", "trl.")

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchMap
    from torch.utils.data import IterableDataset as TorchIterable
else:
    _Item = TypeVar("_Item")

    class _WithoutTorch(Generic[_Item]):
        """Stands in for torch's class until torch is imported."""

    def _like_torch(name: str) -> Any:
        """A base of what is one of torch's datasets wherever torch is imported; type checkers see torch's own.

        As soon as torch is imported, before or after stoker, torch's class becomes the base of this one. A base that is
        torch's from the beginning would make `import stoker` import torch.
        """

        class LikeTorch(_WithoutTorch[_Item]):
            def __init_subclass__(cls, **options: Any) -> None:
                _adopt()
                super().__init_subclass__(**options)

            def __new__(cls, *_: Any, **__: Any) -> Any:
                _adopt()
                return super().__new__(cls)

            @property
            def __class__(self):
                # isinstance() asks for this where the class alone does not tell. If torch was imported since this object
                # was made, the answer is torch's class, once; from then on the class tells.
                return _adopt(type(self)) or type(self)

            def __reduce_ex__(self, protocol: Any) -> Any:
                _adopt()
                return super().__reduce_ex__(protocol)

        LikeTorch.__name__ = LikeTorch.__qualname__ = name
        return LikeTorch

    TorchIterable, TorchMap = _like_torch("TorchIterable"), _like_torch("TorchMap")

    def _adopt(asked: type = object) -> type | None:
        """Make torch's classes the bases, if they are imported and not yet the bases.

        Returns:
            That of the class that is asked for; ``None`` where nothing was done.
        """
        found = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
        if found is None or found in _adopted:
            return None
        other = sys.modules["torch.utils.data"].Dataset
        found.register(TorchIterable)  # what DataLoader asks for, wherever Python can not change a class's bases
        is_map = issubclass(asked, TorchMap)
        with contextlib.suppress(TypeError):
            TorchIterable.__bases__ = (found,)
        with contextlib.suppress(TypeError):
            TorchMap.__bases__ = (other,)
        _adopted.append(found)  # last: other threads may ask meanwhile
        return other if is_map else found


_adopted: list[type] = []


def refuse_collating(kind: type, told: str) -> None:
    """Let torch's ``default_collate`` refuse values of a class with an error that says what to do.

    Torch's own error says that it found no tensor. Its table of collating functions by type is the means that torch provides;
    nothing is imported, and a function that is there already stays. The collators of transformers have no such table: they
    take the attributes of an object for its columns.

    Raises:
        ConfigError: the ``DataLoader`` that begins to iterate has a collator of transformers; shows the lines to write.
    """
    if "transformers" in sys.modules and (name := _collator_of_transformers()):
        raise ConfigError(
            f"{name} makes batches of samples, and this loader has whole ones, which it divides among the ranks: override "
            f"Trainer's method, see docs/trainers/transformers.md:\n\n{TRAINER}"
        )
    collating = sys.modules.get("torch.utils.data._utils.collate")
    table = getattr(collating, "default_collate_fn_map", None)
    if isinstance(table, dict):
        table.setdefault(kind, partial(_refuse, told))


def _collator_of_transformers() -> str:
    """The name of the collator of the ``DataLoader`` that iterates now, where it is one of transformers; else empty."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "torch.utils.data._utils.fetch":
        frame = frame.f_back
    collate = None if frame is None else getattr(frame.f_locals.get("self"), "collate_fn", None)
    collate = getattr(collate, "data_collator", collate)  # Trainer's removes columns, and has the other within
    name = getattr(collate, "__name__", type(collate).__name__)
    return name if str(getattr(collate, "__module__", "")).startswith(_COLLATES) else ""


def _refuse(told: str, _: Any, **__: Any) -> NoReturn:
    raise ConfigError(told)
