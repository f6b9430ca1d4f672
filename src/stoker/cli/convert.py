"""``stoker convert``: a data set of any format to any other, in parallel."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from stoker.cli.arguments import byte_size, codec, count, integer, named, named_json
from stoker.cli.running import (
    Pairs,
    add_engine,
    add_format,
    add_json,
    add_storage_options,
    arguments_of,
    bar,
    on_interrupt,
    print_json,
)
from stoker.cli.terminal import seconds_text
from stoker.display import bytes_text

if TYPE_CHECKING:
    from stoker.reading.bad_samples import BadSamples

ARGUMENTS: Final = {
    "columns": "--columns NAME=TYPE,..., or --select NAME,... to read only some,",
    "split": "",  # divides the result, where StreamingDataset's chooses a part of the source
}
"""Options for arguments that have another name in Python."""

_EXAMPLES = """\
examples:
  stoker convert photos/ s3://bucket/photos --split train=0.9,valid=0.1 --shuffle
  stoker convert s3://bucket/mds table/ --to parquet --compression zstd
  stoker convert saved_by_datasets/ mds/ --columns label=int,caption=str --fill caption=
  stoker convert raw/ mds/ --format files --map mine.prepare:decode --processes 8
  stoker convert s3://bucket/raw s3://bucket/mds --engine ray

A run that was killed or interrupted is completed by the same command.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "convert",
        description="A data set of any format, a folder of images or what datasets.save_to_disk wrote, to MDS, Parquet or "
        "another format.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="a directory, URL, file or pattern")
    parser.add_argument("destination", metavar="DST", help="an empty directory or URL prefix")
    parser.add_argument(
        "--to", metavar="FORMAT", default="mds", help="mds (default), parquet, arrow, tar, tfrecord, ..."
    )
    add_format(parser, "of SRC, where names do not tell; files: a file a sample")
    columns = parser.add_argument_group("columns")
    columns.add_argument(
        "--columns", metavar="NAME=TYPE,...", type=_columns, default={}, help="such as x=int64,y=ndarray:float32:3,4"
    )
    columns.add_argument("--select", metavar="NAME,...", type=_names, help="columns of SRC to read; default: all")
    columns.add_argument(
        "--map",
        metavar="MODULE:FUNCTION",
        dest="transform",
        help="a function from a sample to a sample, a list of samples, or None",
    )
    columns.add_argument("--decode", action="store_true", help="hand images to the function, not their files' bytes")
    columns.add_argument(
        "--fill", metavar="NAME=VALUE", action=Pairs, type=named_json, help="for nulls; a JSON value or text"
    )
    columns.add_argument("--drop-nulls", action="store_true", help="leave out samples with nulls")
    order = parser.add_argument_group("order")
    order.add_argument(
        "--shuffle",
        nargs="?",
        const="global",
        default=False,
        metavar="NAME",
        help="write in another order: global (default) or block",
    )
    order.add_argument("--seed", type=int, default=9176, help="of the order and the split; default: 9176")
    order.add_argument("--split", metavar="NAME=SHARE,...", type=_fractions, help="such as train=0.9,valid=0.1")
    shards = parser.add_argument_group("shards")
    shards.add_argument("--size-limit", metavar="SIZE", type=byte_size, default=1 << 26, help="default: 64MB")
    shards.add_argument("--shard-samples", metavar="N", type=count, help="samples of a shard, instead of its size")
    shards.add_argument("--compression", metavar="CODEC", type=codec, help="such as zstd or zstd:7")
    shards.add_argument(
        "--hashes", metavar="NAME,...", type=_hashes, help="to put in the index; default xxh3_64, or none"
    )
    work = parser.add_argument_group("work")
    work.add_argument("--processes", type=integer(1), metavar="N", help="default: one a processor")
    add_engine(work)
    work.add_argument(
        "--restart", dest="resume", action="store_false", help="start again instead of continuing an unfinished run"
    )
    work.add_argument(
        "--on-bad-sample",
        choices=("raise", "skip"),
        default="raise",
        help="skip: leave out samples that are damaged, do not fit, or of which the function raises; default: raise",
    )
    work.add_argument("--bad-samples", metavar="FILE", help="list them in FILE, a line of JSON each; with skip")
    work.add_argument("--max-bad", type=integer(0), metavar="N", help="end where more are bad; with skip")
    work.add_argument("--allow-unsafe-types", action="store_true", help="decode pickled columns")
    add_storage_options(work)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Convert, and say what was done."""
    from stoker.conversion import convert
    from stoker.display import counted

    with (
        on_interrupt("what is done stays, and the index is not written: the same command continues from there"),
        bar(chosen, "converting", unit="samples") as shown,
        contextlib.redirect_stdout(sys.stderr),  # where Ray would tell of workers that died
    ):
        arguments = {**arguments_of(convert, chosen), "on_bad_sample": _bad_samples(chosen)}
        done = convert(**arguments, progress=_progress(shown))
    if chosen.json:
        print_json(asdict(done))
        return
    kept = "" if done.samples == done.samples_read else f" of {done.samples_read:,} read"
    bad = f", {counted(done.bad_samples, 'bad sample')} left out" if done.bad_samples else ""
    parts = "".join(f", {name} {samples:,}" for name, samples in done.splits.items() if name)
    before = f", {done.resumed} of {done.tasks} tasks done before" if done.resumed else ""
    sys.stdout.write(
        f"{counted(done.samples, 'sample')}{kept}{bad}{parts}, in {counted(done.shards, 'file')} of {done.format} "
        f"at {chosen.destination}, {bytes_text(done.bytes)}; {seconds_text(done.seconds)}, "
        f"{done.samples_read / max(done.seconds, 1e-9):,.0f} samples/s{before}\n"
    )


def _bad_samples(chosen: argparse.Namespace) -> BadSamples:
    """The treatment of bad samples."""
    from stoker.errors import ConfigError
    from stoker.reading.bad_samples import BadSamples

    if chosen.on_bad_sample == "raise" and (chosen.bad_samples is not None or chosen.max_bad is not None):
        raise ConfigError("--bad-samples and --max-bad are for --on-bad-sample skip")
    return BadSamples(chosen.on_bad_sample, max_bad=chosen.max_bad, file=chosen.bad_samples)


def _progress(shown: Any) -> Callable[[int, int], None]:
    """Tells a bar, which counts by steps, how much is done."""
    before = 0

    def progress(done: int, total: int) -> None:
        nonlocal before
        shown.expect(total)
        shown.advance(done - before)
        before = done

    return progress


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be NAME,NAME,..., got {text!r}")
    return names


def _hashes(text: str) -> list[str]:
    names = _names(text)
    return [] if names == ["none"] else names


def _columns(text: str) -> dict[str, str]:
    """Commas stand between columns, and between the sizes of a shape."""
    columns: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        if "=" in part:
            last, encoding = named(part.strip())
            columns[last] = encoding
        elif last and part.strip().isdigit():
            columns[last] += f",{part.strip()}"
        else:
            raise argparse.ArgumentTypeError(f"must be NAME=TYPE,..., got {text!r}")
    return columns


def _fractions(text: str) -> dict[str, Any]:
    """Shares exactly as they are written."""
    from fractions import Fraction

    fractions: dict[str, Any] = {}
    for part in text.split(","):
        name, value = named(part.strip())
        try:
            fractions[name] = Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise argparse.ArgumentTypeError(f"must be NAME=SHARE,..., got {text!r}") from None
    return fractions
