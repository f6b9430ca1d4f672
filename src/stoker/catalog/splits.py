"""Splits of a dataset that lie side by side in one directory (``train/`` and ``test/``), told by their names.

Reading them as one dataset would train on the test samples. A caller who names one directory with several splits in it is
asked for one of them; a pattern or a list of files is read as given.

The files of a split that has no folder of its own are found by the header of the dataset's README, else by their names. So
datasets of the Hugging Face Hub are read, and copies of them elsewhere.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from stoker.catalog.unindexed.files_location import Files, is_hub, is_pattern, matching
from stoker.display import counted
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError, StokerError, import_option
from stoker.formats.common.compression import typed_name
from stoker.index.index import INDEX_NAME
from stoker.storage import RetryPolicy, Store, is_local, join_url, open_store
from stoker.storage.url import is_hidden
from stoker.types import StorageOptions

if TYPE_CHECKING:  # with its HTTP client it takes longer to import than most of the catalog
    from stoker.storage.hub.hub_store import HubStore

_SPLIT_OF: Final[Mapping[str, str]] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_WORD: Final = "|".join(_SPLIT_OF)
# `train`, `val2017`.
_FOLDER: Final = re.compile(rf"({_WORD})(?:[-_]?[0-9]+)?", re.IGNORECASE)
# `train.jsonl`, `train-00000-of-00002.parquet`, `imagenet-val-000001.tar`, `wiki.test.jsonl.gz`,
# `mnist-train.tfrecord-00000-of-00002`; not `test_tube.jpg`.
_FORM: Final = (
    r"(?P<before>.*[-_.])?(?P<word>{words})(?:[-_.]?[0-9].*)?(?:\.[a-z][a-z0-9]*){{1,2}}(?:-[0-9]+-of-[0-9]+)?"
)
_FILE: Final = re.compile(_FORM.format(words=_WORD), re.IGNORECASE)

_DEFAULT: Final = "default"
_MOST_NAMED: Final = 10
_README: Final = "README.md"
_MOST_README: Final = 16 << 20
_HEADER: Final = re.compile(r"\A---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_TELLS: Final = re.compile(r"^configs[ \t]*:", re.MULTILINE)
# Parts and sums of splits, as datasets writes them.
_PART: Final = re.compile(r".+(?:\[.*\]|\+.+)")
_WHOLE: Final = "A split is read whole: take a part by subset=, and several splits by streams="
# Files that the Hub's repositories have beside data.
_BESIDE: Final = re.compile(r"(?:.*/)?(?:README\.md|LICENSE[^/]*|\.git[^/]*|dataset_infos\.json)", re.IGNORECASE)


def refuse_splits(keys: Iterable[str], root: str, *, folders_only: bool = False, whole: str = "") -> None:
    """Check that files below a directory are not of several splits.

    Folders are splits where ``train`` is among them and another split's name, or where all folders beside each other
    have names of splits; files where their names differ in nothing else. Folders ``name=value`` tell a column instead.

    ConfigError if they are; names the splits, and says how to choose one. ``folders_only``: do not look at names of files, as
    of formats with a sample a file. ``whole``: how to take all of them on purpose; default: by a pattern.
    """
    parents: set[str] = set()
    ends: set[str] = set()
    # Directory and what comes before the split's name, to the file names' splits.
    files: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for key in keys:
        folder, _, name = key.rpartition("/")
        parents.add(folder)
        typed = name[: len(typed_name(name))]
        ends.add(typed[typed.rfind(".") :] + "*" * (typed != name) if "." in typed else "")
        if not folders_only and (match := _FILE.fullmatch(name)):
            found = files[folder, match["before"] or ""]
            found.setdefault(_SPLIT_OF[match["word"].lower()], name[: match.end("word")])
    end = "" if "" in ends or not ends else ends.pop() if len(ends) == 1 else f"{{{','.join(sorted(ends))}}}"
    if not whole:
        labels = ", whose `class` is then the folder of the split" if folders_only else ""
        whole = f"by the pattern {root}/**/*{end}{labels}"
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for parent in parents:
        path = parent
        while path:
            path, _, last = path.rpartition("/")
            folders[path].add(last)
    for above, names in sorted(folders.items()):
        splits = {_SPLIT_OF[match[1].lower()]: name for name in sorted(names) if (match := _FOLDER.fullmatch(name))}
        splits.update(files.pop((above, ""), {}))
        if len(splits) > 1 and ("train" in splits or all(_FOLDER.fullmatch(name) for name in names)):
            _refuse(root, above, splits, names, end, whole)
    for (above, _), splits in sorted(files.items()):
        if len(splits) > 1:
            _refuse(root, above, splits, (), end, whole)


def keys_of_split(keys: Iterable[str], split: str) -> list[str]:
    """The files whose names tell that they are of a split, sorted: directly in its folder or in ``data/`` below that.

    ``split``: the split's name, which may begin with the folders that it lies in.
    """
    above, _, word = split.rpartition("/")
    pattern, folders = _name_of(word), (above, f"{above}/data".strip("/"))
    return [
        key
        for key, folder, name in sorted((key, *key.rpartition("/")[::2]) for key in keys)
        if folder in folders and pattern.fullmatch(name)
    ]


def splits_of(keys: Iterable[str]) -> dict[str, list[str]]:
    """Files by the split that their names tell, sorted; files that tell none are left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        if match := _FILE.fullmatch(key.rpartition("/")[2]):
            found[_SPLIT_OF[match["word"].lower()]].append(key)
    return dict(found)


