"""``stoker inspect``: what a dataset is, and what its samples look like."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from stoker.cli.arguments import integer
from stoker.cli.running import add_format, add_json, add_storage_options, arguments_of, print_json
from stoker.cli.terminal import make_console, make_pairs, make_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from stoker.inspection import DatasetFacts

_WIDEST: Final = 48


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "inspect",
        description="What a dataset is: columns, samples, shards, sizes, codecs, hashes, and its first samples. Reads "
        "no more of it than that takes.",
    )
    parser.add_argument("url", metavar="URL", help="a directory or URL of any format, a file, or a pattern")
    add_format(parser)
    parser.add_argument("--samples", type=integer(0), default=3, metavar="N", help="samples to show; default: 3")
    parser.add_argument("--count", action="store_true", help="read whole files where only that tells their samples")
    parser.add_argument("--pictures", action="store_true", help="draw images, where stdout is a terminal with colours")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Inspect, and say what was found."""
    from stoker.inspection import inspect

    facts = inspect(**arguments_of(inspect, chosen))
    if chosen.json:
        print_json(facts.as_dict())
        return
    _print(make_console(wide=True), facts, pictures=chosen.pictures)


def _print(console: Console, facts: DatasetFacts, *, pictures: bool) -> None:
    from rich.text import Text

    console.print(make_pairs(facts.url, _rows(facts)))
    console.print()
    headings = ("name", "type", "shape")
    table = make_table(headings, title="columns", left=headings, fold=True)
    for column in facts.columns:
        shape = "varies" if column.shape is None else str(column.shape) if column.shape else "-"
        table.add_row(*(Text(text) for text in (_plain(column.name), _plain(column.type), shape)))
    console.print(table)
    for number, sample in enumerate(facts.preview):
        console.print()
        console.print(make_pairs(f"sample {number}", [(_plain(name), shown.text) for name, shown in sample.items()]))
        for shown in sample.values():
            if pictures and console.is_terminal and shown.image is not None:
                console.print(half_blocks(shown.image, min(_WIDEST, console.width)))
    for note in facts.notes:
        console.print()
        console.print(Text(f"note: {_plain(note)}"))


def _rows(facts: DatasetFacts) -> list[tuple[str, str]]:
    from stoker.cli.terminal import count_text
    from stoker.display import bytes_text

    def count(value: int | None) -> str:
        return "not counted" if value is None else count_text(value)

    rows = [
        ("format", facts.format + ("" if facts.indexed else ", without an index.json")),
        ("samples", count(facts.samples)),
        ("row groups" if facts.format == "parquet" else "shards", count(facts.shards)),
        ("files", count_text(facts.files)),
        ("stored", f"{bytes_text(facts.stored_bytes)} ({facts.stored_bytes:,} bytes)"),
    ]
    if facts.raw_bytes is not None and facts.raw_bytes != facts.stored_bytes:
        ratio = f", {facts.raw_bytes / facts.stored_bytes:.2f} times as much" if facts.stored_bytes else ""
        rows.append(("decompressed", f"{bytes_text(facts.raw_bytes)}{ratio}"))
    what = "a shard" if facts.indexed else "a file"
    smallest, largest = bytes_text(facts.smallest_shard), bytes_text(facts.largest_shard)
    rows.append((what, largest if smallest == largest else f"{smallest} to {largest}"))
    if facts.samples:
        rows.append(("a sample", f"{bytes_text(facts.stored_bytes / facts.samples)} on average, as stored"))
    rows.append(("compression", ", ".join(facts.compression) or ("none" if facts.indexed else "none known of")))
    if facts.indexed:
        rows.append(("hashes", ", ".join(facts.hashes) or "none"))
    return rows


def _plain(text: str) -> str:
    """Text of a dataset without what moves a terminal."""
    from stoker.inspection.facts import printable

    return printable(text, 1000)


def half_blocks(image: Any, width: int) -> Text:
    """A picture as text: two pixels a character, the upper half-block's colour and the background's.

    ``image``: a ``PIL.Image``.
    """
    from rich.text import Text

    image.draft("RGB", (2 * width, 2 * width))  # JPEGs are decoded no larger than needed
    columns = min(width, image.width)
    rows = max(2, round(image.height * columns / max(1, image.width)))
    small = image.convert("RGB").resize((columns, rows + rows % 2))
    pixels = small.load()
    text = Text()
    for row in range(0, small.height, 2):
        for column in range(columns):
            (r, g, b), (x, y, z) = pixels[column, row], pixels[column, row + 1]
            text.append("\u2580", style=f"rgb({r},{g},{b}) on rgb({x},{y},{z})")
        text.append("\n")
    return text
