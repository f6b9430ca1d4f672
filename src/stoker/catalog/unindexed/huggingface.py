"""Directories that Hugging Face's ``datasets`` made by ``save_to_disk``: which of their files are data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.formats.common.checks import check_basename
from stoker.storage import ObjectInfo, Store

DICT_NAME: Final = "dataset_dict.json"
"""File that lists the splits of a saved ``DatasetDict``."""
STATE_NAME: Final = "state.json"
SAVED_NAMES: Final = (DICT_NAME, STATE_NAME, "dataset_info.json")
"""File that lists the data files of a saved ``Dataset``."""
_MOST: Final = 64 << 20


def refuse_dict(store: Store, key: str = DICT_NAME) -> None:
    """Refuse the directory of a ``DatasetDict`` of several splits. ``key``: its ``dataset_dict.json``."""
    splits = _json(store, key).get("splits")
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise CorruptDataError(f"{store.url_of(key)}: its splits are not a list of names")
    if len(splits) < 2:
        return
    below = key.removesuffix(DICT_NAME)
    first = "train" if "train" in splits else splits[0]
    url = store.url.rstrip("/")
    raise ConfigError(
        f"{url}/{below} is a DatasetDict of the splits {', '.join(splits)}: choose one by naming "
        f'{url}/{below}{first} (a StreamingDataset also by split="{below}{first}"), or take all of them by the pattern '
        f"{url}/{below}*/data-*.arrow"
    )


def state_files(store: Store, key: str = STATE_NAME) -> list[str] | None:
    """Names of the data files that a saved dataset's ``state.json`` lists, in its order; ``None`` if it is another's.

    ConfigError if it was saved with a selection of rows (by ``datasets`` below 2.0), which is not read. CorruptDataError if
    it is not valid.
    """
    state = _json(store, key)
    files = state.get("_data_files")
    if not isinstance(files, list):
        return None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ConfigError(
            f"{store.url_of(key)}: this dataset was saved with a selection of its rows, which only the package datasets "
            "reads: load it there, and save it again after flatten_indices()"
        )
    names = [file.get("filename") if isinstance(file, dict) else None for file in files]
    good = [name for name in names if isinstance(name, str) and check_basename(name) is None]
    if len(good) != len(names):
        raise CorruptDataError(f"{store.url_of(key)}: its _data_files are not names of files")
    return good


def saved_files(files: Sequence[ObjectInfo], others: Iterable[str], store: Store) -> list[ObjectInfo]:
    """Files of a listing without those that ``datasets`` put beside the data: results of ``map`` and ``filter``.

    ConfigError if it is a ``DatasetDict`` of several splits. ObjectNotFoundError if a file that is listed is missing. Gives,
    of directories with a ``state.json``, the files that it lists; of others, all. The order is kept.
    """
    others = list(others)
    for key in others:
        if key.rpartition("/")[2] == DICT_NAME:
            refuse_dict(store, key)
    listed: dict[str, list[str]] = {}
    for key in others:
        folder, slash, name = key.rpartition("/")
        if name == STATE_NAME and (names := state_files(store, key)) is not None:
            listed[folder + slash] = [folder + slash + one for one in names]
    if not listed:
        return list(files)
    by_key = {file.key: file for file in files}
    for folder, keys in listed.items():
        for key in keys:
            if key not in by_key:
                raise ObjectNotFoundError(
                    f"{store.url_of(key)} is missing, which {store.url_of(folder + STATE_NAME)} lists: is the copy of this "
                    "dataset complete?",
                    url=store.url_of(key),
                )
    data = {key for keys in listed.values() for key in keys}
    return [file for file in files if file.key in data or _folder(file.key) not in listed]


def _folder(key: str) -> str:
    folder, slash, _ = key.rpartition("/")
    return folder + slash


def _json(store: Store, key: str) -> dict[str, Any]:
    try:
        found = json.loads(store.get(key, max_bytes=_MOST))
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{store.url_of(key)}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptDataError(f"{store.url_of(key)}: expected an object")
    return found
