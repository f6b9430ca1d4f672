"""Tokens: documents of any length, and batches for language models made of them.

:class:`Ragged` holds documents; :func:`windows`, :func:`pad`, :class:`Joiner` and :class:`Packer` make
:class:`LMBatch` of them. :class:`MegatronFile` and :class:`RawTokens` read token files of other libraries, :func:`tokenize`
makes tokens of text.
"""

from __future__ import annotations

from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.best_fit import best_fit
from stoker.tokens.layouts.pad import pad
from stoker.tokens.layouts.streaming_concat import Joiner
from stoker.tokens.layouts.streaming_pack import Packer
from stoker.tokens.layouts.windows import stream_starts, windows
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.megatron import MegatronFile, MegatronWriter
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.raw import RawTokens
from stoker.tokens.sources.source import MegatronSource, RawSource, TokenSource
from stoker.tokens.tokenize.tokenize import TokenizeReport, tokenize

__all__ = [
    "Joiner",
    "LMBatch",
    "LMSettings",
    "MegatronFile",
    "MegatronSource",
    "MegatronWriter",
    "Packer",
    "Ragged",
    "RawSource",
    "RawTokens",
    "TokenSource",
    "TokenizeReport",
    "best_fit",
    "pad",
    "stream_starts",
    "tokenize",
    "windows",
]
