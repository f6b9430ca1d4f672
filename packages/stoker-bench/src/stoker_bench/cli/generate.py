"""``stoker generate``: writes synthetic data sets of any format to any directory or URL."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import Any, Final

from stoker.cli.arguments import byte_size, codec, count, integer
from stoker.cli.running import add_engine, add_json, add_storage_options, arguments_of, bar, on_interrupt, print_json
from stoker.display import bytes_text, counted

_EPILOG: Final = """\
examples:
  stoker generate s3://bucket/blobs --format parquet --files 100 --samples 1000 --record-bytes 1MB
  stoker generate /data/unet3d --format npz --files 168 --samples 1 --record-bytes 140MB --stdev 68MB --valid-files 42
  stoker generate /data/images --content images --format jpeg --files 100k --subfolders 1000
  stoker generate /data/table --samples 1m --column x=float32:128 --column label=int64 --row-group-size 65536
  stoker generate /data/tokens --content tokens --dims 2048 --samples 100k --files 64
on each of four hosts, i from 0 to 3:
  stoker generate s3://bucket/blobs ... --host-rank i/4
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "generate",
        help="make a synthetic data set",
        description="Synthetic data sets of any format: the same bytes from any number of threads, processes and hosts. "
        "What is half made is completed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="a directory or URL, empty or with the begin of this data set")
    kind = parser.add_argument_group("what")
    kind.add_argument("--format", default="parquet", metavar="NAME", help="such as mds, npz, tar; default: parquet")
    kind.add_argument("--files", type=count, default=1, metavar="N", help="default: 1")
    kind.add_argument("--valid-files", type=count, default=0, metavar="N", help="more files, in valid/ beside train/")
    kind.add_argument(
        "--samples", dest="samples_per_file", type=count, default=1, metavar="N", help="of each file; default: 1"
    )
    kind.add_argument("--content", choices=("random", "tokens", "text", "images"), default="random")
    kind.add_argument("--record-bytes", type=byte_size, metavar="SIZE", help="of a sample, such as 1MB")
    kind.add_argument("--stdev", type=byte_size, default=0, metavar="SIZE", help="standard deviation of that")
    kind.add_argument(
        "--dims", type=_shape, default=(), metavar="N,N,..", help="shape of a sample, or most of an image"
    )
    kind.add_argument("--dtype", default="uint8", metavar="NAME", help="NumPy's type of a sample; default: uint8")
    kind.add_argument(
        "--column",
        dest="columns",
        action="append",
        default=[],
        metavar="NAME=TYPE[:SHAPE]",
        help="a column; may be given again",
    )
    kind.add_argument("--seed", type=integer(0), default=0, metavar="N", help="default: 0")
    kind.add_argument("--compressibility", type=float, default=1.0, metavar="RATIO", help="2: compresses to a half")
    kind.add_argument("--duplication", type=float, default=1.0, metavar="RATIO", help="2: each 64 KiB twice on average")
    kind.add_argument("--vocabulary", type=count, default=50257, metavar="N", help="of tokens; default: 50,257")
    how = parser.add_argument_group("how it lies there")
    how.add_argument(
        "--compression", metavar="NAME", type=codec, help="such as zstd; which there are depends on the format"
    )
    how.add_argument("--subfolders", type=count, default=0, metavar="N", help="folders to spread files over")
    how.add_argument("--prefix", default="part", metavar="NAME", help="begin of files' names; default: part")
    how.add_argument("--row-group-size", type=count, metavar="ROWS", help="of Parquet; of Arrow, a batch")
    how.add_argument("--page-bytes", type=byte_size, default=1 << 20, metavar="SIZE", help="of Parquet; default: 1MB")
    how.add_argument("--hdf5-chunks", type=count, default=0, metavar="ROWS", help="default: contiguous")
    how.add_argument("--image-quality", type=integer(1), default=90, metavar="N", help="of JPEG; default: 90")
    how.add_argument("--hash", action="append", metavar="NAME", help="for the index; default: xxh3_64; none for none")
    work = parser.add_argument_group("the work")
    work.add_argument("--threads", type=integer(1), metavar="N", help="default: one a processor")
    work.add_argument("--processes", type=integer(1), metavar="N", help="default: 1")
    add_engine(work)
    work.add_argument(
        "--host-rank", dest="host", type=_host, default=(0, 1), metavar="I/N", help="this host of several, from 0"
    )
    work.add_argument("--no-resume", dest="resume", action="store_false", help="do not complete what is there")
    work.add_argument("--dry-run", action="store_true", help="only say how large it would be")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Make the data set, and say what was done."""
    from stoker_bench.generation import DatasetSpec, generate

    spec = DatasetSpec(
        **arguments_of(DatasetSpec, chosen),
        hashes=tuple(name for name in chosen.hash or ("xxh3_64",) if name != "none"),
    )
    sizes = _sizes(spec)
    if chosen.dry_run:
        _show_plan(chosen, spec, sizes)
        return
    share = sizes["bytes"] * -(-(spec.files + spec.valid_files) // chosen.host[1]) // (spec.files + spec.valid_files)
    with (
        on_interrupt("files that are whole stay: the same command continues with the others"),
        bar(chosen, f"generating {spec.format}", share) as shown,
        redirect_stdout(sys.stderr),
    ):
        done = generate(spec, **arguments_of(generate, chosen), progress=shown.advance)
    if chosen.json:
        import dataclasses

        print_json(dataclasses.asdict(done))
        return
    rate = bytes_text(done.bytes / max(done.seconds, 1e-9))
    kept = f", {done.kept:,} were there" if done.kept else ""
    rest = "" if done.complete else "; the data set is not whole yet: other hosts have files to make"
    sys.stdout.write(
        f"{done.made:,} of {counted(done.files, 'file')} made{kept}: {bytes_text(done.bytes)} in {done.seconds:.1f} s, "
        f"{rate}/s; {counted(done.samples, 'sample')} at {chosen.url}{rest}\n"
    )


def _sizes(spec: Any) -> dict[str, Any]:
    """Bytes of all files: exact where all are alike or few, else from 64 of them."""
    from stoker_bench.generation.making import FileBuilder, file_size
    from stoker_bench.generation.names import output

    parts = len(spec.form.suffixes)  # files beside each other, such as records and their index
    numbers = spec.files + spec.valid_files
    total = numbers * parts
    some = [number * parts + part for number in sorted({numbers * k // 64 for k in range(64)}) for part in range(parts)]
    found = []
    exact = len(some) == total
    for index in some:
        size = file_size(spec, output(spec, index))
        if size is None:
            # Compressed: one file tells about how large all are.
            making = FileBuilder(spec, output(spec, index))
            for _ in making.chunks():
                pass
            found, exact = [making.facts.size], total == 1
            break
        found.append(size)
    same = len(set(found)) == 1 and len(found) > 1
    return {
        "files": total,
        "samples": spec.samples,
        "bytes": sum(found) * total // len(found),
        "exact": exact or same,
        "smallest": min(found),
        "largest": max(found),
    }


def _show_plan(chosen: argparse.Namespace, spec: Any, sizes: dict[str, Any]) -> None:
    from stoker_bench.generation.names import output

    names = [output(spec, index).name for index in sorted({0, min(1, sizes["files"] - 1), sizes["files"] - 1})]
    columns = {column.name: _type(column) for column in spec.fields}
    if chosen.json:
        print_json({**sizes, "columns": columns, "names": names})
        return
    about = "" if sizes["exact"] else "about "
    smallest, largest = (f"{sizes[name]:,}" for name in ("smallest", "largest"))
    each = largest if smallest == largest else f"{smallest} to {largest}"
    sys.stdout.write(
        f"{counted(sizes['files'], 'file')} of {spec.format}, {counted(spec.samples, 'sample')}, "
        f"{about}{bytes_text(sizes['bytes'])} ({each} bytes each)\n"
        f"columns: {', '.join(f'{name} {kind}' for name, kind in columns.items())}\n"
        f"files: {', '.join(names)}\n"
    )


def _type(column: Any) -> str:
    kind = "token ids, " + column.dtype if column.tokens else column.dtype
    if column.shape:
        return f"{kind}[{','.join(map(str, column.shape))}]"
    return kind if column.numeric else f"{kind} of {column.size:,} ± {column.stdev:,} bytes"


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers with commas between, got {text!r}") from None


def _host(text: str) -> tuple[int, int]:
    rank, slash, hosts = text.partition("/")
    try:
        found = int(rank), int(hosts)
    except ValueError:
        found = (0, 0)
    if not slash or not 0 <= found[0] < found[1]:
        raise argparse.ArgumentTypeError(f"must be I/N with I from 0 below N, got {text!r}")
    return found
