"""The layout of the code: layers, sizes of folders, one class for each name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stoker"
BENCH = ROOT / "packages" / "stoker-bench" / "src" / "stoker_bench"
MOST_MODULES = 16


def modules_of(*sources: Path) -> dict[str, Path]:
    """Names of the modules of packages, and their files."""
    paths = [(path, path.relative_to(source.parent)) for source in sources for path in source.rglob("*.py")]
    return {".".join(name.with_suffix("").parts).removesuffix(".__init__"): path for path, name in paths}


def test_modules_named_in_strings_are_below() -> None:
    """``"stoker.x.y:Name"`` is an import, too. ``stoker`` itself is above all."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    level = {name.strip(): number for number, line in enumerate(contract["layers"]) for name in line.split("|")}
    names = modules_of(SOURCE, BENCH)
    seen, upward = 0, []
    for name, path in modules_of(SOURCE).items():
        nodes = ast.walk(ast.parse(path.read_text()))
        for text in (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)):
            module = text.partition(":")[0]
            if module == "stoker" or module not in names or path == SOURCE / "__init__.py":
                continue
            if text == "stoker.writers":  # a group of entry points
                continue
            seen += 1
            own, other = (".".join(one.split(".")[:2]) for one in (name, module))
            if own != other and (other not in level or level[other] <= level[own]):
                upward.append(f"{name}: {text}")
    assert seen > 40
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checks count."""
    paths = modules_of(SOURCE, BENCH)
    imports: dict[str, set[str]] = {}
    for name, path in paths.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        found = [(node.module or "", f"{node.module}.{one.name}") for node in nodes for one in node.names]
        imports[name] = {whole if whole in paths else module for module, whole in found} & paths.keys()
    assert sum(map(len, imports.values())) > 2000
    list(TopologicalSorter(imports).static_order())


def test_no_folder_is_too_large_to_be_read_at_a_glance() -> None:
    folders = [one for source in (SOURCE, BENCH) for one in (source, *source.rglob("*")) if one.is_dir()]
    counts = {str(folder): len([path for path in folder.glob("*.py") if path.stem != "__init__"]) for folder in folders}
    assert counts[str(SOURCE)] > 10
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_no_two_public_classes_have_one_name() -> None:
    modules = defaultdict(list)
    for name, path in modules_of(SOURCE, BENCH).items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(name)
    assert len(modules) > 400
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def test_tests_wait_by_patience_alone() -> None:
    """A wait for what must happen ends by ``PATIENCE``, not by a number that a busy machine needs more than."""
    waits, found = {"wait", "join", "result", "acquire", "communicate", "poll"}, []
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "packages").glob("*/tests/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in waits):
                continue
            given = [*node.args, *(one.value for one in node.keywords)]
            if len(given) == 1 and isinstance(given[0], ast.Constant):
                number = given[0].value
                if isinstance(number, int | float) and number > 2:
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("StreamingParquetLoader", ("stoker.tokens.tokenize", "stoker.coordination.client", "stoker.writing")),
        ("StreamingDataset", ("http", "ssl", "stoker.tokens.tokenize", "stoker.coordination.client", "stoker.writing")),
        (
            "StreamingDataset",
            ("stoker.formats.parquet", "stoker.catalog.detect", "stoker.cache.memory", "stoker.order.mosaicml"),
        ),
        (
            "StreamingDataset",
            ("stoker.order.partition_strategies", "stoker.streams.conditions", "stoker.streams.labels"),
        ),
        (
            "StreamingDataset",
            (
                "stoker.pipeline.joins",
                "stoker.streams.key_index",
                "stoker.pipeline.collate",
                "stoker.pipeline.stats.stats",
            ),
        ),
        ("LMStream", ("stoker.tokens.tokenize", "stoker.coordination.client", "stoker.writing")),
        ("MDSWriter", ("stoker.loaders", "stoker.order", "stoker.coordination")),
        ("errors", ("numpy",)),
    ],
)
def test_using_a_part_imports_that_part_alone(name: str, apart: tuple[str, ...]) -> None:
    script = f"import sys\nfrom stoker import {name}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [one for one in loaded if one.startswith(apart)] == []


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    odd = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in modules_of(SOURCE, BENCH).values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node))
        if text.split()[0] in ("What", "How", "Which", "Where", "Who", "Whose")
    ]
    assert odd == []


def test_references_in_docstrings_lead_to_what_is_there() -> None:
    texts = {name: path.read_text() for name, path in modules_of(SOURCE, BENCH).items()}
    found = {one for text in texts.values() for one in re.findall(r":\w+:`~?(stoker(?:_bench)?(?:\.\w+)+)`", text)}
    assert len(found) > 200
    missing = []
    for reference in found:
        module = max((name for name in texts if f"{reference}.".startswith(f"{name}.")), key=len)
        rest = reference.removeprefix(module).split(".")[1:]
        if rest and not re.search(rf"\b{rest[0]}\b", texts[module]):
            missing.append(reference)
    assert missing == []
