"""Tokens: documents of any length, and batches for language models made of them.

:class:`Ragged` holds documents; :func:`windows`, :func:`pad`, :class:`Joiner` and :class:`Packer` make
:class:`LMBatch` of them. :class:`MegatronFile` and :class:`RawTokens` read token files of other libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.lazy import lazy_package

if TYPE_CHECKING:
    from stoker.tokens.batch import LMBatch as LMBatch
    from stoker.tokens.chat import ChatTokenizer as ChatTokenizer
    from stoker.tokens.chat import PreferencePairs as PreferencePairs
    from stoker.tokens.layouts.bin_packing import best_fit as best_fit
    from stoker.tokens.layouts.concat import Joiner as Joiner
    from stoker.tokens.layouts.concat import stream_starts as stream_starts
    from stoker.tokens.layouts.concat import windows as windows
    from stoker.tokens.layouts.pack import Packer as Packer
    from stoker.tokens.layouts.pad import pad as pad
    from stoker.tokens.settings import LMSettings as LMSettings
    from stoker.tokens.sources.dataset import DatasetSource as DatasetSource
    from stoker.tokens.sources.megatron import MegatronFile as MegatronFile
    from stoker.tokens.sources.megatron import MegatronWriter as MegatronWriter
    from stoker.tokens.sources.megatron import RawTokens as RawTokens
    from stoker.tokens.sources.ragged import Ragged as Ragged
    from stoker.tokens.sources.source import MegatronSource as MegatronSource
    from stoker.tokens.sources.source import RawSource as RawSource
    from stoker.tokens.sources.source import TokenSource as TokenSource
    from stoker.tokens.tokenize.tokenize import TokenizeReport as TokenizeReport

_MODULES: Final = {
    "batch": "LMBatch",
    "chat": "ChatTokenizer PreferencePairs",
    "layouts.bin_packing": "best_fit",
    "layouts.concat": "Joiner stream_starts windows",
    "layouts.pack": "Packer",
    "layouts.pad": "pad",
    "settings": "LMSettings",
    "sources.dataset": "DatasetSource",
    "sources.megatron": "MegatronFile MegatronWriter RawTokens",
    "sources.ragged": "Ragged",
    "sources.source": "MegatronSource RawSource TokenSource",
    "tokenize.tokenize": "TokenizeReport",
}

__all__, __getattr__ = lazy_package(__name__, _MODULES)
