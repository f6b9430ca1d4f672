"""Files of a split of a dataset of the Hugging Face Hub: by the header of its README, else by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from stoker.catalog.splits import keys_of_split, splits_of
from stoker.catalog.unindexed.files_location import Files, is_pattern, matching
from stoker.display import counted
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.index.index import INDEX_NAME
from stoker.storage import RetryPolicy, join_url, open_store
from stoker.storage.unfinished import is_hidden
from stoker.types import StorageOptions

if TYPE_CHECKING:  # with its HTTP client it takes longer to import than most of the catalog
    from stoker.storage.hub.hub_store import HubStore

_DEFAULT: Final = "default"
_MOST_NAMED: Final = 10
# Files that the Hub's repositories have beside data.
_BESIDE: Final = re.compile(r"(?:.*/)?(?:README\.md|LICENSE[^/]*|\.git[^/]*|dataset_infos\.json)", re.IGNORECASE)


def is_hub(given: object) -> bool:
    """Whether this is the URL of a dataset of the Hub, and not a pattern of its files."""
    return isinstance(given, str) and given.lower().startswith("hf://") and not is_pattern(given)


def hub_files(
    url: str, split: str | None, options: StorageOptions | None, retry: RetryPolicy, stall_timeout: float
) -> tuple[Files, str | None]:
    """The files of a split, or of the only one.

    Args:
        url: of a dataset, or of a folder or a file in it.
        split: the split's name, with that of its config before it and a slash between them where there are several configs;
            ``None`` for the only split.
        options, retry, stall_timeout: see :func:`stoker.storage.open_store`.

    Returns:
        URLs of the files, and no split; or what was given, where it names files as a path does on other stores: a file, a
        folder without a split, or one that has an index.

    Raises:
        ConfigError: there are several configs or splits; names them.
        ObjectNotFoundError: there is no such dataset or split.
    """
    store = cast("HubStore", open_store(url, options, retry=retry, stall_timeout=stall_timeout))
    if store.folder and split is None:
        return url, None
    keys = [info.key for info in store.list()]
    if INDEX_NAME in keys or (split is not None and any(key.startswith(f"{split}/") for key in keys)):
        return url, split
    keys = [key for key in keys if not is_hidden(key) and not _BESIDE.fullmatch(key)]
    configs = {} if store.folder else _configs(store.card(), keys, store.url)
    if configs:
        found = _of_configs(configs, split, store.url)
    elif split is None:
        return url, None  # the listing refuses splits side by side
    else:
        found = keys_of_split(keys, split)
        if not found:
            told = sorted(splits_of(keys)) or sorted({key.partition("/")[0] for key in keys})
            raise ObjectNotFoundError(
                f"{store.url}: neither its README nor the names of its {counted(len(keys), 'file')} tell a split {split!r}; "
                f"there are {_told(told)}. Name the files by a pattern, such as {store.url}/data/{split}-*.parquet",
                url=store.url,
            )
    return [join_url(url, key) for key in found], None


def _configs(card: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, dict[str, list[str]]]:
    """Files of each split of each config, by the header of the README; the default config comes first.

    Raises:
        ConfigError: it names files that are not there.
    """
    entries = card.get("configs")
    configs: dict[str, dict[str, list[str]]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, Mapping):
            continue
        name = str(entry.get("config_name", _DEFAULT))
        below = str(entry.get("data_dir") or "").strip("/.")
        splits: dict[str, list[str]] = {}
        for split, patterns in _patterns(entry.get("data_files")):
            prefixed = [f"{below}/{pattern}".lstrip("/") for pattern in patterns]
            splits[split] = list(dict.fromkeys(key for pattern in prefixed for key in matching(pattern, keys)))
            if not splits[split]:
                raise ConfigError(
                    f"{where}: its README says that split {split!r} of config {name!r} is {', '.join(prefixed)}, and no file "
                    "matches. Name the files by a pattern instead"
                )
        if not splits and below:
            inside = [key for key in keys if key.startswith(f"{below}/")]
            splits = splits_of(inside) or {"train": inside}
        if splits:
            configs[name] = splits
            if entry.get("default") is True or name == _DEFAULT:
                configs = {name: configs.pop(name), **configs}
                configs.setdefault(_DEFAULT, splits)
    return configs


def _patterns(files: Any) -> list[tuple[str, list[str]]]:
    """Splits and the patterns of their files, of a ``data_files`` in any of its forms."""
    if isinstance(files, str):
        return [("train", [files])]
    if isinstance(files, Mapping):
        return [(str(split), _list(path)) for split, path in files.items()]
    if not isinstance(files, list) or not files:
        return []
    if all(isinstance(one, str) for one in files):
        return [("train", files)]
    return [(str(one.get("split", "train")), _list(one.get("path"))) for one in files if isinstance(one, Mapping)]


def _list(path: Any) -> list[str]:
    return [str(one) for one in path] if isinstance(path, list) else [str(path)]


def _of_configs(configs: Mapping[str, Mapping[str, list[str]]], split: str | None, where: str) -> list[str]:
    """The files of the split that is asked for.

    Raises:
        ConfigError, ObjectNotFoundError: that is not clear, or there is none; names all.
    """
    alone = len({id(one) for one in configs.values()}) == 1
    chosen = next(iter(configs.values())) if alone else configs.get(_DEFAULT)
    names = [name for name in configs if name != _DEFAULT or alone]
    config, slash, word = (split or "").rpartition("/")
    if slash and config in configs:
        chosen = configs[config]
    elif slash:
        chosen, word = chosen if alone else None, split or ""
    everything = [f"{name}/{one}" for name in configs if name != _DEFAULT for one in configs[name]]
    if chosen is None:
        raise ConfigError(
            f"{where} has the configs {_told(names)}: choose one of their splits, as by split={everything[0]!r}"
        )
    if split is None and len(chosen) == 1:
        return next(iter(chosen.values()))
    if split is None:
        first = "train" if "train" in chosen else next(iter(chosen))
        more = "" if alone else f", of its default config. Of all configs: {_told(everything)}"
        raise ConfigError(f"{where} has the splits {_told(list(chosen))}: choose one, as by split={first!r}{more}")
    if word not in chosen:
        told = _told(list(chosen) if alone else everything)
        raise ObjectNotFoundError(f"{where} has no split {split!r}, but {told}", url=where)
    return chosen[word]


def _told(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
