"""``stoker index``: an index for shards that have none, for files that others wrote, or for several datasets."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stoker.cli.running import add_format, add_json, add_storage_options, on_interrupt, print_json
from stoker.display import counted
from stoker.errors import ConfigError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "index",
        description="Make the index of shards that have none; look at all files of a dataset without an index, so that "
        "the next start does not; or, with --merge, make one index of several.",
    )
    parser.add_argument("urls", metavar="URL", nargs="+", help="a dataset; with --merge, those to merge")
    parser.add_argument(
        "--merge", action="store_true", help="merge the datasets named, or those in sub-directories of the one named"
    )
    parser.add_argument("-o", "--output", metavar="URL", help="--merge: the root that the merged index goes to")
    add_format(parser)
    parser.add_argument("--local", metavar="DIR", help="the cache beside which what is known of files is kept")
    parser.add_argument("--skip-damaged", action="store_true", help="leave torn and missing shards out")
    parser.add_argument("--exist-ok", action="store_true", help="rebuild an index that exists")
    add_storage_options(parser)
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Make an index, and say which."""
    with on_interrupt("an index is written whole or not at all"):
        said = _merge(chosen) if chosen.merge else _build(chosen)
    if chosen.json:
        print_json(said)
        return
    sys.stdout.write(
        f"{said['kept']}: {counted(said['samples'], 'sample')} in {counted(said['shards'], 'shard')} of format "
        f"{said['format'] or 'none'}\n"
    )


def _merge(chosen: argparse.Namespace) -> dict[str, Any]:
    from stoker.index.index import INDEX_NAME
    from stoker.index.merge import merge_index
    from stoker.storage import open_store

    if chosen.format is not None or chosen.local is not None:
        raise ConfigError("--merge takes datasets that have an index.json; leave --format and --local away")
    several = chosen.urls if len(chosen.urls) > 1 or chosen.output is not None else chosen.urls[0]
    if isinstance(several, list) and chosen.output is None:
        raise ConfigError("--merge of several datasets needs -o URL: the root that the merged index goes to")
    index = merge_index(several, chosen.output, storage_options=chosen.storage_options)
    root = open_store(chosen.output or chosen.urls[0], None)
    return _said(index, root.url_of(INDEX_NAME))


def _build(chosen: argparse.Namespace) -> dict[str, Any]:
    from stoker.catalog.detect import detect
    from stoker.catalog.open_format import open_format
    from stoker.formats.registry import format_name
    from stoker.index.index import INDEX_NAME
    from stoker.index.shard_files import rebuild_index
    from stoker.storage import is_local, open_store

    if len(chosen.urls) > 1 or chosen.output is not None:
        raise ConfigError("one URL at a time; with several datasets, or -o, use --merge")
    (url,) = chosen.urls
    options = chosen.storage_options if is_local(url) is None else None
    name = format_name(chosen.format)
    if name is None:
        found = detect(url, options)
        name = found.format
    if name in (None, "mds"):
        index = rebuild_index(url, skip_damaged=chosen.skip_damaged, exist_ok=chosen.exist_ok, storage_options=options)
        return _said(index, open_store(url, None).url_of(INDEX_NAME))
    if chosen.skip_damaged or chosen.exist_ok:
        raise ConfigError(
            f"--skip-damaged and --exist-ok are for shards; what is known of {name} files is always collected again"
        )
    remote, local = (None, url) if chosen.local is None and is_local(url) is not None else (url, chosen.local)
    location = open_format(name, remote, local, None, options=chosen.format_options, storage_options=options)
    return _said(location.index, f"{location.keep[0]}/.stoker")


def _said(index: Any, kept: str) -> dict[str, Any]:
    return {
        "kept": kept,
        "format": ", ".join(sorted({info.format for info in index.shards})) or None,
        "samples": index.samples,
        "shards": len(index),
        "bytes": index.total_bytes,
        "columns": list(index.columns),
    }
