"""Pictures: encoded bytes to pixels, in a chain of a dataset or alone.

    from stoker.image import RandomResizedCrop

    dataset = StreamingDataset("data/train").random_map(RandomResizedCrop(224, column="jpg"))

Steps of a chain, which put pixels in the place of a column's encoded bytes:
    Decode             whole pictures
    Resize             pictures of one size, or of one length of the shorter side
    CenterCrop         the middle of a picture, at one size
    RandomResizedCrop  a random part of a picture, at one size; for ``random_map``

Steps after these:
    ColorJitter        other brightness, contrast and saturation; for ``random_map``
    Normalize          numbers of mean 0 and deviation 1; for ``batch_map`` or ``map``

Functions:
    decode             the pixels of one picture
    mixup              mixtures of the pictures of a batch
    to_tensor          pixels as a torch tensor

See docs/images.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_package

if TYPE_CHECKING:
    from stoker.image.ops import ColorJitter as ColorJitter
    from stoker.image.ops import Normalize as Normalize
    from stoker.image.ops import mixup as mixup
    from stoker.image.ops import to_tensor as to_tensor
    from stoker.image.picture import decode as decode
    from stoker.image.steps import CenterCrop as CenterCrop
    from stoker.image.steps import Decode as Decode
    from stoker.image.steps import RandomResizedCrop as RandomResizedCrop
    from stoker.image.steps import Resize as Resize

# Of this package all loaders import the memory of batches, and few processes the rest.
_MODULES: Final = {
    "ops": "ColorJitter Normalize mixup to_tensor",
    "picture": "decode",
    "steps": "CenterCrop Decode RandomResizedCrop Resize",
}

__all__, __getattr__ = lazy_package(__name__, _MODULES)
