"""``stoker tokenize``: text in Parquet, JSON lines or plain files to tokens in Parquet or MDS."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import get_args

from stoker.cli.arguments import codec, count, integer
from stoker.cli.running import (
    add_engine,
    add_json,
    add_storage_options,
    arguments_of,
    on_interrupt,
    print_json,
    shows_progress,
)
from stoker.display import counted
from stoker.tokens.tokenize.tokenize import OutputFormat, tokenize


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "tokenize",
        description="Text in Parquet, JSON lines or plain files to tokens in Parquet or MDS.",
    )
    parser.add_argument("src", metavar="SRC", help="a file, a directory or a glob")
    parser.add_argument("dst", metavar="DST", help="a directory or a URL")
    parser.add_argument(
        "--tokenizer", metavar="FILE", required=True, help="tokenizer.json of Hugging Face's tokenizers"
    )
    parser.add_argument("--format", choices=get_args(OutputFormat), default="parquet", help="default: parquet")
    parser.add_argument(
        "--column", metavar="NAME", help="column or key of the text; default: text, content, or the only one"
    )
    parser.add_argument(
        "--append-eos",
        metavar="TOKEN",
        nargs="?",
        const=True,
        default=False,
        help="put this token behind each document; without TOKEN, the one of the usual names that there is",
    )
    parser.add_argument(
        "--special-tokens",
        dest="add_special_tokens",
        action="store_true",
        help="add what the tokenizer's template adds",
    )
    parser.add_argument(
        "--parse-special-tokens",
        action="store_true",
        help="special tokens in a text are these; otherwise text like any other",
    )
    parser.add_argument(
        "--pack",
        type=integer(1),
        metavar="N",
        help="put several documents into each row of at most N tokens; column seq_lengths has their lengths",
    )
    parser.add_argument("--processes", type=integer(1), metavar="N", help="default: one a processor")
    add_engine(parser)
    parser.add_argument("--output-column", metavar="NAME", default="input_ids", help="default: input_ids")
    parser.add_argument(
        "--compression", metavar="NAME", type=codec, default="zstd", help="such as zstd, or none; default: zstd"
    )
    parser.add_argument(
        "--row-group-tokens", type=count, metavar="N", default=1 << 23, help="Parquet; default: 8,388,608"
    )
    parser.add_argument("--file-tokens", type=count, metavar="N", default=1 << 28, help="Parquet; default: 268,435,456")
    parser.add_argument(
        "--replace-bad-bytes", dest="strict", action="store_false", help="plain text that is not UTF-8 is not an error"
    )
    parser.add_argument("--resume", action="store_true", help="continue what a killed run left")
    parser.add_argument("--exist-ok", action="store_true", help="replace what is at DST")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Tokenize, and say what was done."""
    said = "what is done stays, without looking like a dataset: continue with --resume"
    with on_interrupt(said), redirect_stdout(sys.stderr):
        done = tokenize(**arguments_of(tokenize, chosen), progress_bar=shows_progress(chosen))
    if chosen.json:
        print_json(asdict(done))
        return
    left_out = f", {done.empty:,} empty ones left out" if done.empty else ""
    before = " more" if done.resumed else ""
    packed = "" if done.rows is None else f", packed into {counted(done.rows, 'row')}"
    sys.stdout.write(
        f"{done.tokens:,}{before} tokens ({done.dtype}) of {counted(done.documents, 'document')}{left_out}{packed}, in "
        f"{counted(done.files, 'file')} "
        f"at {chosen.dst}; {done.tokens / max(done.seconds, 1e-9) / 1e6:.2f} M tokens/s\n"
    )
