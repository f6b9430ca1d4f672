"""``stoker cache``: lists the caches of this machine, and removes copies from them."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from stoker.cli.arguments import byte_size, duration
from stoker.cli.running import add_json, add_storage_options, on_interrupt, print_json
from stoker.errors import ConfigError

if TYPE_CHECKING:
    from stoker.inspection.caches import CacheFacts


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = commands.add_parser(
        "cache",
        description="Caches of this machine. Only copies of data elsewhere are ever removed, and no file that is "
        "in use.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,prune,clear}")
    listing = actions.add_parser("list", help="what caches there are, of which dataset, how large, when last used")
    prune = actions.add_parser("prune", help="remove what was not used for the longest time")
    clear = actions.add_parser("clear", help="remove all that is not in use")
    for action in (listing, prune, clear):
        action.add_argument(
            "directories",
            metavar="DIR",
            nargs="*",
            help="a cache, or a directory of caches; default: $STOKER_CACHE, else ~/.cache/stoker",
        )
        add_json(action)
    prune.add_argument("--to", type=byte_size, metavar="SIZE", help="until all together hold so much, such as 100gb")
    prune.add_argument("--older-than", type=duration, metavar="TIME", help="not used for so long: 12h, 30d")
    prune.add_argument("--gone", action="store_true", help="of datasets that are no longer where they were")
    for action in (prune, clear):
        action.add_argument("--dry-run", action="store_true", help="only say what would be removed")
        add_storage_options(action)


def run(chosen: argparse.Namespace) -> None:
    """List or prune. CacheError if a directory is not there. ConfigError if nothing says what to remove."""
    from stoker.display import bytes_text, counted
    from stoker.inspection.caches import list_caches, prune_caches

    if chosen.action == "list":
        caches = list_caches(chosen.directories)
        if chosen.json:
            print_json([asdict(cache) for cache in caches])
        else:
            _print(caches, {os.path.abspath(os.path.expanduser(one)) for one in chosen.directories})
        return
    clear = chosen.action == "clear"
    if not clear and chosen.to is None and chosen.older_than is None and not chosen.gone:
        raise ConfigError("say what to remove: --to SIZE, --older-than TIME or --gone")
    with on_interrupt("files that are left are whole"):
        report = prune_caches(
            chosen.directories,
            limit=None if clear else chosen.to,
            older_than=None if clear else chosen.older_than,
            gone=not clear and chosen.gone,
            everything=clear,
            dry_run=chosen.dry_run,
            storage_options=chosen.storage_options,
        )
    if chosen.json:
        print_json(asdict(report))
        return
    for note in report.notes:
        sys.stdout.write(f"note: {note}\n")
    held = f"; {report.in_use:,} are in use and stay" if report.in_use else ""
    done = "would be removed" if report.dry_run else "removed"
    sys.stdout.write(
        f"{counted(report.files, 'file')} of {bytes_text(report.bytes)} {done}, "
        f"{bytes_text(report.left_bytes)} are left{held}\n"
    )


def _print(caches: list[CacheFacts], named: set[str]) -> None:
    """Print the caches that hold copies or are named, and in one line what was kept of datasets that are read in place."""
    from rich.text import Text

    from stoker.cli.terminal import make_console, make_table, seconds_text
    from stoker.display import bytes_text, counted, escape

    if not caches:
        sys.stdout.write("there are no caches\n")
        return
    headings = ("cache", "of", "size", "files", "last used", "")
    table = make_table(headings, left=[one for one in headings if one != "size"], fold=True)
    now = time.time()
    shown = [cache for cache in caches if cache.files or cache.downloads or cache.path in named]
    for cache in shown:
        used = "never" if cache.used is None else f"{seconds_text(max(0.0, now - cache.used))} ago"
        state = "in use" if cache.in_use or cache.downloads else ""
        row = (
            cache.path,
            cache.origin or "no copies: left alone",
            bytes_text(cache.bytes),
            f"{cache.files:,}",
            used,
            state,
        )
        table.add_row(*(Text(escape(text)) for text in row))
    if shown:
        table.add_section()
        table.add_row("", "", bytes_text(sum(cache.bytes for cache in shown)), "", "", "")
        make_console(wide=True).print(table)
    if rest := [cache for cache in caches if cache not in shown]:
        kept = bytes_text(sum(cache.kept_bytes for cache in rest))
        sys.stdout.write(
            f"{kept} of indexes and other derived files belong to {counted(len(rest), 'dataset')} without cached shards\n"
        )
