"""Functions that programs import from ``streaming.base.util``, for those whose imports were changed to stoker's.

from stoker.util import clean_stale_shared_memory, merge_index
"""

import logging

from stoker.index.merge import merge_index

__all__ = ["clean_stale_shared_memory", "merge_index"]

logger = logging.getLogger(__name__)


def clean_stale_shared_memory() -> None:
    """Does nothing: stoker's processes share anonymous files, which end with the last of them."""
    logger.info("clean_stale_shared_memory() does nothing: stoker leaves nothing in shared memory; leave the call out")
