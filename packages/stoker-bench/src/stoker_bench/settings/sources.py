"""The sources of a workload's settings, and their precedence: arguments, the file, the environment, .env.

Variables are named ``STOKER_BENCH_SECTION__KEY``, such as ``STOKER_BENCH_READER__BATCH_SIZE=4``. One that means nothing is an
error, not a setting that silently has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from stoker.display import is_secret
from stoker.errors import ConfigError
from stoker_bench.settings.dlio import Notes, dlio_settings, from_dlio, is_dlio
from stoker_bench.settings.dlio_keys import KEYS
from stoker_bench.settings.schema import Node, at_path, build, flat, merge
from stoker_bench.settings.workload import Workload, as_plain
from stoker_bench.settings.yaml import commented, parse_scalar, parse_yaml, read_yaml

PREFIX: Final = "STOKER_BENCH_"
_RESERVED: Final = frozenset({"STOKER_BENCH_COORDINATOR", "STOKER_BENCH_COORDINATOR_HOST"})
"""Variables of :mod:`stoker_bench.ranks.world`, which are no settings of a workload."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A workload, and how it came about.

    Attributes:
        workload: the settings.
        source: the file or the shipped workload's name.
        origins: dotted path of each setting that was given to where that was.
        notes: on keys of DLIO's: what changes the result, and what is ignored.
    """

    workload: Workload
    source: str
    origins: Mapping[str, str]
    notes: Notes


def shipped() -> dict[str, str]:
    """Workloads that come with stoker: name to the first line of their file's comment."""
    found: dict[str, str] = {}
    for entry in sorted(resources.files("stoker_bench").joinpath("workloads").iterdir(), key=lambda one: one.name):
        if entry.name.endswith(".yaml"):
            first = entry.read_text("utf-8").partition("\n")[0]
            found[entry.name.removesuffix(".yaml")] = first.lstrip("# ").rstrip()
    return found


def shipped_text(name: str) -> str | None:
    """The YAML of a shipped workload; ``None`` where there is none of the name."""
    if name not in shipped():
        return None
    return resources.files("stoker_bench").joinpath("workloads", f"{name}.yaml").read_text("utf-8")


def as_published(workload: Workload) -> tuple[str, Workload] | None:
    """The shipped workload whose name a workload has, unchanged; ``None`` where there is none."""
    names = (f"{workload.name}-{workload.accelerator}", workload.name, f"{workload.name}-checkpoint")
    name = next((one for one in names if one in shipped()), None)
    return None if name is None else (name, read_workload(name, environ={}, dotenv=None).workload)


def read_workload(
    source: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    dotenv: str | os.PathLike[str] | None = ".env",
) -> Resolved:
    """A workload of a file or a shipped name, with what arguments, the environment and .env say.

    Args:
        source: a YAML file, of stoker's or of DLIO's keys; the name of a shipped workload; ``None`` for the defaults.
        arguments: ``section.key=value``, where a key may be DLIO's, such as ``dataset.num_files_train=8``; and
            ``++workload.section.key=value``, which always is one of DLIO's. Of the two, the former hold.
        environ: default, ``os.environ``.
        dotenv: a file of ``NAME=VALUE`` lines, read if it is there; ``None`` for none.

    Raises:
        ConfigError: a file, variable or argument is wrong; says where.
    """
    shown = "the defaults" if source is None else os.fspath(source)
    tree = _file(source)
    notes = Notes()
    native, hydra = _arguments(arguments)
    if is_dlio(tree):
        tree, notes = from_dlio(merge(tree, _nested(hydra)) if hydra else tree)
    elif hydra:
        before = build(Workload, tree).stages
        more, notes = dlio_settings(_nested(hydra), before)
        tree = merge(tree, more)
    below = merge(
        _nested(_dotenv(dotenv)), _nested(_variables(os.environ if environ is None else environ, "the variable"))
    )
    given = merge(merge(below, tree), _nested(native))
    workload = build(Workload, given)
    origins = {path: node.where for path, node in flat(given) if path}
    return Resolved(workload, shown, origins, notes)


def default_yaml(workload: Workload | None = None) -> str:
    """A commented YAML of all settings, at their defaults unless a workload is given."""
    shown = Workload() if workload is None else workload
    return commented(shown, as_plain(shown)) + "\n"


def _file(source: str | os.PathLike[str] | None) -> Node:
    if source is None:
        return Node({}, "the defaults")
    if isinstance(source, str) and (text := shipped_text(source)) is not None:
        return _on_like(parse_yaml(text, f"{source}.yaml"))
    if (
        not Path(source).is_file()
        and isinstance(source, str)
        and "/" not in source
        and not source.endswith((".yaml", ".yml"))
    ):
        raise ConfigError(f"{source!r} is neither a file nor a shipped workload; those are {', '.join(shipped())}")
    return _on_like(read_yaml(source))


def _on_like(tree: Node) -> Node:
    """A file's settings over those of the shipped workload that its key ``like`` names."""
    if not isinstance(tree.value, dict) or "like" not in tree.value:
        return tree
    like = tree.value["like"]
    text = shipped_text(str(like.value))
    if text is None:
        raise ConfigError(
            f"{like.where}: like names a shipped workload, one of {', '.join(shipped())}: got {like.value!r}"
        )
    own = Node({name: node for name, node in tree.value.items() if name != "like"}, tree.where)
    return merge(_on_like(parse_yaml(text, f"{like.value}.yaml")), own)


def _arguments(arguments: Iterable[str]) -> tuple[list[tuple[str, Node]], list[tuple[str, Node]]]:
    native: list[tuple[str, Node]] = []
    hydra: list[tuple[str, Node]] = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        stripped = name.lstrip("+")
        if not equals or not stripped:
            raise ConfigError(f"the argument {argument!r}: expected section.key=value")
        # Origins of settings appear in errors and in results, where credentials have no business.
        where = f"the argument {name if is_secret(stripped) else argument}"
        if stripped.startswith("workload."):
            hydra.append((stripped.removeprefix("workload."), parse_scalar(text, where)))
        elif name == stripped and _is_dlio_key(name):
            hydra.append((name, parse_scalar(text, where)))
        elif name != stripped:
            raise ConfigError(f"{where}: DLIO's overrides begin with ++workload.")
        else:
            native.append((stripped, parse_scalar(text, where)))
    return native, hydra


def _is_dlio_key(name: str) -> bool:
    """Whether a key is DLIO's and no setting of the same name."""
    if name not in KEYS:
        return False
    section: Any = Workload()
    for part in name.split("."):
        if not is_dataclass(section) or part not in {one.name for one in fields(section)}:
            return True
        section = getattr(section, part)
    return False


def _variables(environ: Mapping[str, str], kind: str) -> list[tuple[str, Node]]:
    found: list[tuple[str, Node]] = []
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX) and name not in _RESERVED and text != "":
            path = name.removeprefix(PREFIX).lower().replace("__", ".")
            found.append((path, parse_scalar(text, f"{kind} {name}")))
    return found


def _dotenv(path: str | os.PathLike[str] | None) -> list[tuple[str, Node]]:
    if path is None or not Path(path).is_file():
        return []
    found: dict[str, str] = {}
    for line in Path(path).read_text("utf-8", errors="replace").splitlines():
        name, equals, text = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip().startswith(PREFIX):  # others' variables are none of ours
            value = text.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if quoted else value
    return _variables(found, os.fspath(path) + ",")


def _nested(pairs: Iterable[tuple[str, Node]]) -> Node:
    root = Node({}, "")
    for path, node in pairs:
        root = merge(root, at_path(path, node))
    return root
