"""The files beside a synthetic dataset: a manifest with its description, and MDS's index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.index.index import INDEX_NAME
from stoker.storage import Store
from stoker.storage.unfinished import MARK, UnfinishedOutput, read_mark
from stoker_bench.generation.formats.base import layout_of
from stoker_bench.generation.formats.mds import MDSLayout
from stoker_bench.generation.making import GeneratedFile, library_versions
from stoker_bench.generation.names import Output
from stoker_bench.generation.spec import DatasetSpec

MANIFEST: Final = "_generated.json"
"""Hidden from readers of directories, as its name begins with an underscore."""

_HOST_MANIFESTS: Final = "_generated.shares"
_MOST_BYTES: Final = 1 << 30


def check_destination(store: Store, spec: DatasetSpec, *, resume: bool) -> bool:
    """Check that the destination is empty, or holds this dataset or the beginning of it.

    Returns:
        Whether the dataset is complete already.

    Raises:
        ConfigError: there is something else.
    """
    where = store.url_of(MANIFEST)
    mine = _described(spec)
    began = _began(store, mine)
    if began is None:
        for item in store.list():
            if not item.key.startswith(("_", ".")):
                if _began(store, mine) is not None:  # another host has begun in between
                    return check_destination(store, spec, resume=resume)
                raise ConfigError(
                    f"{store.url} holds {item.key!r}, which stoker has not generated there: choose an empty place, or clear "
                    "this one"
                )
        return False
    theirs, complete = began
    if not complete:
        where = store.url
    if not resume:
        raise ConfigError(f"{where} is generated already, or in part: choose another place, clear this one, or resume")
    if theirs != mine:
        other = [
            f"{name} is {was!r}, not {now!r}"
            for part in mine
            for name, was, now in _differences(theirs[part], mine[part])
        ]
        raise ConfigError(
            f"{store.url} holds another dataset ({'; '.join(other)[:500]}): choose another place, or clear this one"
        )
    return complete


def mark_unfinished(store: Store, spec: DatasetSpec) -> None:
    """Say that files of the dataset are missing: until :func:`write_manifest` nobody reads the others as all of it."""
    store.put(MARK, UnfinishedOutput(_described(spec)).to_json())


def _began(store: Store, mine: Mapping[str, Any]) -> tuple[dict[str, Any], bool] | None:
    """Spec and libraries of the dataset that lies there, and whether it is complete; ``None`` if there is none."""
    try:
        found = json.loads(store.get(MANIFEST, max_bytes=_MOST_BYTES))
        return {key: found[key] for key in mine}, bool(found["complete"])
    except ObjectNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{store.url_of(MANIFEST)} is damaged: clear the place, or choose another") from None
    mark = read_mark(store)
    return (dict(mark.identity), False) if mark is not None and mark.identity.keys() == mine.keys() else None


def _differences(theirs: Any, mine: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if not isinstance(theirs, dict):
        yield "all", theirs, mine
        return
    for name in {**theirs, **mine}:
        if theirs.get(name) != mine.get(name):
            yield name, theirs.get(name), mine.get(name)


def _described(spec: DatasetSpec) -> dict[str, Any]:
    return {"spec": spec.identity(), "libraries": library_versions(spec)}


def write_host_manifest(store: Store, host: tuple[int, int], made: Mapping[str, GeneratedFile]) -> None:
    """Keep what a host knows of the files that it made, for the one that is done last."""
    told = {name: [one.size, one.hashes, one.raw_size, one.raw_hashes] for name, one in made.items()}
    store.put(f"{_HOST_MANIFESTS}/{host[0]}-of-{host[1]}.json", json.dumps(told).encode())


def read_host_manifests(store: Store) -> dict[str, GeneratedFile]:
    """The facts that all hosts have stored."""
    found: dict[str, GeneratedFile] = {}
    for item in store.list(_HOST_MANIFESTS):
        try:
            told = json.loads(store.get(item.key, max_bytes=_MOST_BYTES))
            found.update({name: GeneratedFile(*facts) for name, facts in told.items()})
        except (ObjectNotFoundError, ValueError, TypeError, AttributeError):
            continue  # another host was done first, and is removing them; what is not known is computed again
    return found


def remove_host_manifests(store: Store) -> None:
    """Remove what hosts have told."""
    for item in list(store.list(_HOST_MANIFESTS)):
        store.delete(item.key)


def write_manifest(store: Store, spec: DatasetSpec, files: Iterable[tuple[Output, GeneratedFile]]) -> None:
    """Write the index, if the format has one, and then the manifest of the dataset that is whole."""
    known = list(files)
    layout = layout_of(spec)
    if isinstance(layout, MDSLayout):
        for split in dict.fromkeys(out.split for out, _ in known):
            here = [(out, facts) for out, facts in known if out.split == split]
            entries = [_entry(layout, out.name.removeprefix(f"{split}/"), facts) for out, facts in here]
            index = json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()
            store.put(f"{split}/{INDEX_NAME}" if split else INDEX_NAME, index)
    told = [{"name": out.name, "bytes": facts.size, "hashes": facts.hashes} for out, facts in known]
    manifest = {**_described(spec), "complete": True, "samples": spec.samples, "files": told}
    store.put(MANIFEST, json.dumps(manifest).encode())
    store.delete(MARK)


def _entry(layout: MDSLayout, name: str, facts: GeneratedFile) -> dict[str, Any]:
    compression = layout.spec.compression
    raw = name.removesuffix(f".{compression.partition(':')[0]}") if compression else name
    stored = {"basename": name, "bytes": facts.size, "hashes": facts.hashes}
    return {
        **layout.encoder.settings,
        "samples": layout.spec.samples_per_file,
        "raw_data": {"basename": raw, "bytes": facts.raw_size, "hashes": facts.raw_hashes},
        "zip_data": stored if compression else None,
    }
