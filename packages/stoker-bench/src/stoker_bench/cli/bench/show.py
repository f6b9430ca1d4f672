"""``stoker bench show``: a workload as it would be run, before anything is written."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stoker.cli.arguments import integer, number
from stoker.cli.running import add_json, print_json
from stoker.cli.terminal import make_console, make_pairs, make_table
from stoker.display import bytes_text, counted
from stoker.errors import ConfigError
from stoker_bench.cli.bench.arguments import add_workload

if TYPE_CHECKING:
    from stoker_bench.settings.dlio import Notes
    from stoker_bench.settings.extent import RunExtent
    from stoker_bench.settings.sources import Resolved
    from stoker_bench.settings.workload import Workload


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = kinds.add_parser(
        "show",
        help="show the settings of a workload, where each came from, and how large the run is",
        description="Show the settings of a workload, where each came from, files, bytes, steps, and the least time. Nothing "
        "is written, and no storage is asked.",
    )
    add_workload(parser)
    parser.add_argument("--accelerators", metavar="N", type=integer(1), default=1, help="default: 1")
    parser.add_argument("--all", action="store_true", help="settings that nobody gave, too")
    add_scale(parser)
    add_json(parser)


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Define ``--smoke`` and ``--scale``, which :func:`read_scaled` heeds."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--smoke",
        action="store_true",
        help="a small run that is called a smoke test: 1%% of the files, one epoch, about 1 GB and a minute at most, unless "
        "four steps need more",
    )
    group.add_argument(
        "--scale",
        metavar="PERCENT",
        type=_part,
        help="the same, with so many percent of the files, however much that is",
    )


def _part(text: str) -> float:
    return (
        number(text.strip().removesuffix("%"), "a percentage above 0, up to 100", lambda value: 0 < value <= 100) / 100
    )


def read_scaled(chosen: argparse.Namespace, settings: list[str], accelerators: int) -> Resolved:
    """The workload that was named, scaled where that was asked for; settings of the user's own hold over the scale."""
    from stoker_bench.settings.extent import scaled
    from stoker_bench.settings.sources import read_workload

    found = read_workload(chosen.workload, settings)
    if not chosen.smoke and chosen.scale is None:
        return found
    part = 0.01 if chosen.scale is None else chosen.scale
    workload = found.workload
    if (stages := getattr(chosen, "stages", None)) is not None:  # those of show are the workload's
        workload = replace(workload, stages=tuple(stages))
    small = scaled(workload, part, accelerators, smoke=chosen.smoke)
    return read_workload(chosen.workload, [*(f"{name}={value}" for name, value in small.items()), *settings])


def show_notes(notes: Notes) -> None:
    """Print what is to be said about keys of DLIO's, in two groups, on stderr."""
    for title, group in (("changes the result", notes.changes), ("ignored", notes.ignored)):
        if group:
            sys.stderr.write(f"{title}:\n")
            sys.stderr.writelines(f"  {note}\n" for note in group)


def run(chosen: argparse.Namespace) -> None:
    """Do what was asked.

    Raises:
        StokerError: a run would end with this error before it begins; after all was printed.
    """
    from stoker_bench.preflight import check_settings
    from stoker_bench.settings.extent import extent

    found = read_scaled(chosen, chosen.settings, chosen.accelerators)
    size, saved = extent(found.workload, chosen.accelerators), _checkpoints(found.workload, chosen.accelerators)
    free = _free(chosen.url or found.workload.storage.url)
    settings = _settings(found)
    if not chosen.all:
        settings = {name: one for name, one in settings.items() if one["origin"] is not None}
    if chosen.json:
        notes = found.notes._asdict()
        told = {"extent": asdict(size), "checkpoints": saved, "free_bytes": free}
        print_json({**told, "settings": settings, "notes": notes})
    else:
        show_notes(found.notes)
        console = make_console()
        console.print(_extent(found, size, saved, chosen.accelerators, free))
        table = make_table(("setting", "value", "from"), left=("setting", "value", "from"), fold=True)
        for name, one in settings.items():
            table.add_row(name, _short(one["value"]), one["origin"] or "default")
        console.print(table)
    check_settings(found.workload, chosen.accelerators)


