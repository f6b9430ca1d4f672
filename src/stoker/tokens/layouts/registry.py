"""Layouts by name: a layout is added by a class of :class:`~stoker.tokens.layouts.base.TokenLayout` and its line here."""

from __future__ import annotations

from typing import Final, Literal

from stoker.errors import ConfigError
from stoker.tokens.layouts.base import TokenLayout
from stoker.tokens.layouts.bin_packing import TooLong
from stoker.tokens.layouts.concat import ConcatLayout
from stoker.tokens.layouts.pack import PackLayout
from stoker.tokens.layouts.pad import PadLayout, TruncateLayout
from stoker.tokens.settings import LMSettings

LayoutName = Literal["concat", "pack", "pad", "truncate"]

LAYOUTS: Final[dict[str, type[TokenLayout]]] = {
    layout.name: layout for layout in (ConcatLayout, PackLayout, PadLayout, TruncateLayout)
}


def make_layout(name: LayoutName, settings: LMSettings, too_long: TooLong) -> TokenLayout:
    """The layout of a name.

    ``too_long`` is for ``"pack"`` alone.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"layout={name!r} is unknown; known: {', '.join(LAYOUTS)}")
    made = LAYOUTS[name](settings, too_long)
    if too_long != "split" and name != PackLayout.name:
        raise ConfigError(
            f"too_long={too_long!r} is for layout='pack', not {name!r}: 'truncate' cuts long documents, 'pad' refuses them"
        )
    return made
