"""Make docs/api.md of the code: ``python docs/make_api.py``. A test compares the page with what this makes.

Groups, and which names there are, come from the docstring of ``stoker``; signatures and paragraphs from each name's own.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import stoker

PAGE = Path(__file__).parent / "api.md"
PAGES = {
    "Adaptive": "coordination",
    "Audio": "media/sounds",
    "BadSamples": "bad_samples",
    "Chain": "transforms",
    "HashSplit": "order/subsets",
    "KeepIds": "order/subsets",
    "LMBatch": "tokens",
    "LMStream": "tokens/sources",
    "Lengths": "batches_by_length",
    "Loader": "loaders",
    "Mesh": "order",
    "ReadOptions": "read",
    "Schedule": "order/mixing",
    "ShardConfig": "tokens",
    "SkipIds": "order/subsets",
    "SkipSteps": "lineage",
    "StokerError": "errors",
    "Step": "chains",
    "Stream": "order/mixing",
    "StreamStats": "statistics",
    "StreamingConfig": "shard_loader",
    "StreamingDataLoader": "torch",
    "StreamingDataset": "read",
    "StreamingParquetLoader": "tokens",
    "StreamingShardLoader": "shard_loader",
    "Trace": "tracing",
    "Video": "media",
    "Where": "order/subsets",
    "World": "read",
    "convert": "convert",
    "inspect": "cli/inspect",
    "merge_index": "write",
    "rebuild_index": "write",
    "tokenize": "tokens/tokenize",
    "train_validation_split": "order/subsets",
    "verify": "cli/verify",
}
"""The page of each name; what is not here is on the page of writing."""

_HEAD = """# Public names

All names that you can import from `stoker`. `help(stoker)` lists it, and `help(stoker.StreamingDataset)` describes each
argument. `python docs/make_api.py` generates this page.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(api_page(), encoding="utf-8")


def api_page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for line in (stoker.__doc__ or "").splitlines():
        if re.fullmatch(r"\S.*:", line):
            parts.append(f"## {line[:-1].replace('``', '`')}\n")
        elif found := re.match(r"    (\w+) ", line):
            parts.append(_entry(found[1]))
    return "\n".join(parts)


def _entry(name: str) -> str:
    value = getattr(stoker, name)
    page = PAGES.get(name, "write")
    return f"`{_signature(name, value)}`\\\n{_first_paragraph(value)} [{page}]({page}.md)\n"


def _signature(name: str, value: Any) -> str:
    """Arguments and their defaults; types are in ``help``. Nobody calls results, errors and protocols."""
    if name in ("LMBatch", "Loader", "StokerError", "StreamStats"):
        return name
    parameters = inspect.signature(value).parameters.values()
    untyped = [one.replace(annotation=one.empty, default=_Default.of(one)) for one in parameters]
    return f"{name}{inspect.Signature(untyped)}"


class _Default:
    """A default value as it is written in code."""

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Any:
        """The default of a parameter; what ``inspect`` has for one without is kept."""
        value = parameter.default
        if value is parameter.empty:
            return value
        if dataclasses.is_dataclass(value) and value == type(value)():
            return cls(f"{type(value).__name__}()")
        return cls("..." if "factory" in repr(value) else repr(value))

    def __repr__(self) -> str:
        return self._text


def _first_paragraph(value: Any) -> str:
    """The first paragraph of a docstring, in Markdown."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`<]+?)(?: <[^>]+>)?`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`")


if __name__ == "__main__":
    main()