def _settings(found: Resolved) -> dict[str, dict[str, Any]]:
    """Each setting by its path: its value without credentials, and where it came from; ``None`` for a default."""
    from stoker_bench.settings.workload import as_plain, without_credentials

    made: dict[str, dict[str, Any]] = {}
    for section, values in without_credentials(as_plain(found.workload)).items():
        for name, value in values.items() if isinstance(values, dict) else ((None, values),):
            path = section if name is None else f"{section}.{name}"
            below = (one for given, one in found.origins.items() if given == path or given.startswith(f"{path}."))
            made[path] = {"value": value, "origin": next(below, None)}
    return made


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:180]} ... ({len(value)} in all)"


def _free(url: str | None) -> int | None:
    """Free bytes where a directory is, or would be made."""
    from stoker.storage import is_local
    from stoker_bench.measure.page_cache import existing_path

    folder = None if url is None else is_local(url)
    return None if folder is None else shutil.disk_usage(existing_path(folder)).free


def _checkpoints(workload: Workload, accelerators: int) -> dict[str, int] | None:
    """Bytes of a checkpoint, and how many are saved and loaded; ``None`` where there are none, or the ranks do not fit."""
    from stoker_bench.checkpoint.layout import checkpoint_layout
    from stoker_bench.settings.extent import training_checkpoints

    checkpoint = workload.checkpoint
    if "checkpoint" not in workload.stages:
        return None
    try:
        layout = checkpoint_layout(workload.model, accelerators, all_write=checkpoint.ranks == "all")
    except ConfigError:  # which the check of the settings raises
        return None
    mine = [sum(one.bytes for one in files) for files in layout.files[:accelerators]]
    return {
        "bytes": sum(mine),
        "most_rank_bytes": max(mine),
        "whole_bytes": layout.total(),
        "whole_ranks": layout.ranks,
        "saved": checkpoint.writes + training_checkpoints(workload, accelerators),
        "loaded": checkpoint.reads,
    }


def _checkpoint_rows(saved: Mapping[str, int], keep: int) -> Iterator[tuple[str, str]]:
    size, most, whole = (bytes_text(saved[name]) for name in ("bytes", "most_rank_bytes", "whole_bytes"))
    yield "checkpoint", f"{size}, up to {most} of a rank"
    if saved["bytes"] < saved["whole_bytes"]:
        yield "", f"a part of the {whole} of {counted(saved['whole_ranks'], 'rank')}"
    yield "", f"{saved['saved']:,} saved, {saved['loaded']:,} loaded"
    written, read = (bytes_text(saved["bytes"] * saved[name]) for name in ("saved", "loaded"))
    yield "", f"{written} are written, {read} are read"
    kept = min(saved["saved"], keep + 1 if keep else saved["saved"])
    yield "", f"{bytes_text(saved['bytes'] * kept)} are there at once"


def _extent(
    found: Resolved, size: RunExtent, saved: Mapping[str, int] | None, accelerators: int, free: int | None
) -> Any:
    from stoker.cli.terminal import seconds_text

    workload = found.workload
    rows = [("stages", ", ".join(workload.stages)), ("accelerators", str(accelerators))]
    if not {"generate", "train"}.isdisjoint(workload.stages):
        sample = bytes_text(workload.dataset.sample_bytes)
        rows.append(("data set", f"{counted(size.files, 'file')}, {counted(size.samples, 'sample')} of {sample}"))
        rows.append(("", f"{bytes_text(size.bytes)} where nothing is compressed"))
    if "train" in workload.stages:
        epochs = workload.train.epochs * workload.train.repeats
        rows.append(("training", f"{counted(size.steps, 'step')} an epoch, {counted(epochs, 'epoch')}"))
        rows.append(("", f"{bytes_text(size.read_bytes)} are read by all accelerators"))
        rows.append(("least time", f"{seconds_text(size.seconds)} of computing, if no accelerator ever waits"))
    if saved is not None:
        rows += _checkpoint_rows(saved, workload.checkpoint.keep)
    if "kv_cache" in workload.stages:
        cache = workload.kv_cache
        rows.append(("KV cache", f"{cache.users} users of each, {workload.model.kv_bytes:,} bytes a token"))
        rows.append(("time", (f"{cache.repeats} times " if cache.repeats > 1 else "") + seconds_text(cache.seconds)))
    if "vectors" in workload.stages:
        vectors = workload.vectors
        whole = bytes_text(4 * vectors.count * vectors.dimension)
        rows.append(("vectors", f"{vectors.count:,} of {vectors.dimension} values, {whole}"))
    if free is not None:
        rows.append(("free space", bytes_text(free)))
    return make_pairs(f"{workload.name} ({found.source})", rows)
