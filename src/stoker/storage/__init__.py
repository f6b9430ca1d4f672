"""URL to bytes: one :class:`Store` for object stores and local files."""

from __future__ import annotations

from stoker.storage.open_store import open_store
from stoker.storage.retry import RetryPolicy
from stoker.storage.store import Store
from stoker.storage.types import BufferLike, ObjectInfo, PutData
from stoker.storage.url import check_key, is_local, join_url

__all__ = [
    "BufferLike",
    "ObjectInfo",
    "PutData",
    "RetryPolicy",
    "Store",
    "check_key",
    "is_local",
    "join_url",
    "open_store",
]