def _name_of(word: str) -> re.Pattern[str]:
    """Names of files of a split: by any of the words for it, or by its own."""
    wanted = _SPLIT_OF.get(word.lower())
    words = [one for one, split in _SPLIT_OF.items() if split == wanted] if wanted else [re.escape(word)]
    return re.compile(_FORM.format(words="|".join(words)), re.IGNORECASE)


def _refuse(root: str, above: str, splits: Mapping[str, str], folders: Iterable[str], end: str, whole: str) -> None:
    below = f"{above}/" if above else ""
    first = splits.get("train", min(splits.values()))
    if first in folders:
        choice = f'naming {root}/{below}{first} (a StreamingDataset also by split="{below}{first}")'
    else:
        word = next(split for split, name in splits.items() if name == first)
        above = re.sub(r"(?:^|(?<=/))data/$", "", below)
        choice = f'the pattern {root}/{below}{first}*{end} (a StreamingDataset also by split="{above}{word}")'
    raise ConfigError(
        f"{root} holds the splits {', '.join(f'{below}{name}' for name in sorted(splits.values()))} side by side, whose "
        f"samples would come as one dataset: choose one, as by {choice}, or take all of them on purpose, {whole}"
    )


def hub_files(
    url: str, split: str | None, options: StorageOptions | None, retry: RetryPolicy, stall_timeout: float
) -> tuple[Files, str | None]:
    """The files of a split, or of the only one.

    Args:
        url: of a dataset, or of a folder or a file in it.
        split: the split's name, with that of its config before it and a slash between them where there are several configs;
            ``None`` for the only split.

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
    data = _data(keys)
    found = _told_files(data, split, {} if store.folder else store.card(), store.url)
    if found is None:
        return url, None  # the listing refuses splits side by side
    if not found and split is not None:
        told = sorted(splits_of(data)) or sorted({key.partition("/")[0] for key in data})
        remedy = (
            _WHOLE
            if _PART.fullmatch(split)
            else f"Name the files by a pattern, such as {store.url}/data/{split}-*.parquet"
        )
        raise ObjectNotFoundError(
            f"{store.url}: neither its README nor the names of its {counted(len(data), 'file')} tell a split {split!r}; "
            f"there are {_told(told)}. {remedy}",
            url=store.url,
        )
    return [join_url(url, key) for key in found], None


def files_of_split(
    url: str | os.PathLike[str], split: str, options: StorageOptions | None, error: ObjectNotFoundError
) -> list[str]:
    """The files of a split below a directory or URL that has no folder for it.

    ObjectNotFoundError if there are none, or the folder is there; says what is there. ConfigError if the README has several
    configs, and the split is of none; names them. MissingPackageError if the README tells the files, and PyYAML, which reads
    it, is not installed. ``url``: the directory or URL; at its root the README of a copy of a dataset of the Hub may lie.
    """
    if is_pattern(url):
        raise ObjectNotFoundError(f"{error}. A pattern names files itself: leave split= out", url=error.url) from error
    store = open_store(url, options if is_local(url) is None else None)
    try:
        keys = [info.key for info in store.list()]
    except IndexFileError:  # of a key that can not be asked for
        raise
    except StokerError:
        raise error from None
    if not keys or any(key.startswith(f"{split}/") for key in keys):
        raise error
    data = _data(keys)
    found = _told_files(data, split, _card(store) if _README in keys else {}, store.url)
    if found:
        return [join_url(url, key) for key in found]
    names = sorted({*splits_of(data), *(key.partition("/")[0] for key in data if "/" in key)})
    near = difflib.get_close_matches(split, names, 1)
    said = [str(error).rstrip(". ")]
    if near and "did you mean" not in said[0]:
        said.append(f"Did you mean split={near[0]!r}?")
    if names:
        said.append(f"Splits and folders there: {_told(names)}")
    if _PART.fullmatch(split):
        said.append(_WHOLE)
    raise ObjectNotFoundError(". ".join(said).replace("?. ", "? "), url=error.url) from error


def chosen_by_readme(url: str, store: Store) -> frozenset[str] | None:
    """The data files of the only split of a dataset of the Hub, where its README tells; ``None`` where it does not.

    ConfigError if there are several configs or splits; names them.
    """
    if not is_hub(url):
        return None
    hub = cast("HubStore", store)
    if hub.folder:
        return None
    found = _told_files(_data([info.key for info in hub.list()]), None, hub.card(), hub.url)
    return None if found is None else frozenset(found)


def _data(keys: Sequence[str]) -> list[str]:
    return [key for key in keys if not is_hidden(key) and not _BESIDE.fullmatch(key)]


def _told_files(keys: Sequence[str], split: str | None, card: Mapping[str, Any], where: str) -> list[str] | None:
    """The files of a split by the README or, where that tells none, by their names; ``None`` where neither is asked."""
    if configs := _configs(card, keys, where):
        return _of_configs(configs, split, where)
    return None if split is None else keys_of_split(keys, split)


def _card(store: Store) -> Mapping[str, Any]:
    """The header of a README, where it tells splits."""
    where = store.url_of(_README)
    header = _HEADER.match(store.get(_README, max_bytes=_MOST_README).decode("utf-8", "replace"))
    if header is None or not _TELLS.search(header["yaml"]):
        return {}
    yaml = import_option("yaml", f"{where} tells which files are of which split, and needs PyYAML", "pyyaml")
    try:
        if any(getattr(event, "anchor", None) for event in yaml.parse(header["yaml"], yaml.SafeLoader)):
            raise ConfigError(f"{where}: anchors and aliases in its header are not read. Name the files by a pattern")
        found = yaml.safe_load(header["yaml"])
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{where}: its header is not YAML: {' '.join(str(error).split())}. Name the files by a pattern"
        ) from error
    return found if isinstance(found, dict) else {}


def _configs(card: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, dict[str, list[str]]]:
    """Files of each split of each config, by the header of the README; the default config comes first."""
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
    """The files of the split that is asked for."""
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
            f"{where} has the configs {_told(names)}: choose one of their splits, as by split={everything[0]!r} "
            "of a StreamingDataset, or name its files by a pattern"
        )
    if split is None and len(chosen) == 1:
        return next(iter(chosen.values()))
    if split is None:
        first = "train" if "train" in chosen else next(iter(chosen))
        more = "" if alone else f", of its default config. Of all configs: {_told(everything)}"
        raise ConfigError(
            f"{where} has the splits {_told(list(chosen))}: choose one, as by split={first!r} of a StreamingDataset, or name "
            f"its files by a pattern{more}"
        )
    if word not in chosen:
        told = _told(list(chosen) if alone else everything)
        raise ObjectNotFoundError(f"{where} has no split {split!r}, but {told}", url=where)
    return chosen[word]


def _told(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
