"""Splits of a dataset that lie side by side in one directory (``train/`` and ``test/``), told by their names.

Reading them as one dataset would train on the test samples. A caller who names one directory with several splits in it is
asked for one of them; a pattern or a list of files is read as given.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from stoker.errors import ConfigError
from stoker.formats.common.compression import typed_name

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


def refuse_splits(keys: Iterable[str], root: str, *, folders_only: bool = False, whole: str = "") -> None:
    """Check that files below a directory are not of several splits.

    Folders are splits where ``train`` is among them and another split's name, or where all folders beside each other
    have names of splits; files where their names differ in nothing else. Folders ``name=value`` tell a column instead.

    Args:
        keys: the files, relative to the root.
        root: the directory or URL, for the message.
        folders_only: do not look at names of files, as of formats with a sample a file.
        whole: how to take all of them on purpose; default: by a pattern.

    Raises:
        ConfigError: they are; names the splits, and says how to choose one.
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

    Args:
        keys: files below a directory.
        split: the split's name, which may begin with the folders that it lies in.
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
