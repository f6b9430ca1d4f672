"""Tokens: documents of any length, and batches for language models made of them.

:class:`Ragged` holds documents, :mod:`stoker.tokens.layouts`, :class:`Joiner` and :class:`Packer` make :class:`LMBatch` of
them. :class:`MegatronFile` and :class:`RawTokens` read token files of other libraries, :func:`tokenize` makes tokens of text.
"""

from __future__ import annotations

from stoker.tokens.batch import LMBatch
from stoker.tokens.bestfit import best_fit
from stoker.tokens.files import RawTokens
from stoker.tokens.joining import Joiner
from stoker.tokens.layouts import Cover, cover, pack, pad, stream_starts, windows
from stoker.tokens.megatron import MegatronFile, MegatronWriter
from stoker.tokens.packing import Packer
from stoker.tokens.ragged import Ragged
from stoker.tokens.settings import LMSettings
from stoker.tokens.tokenize import TokenizeReport, tokenize

__all__ = [
    "Cover",
    "Joiner",
    "LMBatch",
    "LMSettings",
    "MegatronFile",
    "MegatronWriter",
    "Packer",
    "Ragged",
    "RawTokens",
    "TokenizeReport",
    "best_fit",
    "cover",
    "pack",
    "pad",
    "stream_starts",
    "tokenize",
    "windows",
]
