"""``stoker inspect``: what a dataset is, and what its samples look like."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from stoker.cli.arguments import integer
from stoker.cli.running import add_format, add_json, add_storage_options, arguments_of, print_json
from stoker.cli.terminal import make_console, make_pairs, make_table, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from stoker.inspection import DatasetFacts
    from stoker.inspection.facts import LayoutFacts, TokenFacts

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
    parser.add_argument(
        "--count",
        action="store_true",
        help="read whole files where only that tells their samples, or the lengths of all documents",
    )
    parser.add_argument("--column", metavar="NAME", help="column of token ids; default: input_ids, token_ids or tokens")
    parser.add_argument(
        "--token-dtype",
        metavar="NAME",
        help="what bytes, or .bin files that are one array of tokens, hold: uint16, ...",
    )
    parser.add_argument(
        "--sequence-length",
        dest="sequence_lengths",
        action="append",
        type=integer(1),
        metavar="N",
        help="compare the layouts of the token loaders for rows of N tokens; may be given again; default: 2048, 4096, 8192",
    )
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
    if facts.tokens is not None:
        _print_tokens(console, facts.tokens)
    for number, sample in enumerate(facts.preview):
        console.print()
        console.print(make_pairs(f"sample {number}", [(_plain(name), shown.text) for name, shown in sample.items()]))
        for shown in sample.values():
            if pictures and console.is_terminal and shown.image is not None:
                console.print(half_blocks(shown.image, min(_WIDEST, console.width)))
    for note in facts.notes:
        console.print()
        console.print(Text(f"note: {_plain(note)}"))


def _print_tokens(console: Console, facts: TokenFacts) -> None:
    from rich.text import Text

    from stoker.display import counted

    rows = [("column", facts.column)] if facts.column else []
    rows += [("dtype", facts.dtype or "not told by the column's type")]
    unknown = "not told by the files" if facts.column is None else "not counted; --count reads all"
    rows += [("documents", unknown if facts.documents is None else f"{facts.documents:,}")]
    rows += [("tokens", unknown if facts.tokens is None else f"{facts.tokens:,}")]
    if told := facts.tokenizer:
        eos = "no token is put behind" if told.get("eos_id") is None else f"token {told['eos_id']} ends"
        hashed = str(told.get("tokenizer_sha256", ""))[:12]
        rows += [("tokenizer", f"of {told.get('vocab_size', 0):,} ids, sha256 {hashed}...; {eos} each document")]
    if "packed" in told:
        rows += [
            ("packed", f"what is called a document here is a row of documents of at most {told['packed']:,} tokens")
        ]
    sampled = facts.looked_at_tokens != facts.tokens
    of = f"{'a sample of ' if sampled else ''}{counted(facts.looked_at, 'document')}"
    if facts.lengths:
        quantiles = ", ".join(f"{name.replace('%', ' %')} {length:,}" for name, length in facts.lengths.items())
        rows += [("lengths", f"{quantiles}, of {of}")]
    console.print()
    console.print(make_pairs("tokens", rows))
    if not facts.layouts:
        return
    layouts = list(dict.fromkeys(one.layout for one in facts.layouts))
    title = f"waste of each layout, of {of}" if facts.looked_at else "waste"
    table = make_table(("tokens a row", *layouts), title=title, left=layouts, fold=True)
    for length in dict.fromkeys(one.sequence_length for one in facts.layouts):
        cells = [_waste(one, facts.looked_at_tokens) for one in facts.layouts if one.sequence_length == length]
        table.add_row(*(Text(text) for text in (f"{length:,}", *cells)))
    console.print()
    print_table(console, table)


def _waste(layout: LayoutFacts, tokens: int) -> str:
    """The padding of a layout, and what becomes of documents that are longer than a row."""
    if layout.layout == "concat":
        return f"0 %; {layout.padding:,} in the last row"
    padding = f"{layout.padding / max(1, layout.rows * layout.sequence_length):.2%} padding".replace("%", " %")
    if not layout.longer:
        return padding
    if layout.layout == "pad":
        return f"an error: {layout.longer:,} longer"
    cut = f"{layout.cut / max(1, tokens):.2%} cut".replace("%", " %")
    return f"{padding}, {cut if layout.layout == 'truncate' else f'{layout.longer:,} split'}"


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
