"""Pictures: encoded bytes to pixels, in a chain of a dataset or alone.

    from stoker.image import RandomResizedCrop

    dataset = StreamingDataset("data/train").random_map(RandomResizedCrop(224, column="jpg"))

Steps of a chain, which put pixels in the place of a column's encoded bytes:
    Decode             whole pictures
    Resize             pictures of one size, or of one length of the shorter side
    CenterCrop         the middle of a picture, at one size
    RandomResizedCrop  a random part of a picture, at one size; for ``random_map``

Functions:
    decode             the pixels of one picture

See docs/images.md.
"""

from stoker.image.decode import decode
from stoker.image.steps import CenterCrop, Decode, RandomResizedCrop, Resize

__all__ = ["CenterCrop", "Decode", "RandomResizedCrop", "Resize", "decode"]
