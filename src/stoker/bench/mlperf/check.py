"""A checker of submissions to MLPerf Storage, of any origin: the directory tree, the systems, the images of the source.

Numbers and names of rules are those of MLPerf Storage's Rules.md. :mod:`stoker.bench.mlperf.check_runs` checks the runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stoker.bench.mlperf.check_runs import check_checkpoints, check_training
from stoker.bench.mlperf.code_image import POINTER, POOL_MARK, recorded_hash, tree_hash
from stoker.bench.mlperf.editions import EDITIONS, RANKS, Edition, MlperfDivision
from stoker.bench.mlperf.read_runs import SubmissionFault, Workspace, dig, folders, head_of
from stoker.bench.mlperf.system import description_faults, read_description
from stoker.errors import ConfigError, FormatError
from stoker.storage.files.file_errors import file_errors

_DIVISIONS: Final[tuple[MlperfDivision, ...]] = ("closed", "open")
_POOL: Final = "code-images"
_CATEGORIES: Final = ("training", "checkpointing", "vector_database", "kv_cache")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_POINTER: Final = re.compile(r"md5-tree-v\d+:([0-9a-f]{32})")


def check_submission(root: Path, edition: Edition = EDITIONS["v3"]) -> list[SubmissionFault]:
    """Check the tree of a submission, or of several organizations' submissions.

    Args:
        root: the directory that holds ``closed`` or ``open``.
        edition: the edition whose rules decide.

    Returns:
        The faults in the order of their paths, then the remarks.

    Raises:
        ConfigError: ``root`` is no directory.
        StorageError: a directory or file can not be read.

    Example:
        >>> check_submission(Path("submission"))  # doctest: +SKIP
        [SubmissionFault(path='closed/acme/systems/fast.pdf', rule='2.1.8 resultsDirectorySystems', ...)]
    """
    if not root.is_dir():
        raise ConfigError(f"{root} is no directory: give the one that holds closed or open")
    with file_errors(root):
        return sorted(_tree(root, edition), key=lambda one: (one.remark, one.path, one.rule))


def _tree(root: Path, edition: Edition) -> Iterator[SubmissionFault]:
    found = folders(root)
    present = [name for name in _DIVISIONS if name in found]
    for name in found:
        if name in _DIVISIONS or name == _POOL or (root / name / POOL_MARK).is_file():
            continue
        yield SubmissionFault(
            name, "2.1.2 topLevelSubdirectories", "closed and open, and images of the source, are all here"
        )
    if not present:
        yield SubmissionFault(".", "2.1.2 topLevelSubdirectories", "there is neither closed nor open")
    images = _Images(root)
    for division in present:
        for name in folders(root / division):
            home = root / division / name
            if not _NAME.fullmatch(name):
                yield SubmissionFault(
                    f"{division}/{name}", "2.1.1 submitterRootDirectory", "only letters, digits, '.', '_' and '-'"
                )
            yield from _organization(Workspace(root, home, division, edition, {}), images)


def _organization(space: Workspace, images: _Images) -> Iterator[SubmissionFault]:
    home, found = space.home, folders(space.home)
    rule = f"2.1.5 requiredSubdirectories{space.division.capitalize()}"
    pooled = images.pools(home.name)
    for name in ("results", "systems"):
        if name not in found:
            yield space.fault(home / name, rule, "it is missing")
    for name in found:
        if name not in {"results", "systems"} and not (name == "code" and not pooled):
            yield space.fault(home / name, rule, "only results and systems are here")
    if not pooled and space.division == "closed":
        yield from images.single(space, home / "code")
    yield from _systems(space)
    if "results" not in found:
        return
    for system in folders(home / "results"):
        yield from _system(space.of(system), images, pooled=pooled)


def _systems(space: Workspace) -> Iterator[SubmissionFault]:
    folder, rule = space.home / "systems", "2.1.7 systemsDirectoryFiles"
    if not folder.is_dir():
        return
    files = {one.name for one in folder.iterdir() if not one.name.startswith(".")}
    stems = {kind: {Path(name).stem for name in files if name.endswith(kind)} for kind in (".yaml", ".pdf")}
    for name in sorted(files):
        if (folder / name).is_dir() or not name.endswith((".yaml", ".pdf", ".md")):
            yield space.fault(folder / name, rule, "only a NAME.yaml and a NAME.pdf for each system are here")
    systems = folders(space.home / "results") if (space.home / "results").is_dir() else []
    for kind, other in ((".yaml", ".pdf"), (".pdf", ".yaml")):
        for name in sorted(stems[kind] - stems[other] - set(systems)):
            yield space.fault(folder / f"{name}{other}", rule, f"it is missing: {name}{kind} is there")
    for name in sorted(stems[".yaml"] - set(systems)):
        yield space.fault(
            space.home / "results" / name,
            "2.1.8 resultsDirectorySystems",
            f"it is missing: systems/{name}.yaml is there",
        )


def _system(space: Workspace, images: _Images, *, pooled: bool) -> Iterator[SubmissionFault]:
    yield from _described(space)
    folder = space.home / "results" / space.system
    categories = folders(folder)
    if not set(categories) & set(_CATEGORIES):
        yield space.fault(folder, "2.1.10 workloadCategories", f"it has none of {', '.join(_CATEGORIES)}")
    for name in categories:
        if name not in _CATEGORIES:
            yield space.fault(folder / name, "2.1.10 workloadCategories", f"only {', '.join(_CATEGORIES)} are here")
    known = {"training": tuple(space.edition.utilization), "checkpointing": tuple(RANKS)}
    rules = {"training": "2.1.11 trainingWorkloads", "checkpointing": "2.1.21 checkpointingWorkloads"}
    for kind, names in known.items():
        for model in folders(folder / kind) if (folder / kind).is_dir() else []:
            where = folder / kind / model
            if model not in names:
                yield space.fault(where, rules[kind], f"only {', '.join(names)} are here, in {space.edition.name}")
            yield from (check_training if kind == "training" else check_checkpoints)(space, where)
            if pooled:
                yield from images.pointed(space, where)
            elif space.division == "open":
                yield from images.single(space, where / "code" if (where / "code").is_dir() else space.home / "code")
    for kind in ("vector_database", "kv_cache"):
        if kind in categories:
            yield SubmissionFault(
                space.name(folder / kind),
                "5, 6",
                "what is in it was not checked: its rules are not known here",
                remark=True,
            )


def _described(space: Workspace) -> Iterator[SubmissionFault]:
    path, rule = space.home / "systems" / f"{space.system}.yaml", "2.1.8 resultsDirectorySystems"
    for kind in (path, path.with_suffix(".pdf")):
        if not kind.is_file():
            yield space.fault(kind, rule, f"it is missing: results/{space.system} is there")
    if not path.is_file():
        return
    try:
        found = read_description(path)
    except ConfigError as error:
        yield space.fault(path, "2.1.7 systemsDirectoryFiles", str(error))
        return
    if space.edition.name == "v2":
        return  # its descriptions have no fixed form
    for number, said in description_faults(found):
        yield space.fault(path, f"{number} systemDescription", said)
    named = dig(found, "system_under_test", "solution", "submission_name")
    if named != space.system:
        yield space.fault(path, rule, f"submission_name is {named!r}, the system is {space.system!r}")
    space.description.update(found)


class _Images:
    """The images of the source in a tree: each is hashed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hashes: dict[Path, str | None] = {}

    def pools(self, organization: str) -> bool:
        """Whether an organization's images are in a pool."""
        return any((self._root / name / POOL_MARK).is_file() for name in (_POOL, organization))

    def single(self, space: Workspace, image: Path) -> Iterator[SubmissionFault]:
        """Faults of the one image of an organization."""
        if not image.is_dir():
            yield space.fault(image, "2.1.6 codeDirectoryContents", "the source of the benchmark is missing")
        else:
            yield from self._consistent(space, image)

    def pointed(self, space: Workspace, where: Path) -> Iterator[SubmissionFault]:
        """Faults of the images that the runs below a directory point to."""
        rule = "2.1.6 codeDirectoryContents"
        for run in sorted(where.rglob("*_metadata.json")):
            pointer = run.parent / POINTER
            text = head_of(pointer, 200).strip()
            if not text:
                yield space.fault(pointer, rule, "it is missing or empty: it names the image of the source that ran")
                continue
            found = _POINTER.fullmatch(text)
            if found is None:
                yield space.fault(pointer, rule, f"{text!r} is no md5-tree-v2:HASH")
                continue
            places = [self._root / name / f"code-{found[1][:8]}" for name in (_POOL, space.home.name)]
            image = next((one for one in places if one.is_dir()), None)
            if image is None:
                yield space.fault(pointer, rule, f"there is no image code-{found[1][:8]}")
                continue
            if image not in self._hashes:
                yield from self._consistent(space, image)
            if self._hashes.get(image) not in (None, found[1]):
                yield space.fault(pointer, rule, f"it names {found[1]}, and the image has {self._hashes[image]}")

    def _consistent(self, space: Workspace, image: Path) -> Iterator[SubmissionFault]:
        rule = "2.1.6 codeDirectoryContents"
        self._hashes[image] = None
        try:
            said = recorded_hash(image)
            seen = tree_hash(image)
        except (FormatError, OSError) as error:
            yield space.fault(image, rule, str(error))
            return
        self._hashes[image] = said
        if seen != said:
            yield space.fault(image, rule, f"its files have the hash {seen}, it says {said}: they were changed")
