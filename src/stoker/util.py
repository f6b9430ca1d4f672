"""Functions that programs import from ``streaming.base.util``, for those whose imports were changed to stoker's.

from stoker.util import bytes_to_int, clean_stale_shared_memory, get_list_arg, merge_index, number_abbrev_to_int

And one of stoker's own: ``unpack_state``, which makes the state of a run with many streams readable.
"""

import logging

from stoker.index.merge import merge_index
from stoker.pipeline.state.packed import unpack_state
from stoker.units import parse_bytes as bytes_to_int
from stoker.units import parse_count as number_abbrev_to_int

__all__ = [
    "bytes_to_int",
    "clean_stale_shared_memory",
    "get_list_arg",
    "merge_index",
    "number_abbrev_to_int",
    "unpack_state",
]

logger = logging.getLogger(__name__)


def clean_stale_shared_memory() -> None:
    """Does nothing: stoker's processes share anonymous files, which end with the last of them."""
    logger.info("clean_stale_shared_memory() does nothing: stoker leaves nothing in shared memory; leave the call out")


def get_list_arg(text: str) -> list[str]:
    """The parts of a text between its commas; none of an empty text.

    >>> get_list_arg("text,tokens"), get_list_arg("")
    (['text', 'tokens'], [])
    """
    if not text:
        return []
    return text.split(",")
