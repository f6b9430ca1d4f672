"""``stoker inspect``: what a dataset is, and what its samples look like."""

from __future__ import annotations

import argparse
from pathlib import Path
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
    parser.add_argument("--count", action="store_true", help="read all where only that tells samples or lengths")
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="describe token data instead: documents, their lengths, and what each layout of the token loaders wastes",
    )
    parser.add_argument("--column", metavar="NAME", help="of token ids; default: input_ids, token_ids or tokens")
    parser.add_argument(
        "--token-dtype", metavar="NAME", help="of tokens in columns of bytes, or in .bin files that are one array"
    )
    parser.add_argument(
        "--sequence-length",
        dest="sequence_lengths",
        action="append",
        type=integer(1),
        default=argparse.SUPPRESS,
        metavar="N",
        help="tokens in a row, also several times; default: 2048, 4096 and 8192",
    )
    parser.add_argument("--pictures", action="store_true", help="draw images, where stdout is a terminal with colours")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Inspect, and say what was found."""
    from stoker.inspection import inspect

    if chosen.tokens:
        _run_tokens(chosen)
        return
    facts = inspect(**arguments_of(inspect, chosen))
    if chosen.json:
        print_json(facts.as_dict())
        return
    _print(make_console(wide=True), facts, pictures=chosen.pictures)


def _run_tokens(chosen: argparse.Namespace) -> None:
    """Describe token data."""
    from rich.text import Text

    from stoker.inspection import inspect_tokens

    facts = inspect_tokens(_token_source(chosen), **arguments_of(inspect_tokens, chosen))
    if chosen.json:
        print_json(facts.as_dict())
        return
    documents = "not told by the files" if facts.documents is None else f"{facts.documents:,}"
    rows = [("documents", documents), ("tokens", f"{facts.tokens:,} of {facts.dtype}")]
    if facts.lengths:
        of = "all" if facts.looked_at == facts.documents else f"a sample of {facts.looked_at:,}"
        lengths = ", ".join(f"{name.replace('%', ' %')} {length:,}" for name, length in facts.lengths.items())
        rows.append(("lengths", f"{lengths}, of {of}"))
    console = make_console(wide=True)
    console.print(make_pairs(facts.url, rows))
    console.print()
    headings = ("tokens a row", "layout", "rows", "padding", "tokens cut", "longer documents")
    table = make_table(headings, title="layouts", left=("layout",))
    for one in facts.layouts:
        share = f"{one.padding / max(1, one.rows * one.sequence_length):.2%}"
        cells = (f"{one.sequence_length:,}", one.layout, f"{one.rows:,}", share, f"{one.cut:,}", f"{one.longer:,}")
        table.add_row(*map(Text, cells))
    console.print(table)


def _token_source(chosen: argparse.Namespace) -> Any:
    """The source that a token loader would be given for this URL."""
    from stoker import StreamingDataset
    from stoker.errors import ConfigError
    from stoker.formats.parquet.facts import TOKEN_COLUMNS
    from stoker.inspection import inspect
    from stoker.tokens import DatasetSource, MegatronSource, RawSource

    url = str(chosen.url)
    if arrays := _array_files(Path(url)):
        if any(file.with_suffix(".idx").exists() for file in arrays):
            return MegatronSource(url)
        if chosen.token_dtype is None:
            raise ConfigError(
                f"{arrays[0]} has no .idx next to it, so it is not Megatron's: if it is one array of tokens, say which "
                "integers these are, as in --token-dtype uint16"
            )
        return RawSource(url, chosen.token_dtype, row_tokens=1 << 20)
    facts = inspect(**arguments_of(inspect, chosen) | {"samples": 0, "count": False})
    if facts.format == "parquet" and not facts.indexed:
        return url
    columns = {column.name: column.type for column in facts.columns}
    column = chosen.column or next((name for name in TOKEN_COLUMNS if name in columns), None)
    if column is None:
        described = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
        raise ConfigError(
            f"{url}: no column is called {' or '.join(TOKEN_COLUMNS)}: name one with --column: {described}"
        )
    dataset = StreamingDataset(url, columns=[column], **arguments_of(StreamingDataset, chosen))
    return DatasetSource(dataset, column, token_dtype=chosen.token_dtype)


def _array_files(path: Path) -> list[Path]:
    """The ``.bin`` files of tokens that a path names, or those in a directory that holds no other data."""
    if path.suffix in (".bin", ".idx"):
        return [path.with_suffix(".bin")]
    others = [*path.glob("index.json"), *path.glob("*.parquet")] if path.is_dir() else []
    return [] if others else sorted(path.glob("*.bin"))


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
