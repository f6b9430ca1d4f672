"""Writers to be killed: what each writes, what may be readable after a kill at any moment, and how it is completed."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from stoker import MDSWriter, StreamingDataset, merge_index
from stoker.errors import ObjectNotFoundError
from stoker.index.index import load_index
from stoker.storage import join_url, open_store
from stoker.types import StorageOptions
from stoker.writers import JSONWriter
from support import COLUMNS, check_sample, sample_of

__all__ = ["WRITERS", "WriterJob", "leftovers"]

SIZE_LIMIT = 2048
_PARTS = 3
_JSON = {"id": "int", "text": "str"}
_numbers = count()


@dataclass
class WriterJob:
    """A dataset that is written, killed, looked at and completed.

    Attributes:
        folder: a folder of this round's own, for directories and caches.
        remote: where the remote lies; a folder's path or a URL.
        storage_options: of the remote.
        options: the writer's.
        samples: how many there are.
        places: all places that get the dataset.
    """

    folder: Path
    remote: str
    storage_options: StorageOptions | None = None
    samples: int = 600
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> Sequence[str]:
        return (str(self.folder / "out"),)

    @property
    def complete(self) -> list[int]:
        """Ids of the dataset when it is done."""
        return list(range(self.samples))

    @property
    def allowed(self) -> list[list[int]]:
        """Ids of the datasets that may be readable after a kill, beside none."""
        return [self.complete]

    def __post_init__(self) -> None:
        self.set_up()

    def set_up(self) -> None:
        """The writer's arguments."""

    def prepare(self) -> None:
        """What is there before the writer starts."""

    def write(self, **more: Any) -> None:
        """Write the whole dataset, or with ``resume=True`` what is missing of it."""
        with MDSWriter(columns=COLUMNS, size_limit=SIZE_LIMIT, **self.options, **more) as writer:
            for number in self.complete[writer.samples_written :]:
                writer.write(sample_of(number))

    def resume(self) -> None:
        """Complete it, whatever the kill left."""
        self.write(resume=True)

    def read(self, place: str) -> list[int] | None:
        """Ids of a place, every byte checked; ``None`` where nothing reads as a dataset."""
        cache = self.folder / f"cache{next(_numbers)}"
        try:
            dataset = StreamingDataset(remote=place, local=cache, storage_options=self._options_of(place))
        except ObjectNotFoundError:
            return None
        ids = [self.check(sample) for sample in dataset]
        assert len(ids) == dataset.size
        dataset.close()
        shutil.rmtree(cache)
        return ids

    def check(self, sample: dict[str, Any]) -> int:
        return check_sample(sample)

    def look(self) -> str:
        """Check that each place holds a whole dataset or none; what it was, for the record."""
        found = [self.read(place) for place in self.places]
        for place, ids in zip(self.places, found, strict=True):
            assert ids is None or ids in self.allowed, f"torn dataset at {place}: {ids}"
        # The last place is the one that counts: it gets the index last.
        return "nothing" if found[-1] is None else "whole" if found[-1] == self.complete else "the old one"

    def look_at_end(self) -> None:
        """Check that after completion there is the dataset and nothing beside it that reads as a part of it."""
        for place in self.places:
            assert self.read(place) == self.complete, place
            store = open_store(place, self._options_of(place))
            files = {*load_index(store).file_sizes(), "index.json"}
            stored = {item.key for item in store.list()}
            assert stored <= files, f"debris: {sorted(stored - files)}"

    def _options_of(self, place: str) -> StorageOptions | None:
        return self.storage_options if place == self.remote else None


class Directory(WriterJob):
    def set_up(self) -> None:
        self.options |= {"out": str(self.folder / "out")}


class Compressed(Directory):
    def set_up(self) -> None:
        super().set_up()
        self.options |= {"compression": "zstd", "hashes": ["sha1", "xxh64"]}


class Remote(WriterJob):
    """Straight to the remote."""

    @property
    def places(self) -> Sequence[str]:
        return (self.remote,)

    def set_up(self) -> None:
        self.options |= {"out": self.remote, "storage_options": self.storage_options, "hashes": "sha1"}


class Both(WriterJob):
    """A directory and a remote."""

    @property
    def places(self) -> Sequence[str]:
        return (str(self.folder / "out"), self.remote)

    def set_up(self) -> None:
        out = (self.places[0], self.remote)
        self.options |= {"out": out, "keep_local": True, "compression": "gz", "storage_options": self.storage_options}

    def look_at_end(self) -> None:
        super().look_at_end()
        if Path(self.remote).is_dir():
            compared = filecmp.dircmp(*self.places)
            assert not compared.left_only
            assert not compared.right_only
            assert not compared.diff_files


class Appended(Directory):
    """Added to a dataset that is there, and stays readable."""

    @property
    def allowed(self) -> list[list[int]]:
        return [self.complete[: self.samples // 2], self.complete]

    def prepare(self) -> None:
        with MDSWriter(columns=COLUMNS, size_limit=SIZE_LIMIT, **self.options) as writer:
            for number in self.complete[: self.samples // 2]:
                writer.write(sample_of(number))

    def write(self, **more: Any) -> None:
        super().write(**(more or {"append": True}))


class Replaced(Directory):
    """Written over another dataset of the same columns, of which nothing may get into the new one."""

    @property
    def _old(self) -> list[int]:
        return list(range(self.samples, 2 * self.samples))

    @property
    def allowed(self) -> list[list[int]]:
        return [self._old, self.complete]

    def prepare(self) -> None:
        with MDSWriter(columns=COLUMNS, size_limit=SIZE_LIMIT, **self.options) as writer:
            for number in self._old:
                writer.write(sample_of(number))

    def write(self, **more: Any) -> None:
        super().write(**(more or {"exist_ok": True}))

    def resume(self) -> None:
        if self.read(self.places[-1]) == self._old:
            self.write()  # killed before it touched anything
        else:
            super().resume()


class JSONLines(Directory):
    """Two files a shard."""

    def write(self, **more: Any) -> None:
        with JSONWriter(columns=_JSON, size_limit=SIZE_LIMIT, **self.options, **more) as writer:
            for number in self.complete[writer.samples_written :]:
                writer.write({"id": number, "text": sample_of(number)["text"]})

    def check(self, sample: dict[str, Any]) -> int:
        assert sample == {"id": sample["id"], "text": sample_of(sample["id"])["text"]}
        return int(sample["id"])


class Merged(Directory):
    """Parts in sub-directories, then one index for all."""

    def write(self, **more: Any) -> None:
        share = self.samples // _PARTS
        for part in range(_PARTS):
            out = join_url(self.options["out"], f"{part:02}")
            with MDSWriter(columns=COLUMNS, out=out, size_limit=SIZE_LIMIT, **more) as writer:
                for number in self.complete[part * share + writer.samples_written : (part + 1) * share]:
                    writer.write(sample_of(number))
        merge_index(self.options["out"])

    def look_at_end(self) -> None:
        # The parts keep their indexes: they are datasets of their own.
        for part in range(_PARTS):
            assert self.read(f"{self.options['out']}/{part:02}") is not None
        assert self.read(self.options["out"]) == self.complete


WRITERS: dict[str, type[WriterJob]] = {
    "directory": Directory,
    "compressed": Compressed,
    "remote": Remote,
    "both": Both,
    "appended": Appended,
    "replaced": Replaced,
    "json": JSONLines,
    "merged": Merged,
}


def leftovers(folder: Path) -> Iterator[Path]:
    """Files with temporary names that a kill left beside the data; no listing shows them."""
    return folder.rglob(".stoker-put-*")
