"""Looks at some blocks of the files of a data set: storage may keep zeros and repeated bytes without a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stoker.errors import StokerError
from stoker.storage import ObjectInfo, Store, open_store
from stoker_bench.measure.generation import spec_of
from stoker_bench.settings.workload import Workload

_BLOCK: Final = 4096
_FILES: Final = 8
_BLOCKS: Final = 4
_MOST_MADE: Final = 16 << 20
"""Bytes of a file that are made again, to compare blocks of them."""


def look_at(workload: Workload, url: str, files: Sequence[ObjectInfo], rank: int = 0) -> dict[str, Any]:
    """Look at some blocks of some of the files to train on.

    Args:
        workload: what was run.
        url: the data set.
        files: those that are read, by their keys below ``train/``.
        rank: whose settings of the store are used.

    Returns:
        For JSON: ``blocks`` that were looked at, how many of them are of one byte, again and again (``constant``), how many
        are ``distinct``, and whether the blocks of a file that stoker generated are those of its seed (``as_generated``;
        ``None`` for other files).
    """
    store = open_store(f"{url.rstrip('/')}/train", workload.storage.store_options(url, rank))
    chosen = [files[at * len(files) // min(_FILES, len(files))] for at in range(min(_FILES, len(files)))]
    found = {one.key: dict(_blocks(store, one)) for one in chosen}
    blocks = [block for each in found.values() for block in each.values()]
    return {
        "blocks": len(blocks),
        "constant": sum(block.count(block[:1]) == len(block) for block in blocks),
        "distinct": len(set(blocks)),
        "as_generated": _as_generated(workload, url, found[chosen[-1].key], chosen[-1].key, rank) if chosen else None,
    }


def _blocks(store: Store, file: ObjectInfo) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of blocks all over a file."""
    size = min(_BLOCK, file.size)
    count = min(_BLOCKS, file.size // _BLOCK) or int(file.size > 0)
    with store.opened_ranges(file.key) as read:
        for at in range(count):
            # In the middle of parts of the file, not in its header.
            first = max(0, (2 * at + 1) * file.size // (2 * count) - size // 2)
            yield first, read(first, first + size)


def _as_generated(workload: Workload, url: str, blocks: dict[int, bytes], key: str, rank: int) -> bool | None:
    from stoker_bench.generation import file_names, iterate_file
    from stoker_bench.generation.marker import check_destination

    root = url if workload.dataset.files_eval else f"{url.rstrip('/')}/train"
    try:
        spec = spec_of(workload)
        if not check_destination(open_store(root, workload.storage.store_options(url, rank)), spec, resume=True):
            return None
    except StokerError:
        return None  # others' files
    names = file_names(spec)
    name = f"train/{key}" if workload.dataset.files_eval else key
    if name not in names:
        return None
    made = bytearray()
    for chunk in iterate_file(spec, names.index(name)):
        made += chunk
        if len(made) >= _MOST_MADE:
            break
    return all(
        made[first : first + len(block)] == block for first, block in blocks.items() if first + _BLOCK <= len(made)
    )
