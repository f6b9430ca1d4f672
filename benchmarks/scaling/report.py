"""What ``benchmarks/scale.py`` found, as tables and as plots of cost against size."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from pathlib import Path
from typing import Any

_COLUMNS = 4
_UNITS = {"s": "s", "us": "µs", "MiB": "MiB", "kB": "kB"}
_PACKAGES = ("stoker", "numpy", "pyarrow", "obstore", "torch")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are measured."""
    return {"Python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def markdown(found: dict[str, Any]) -> str:
    """One table of all directions: a row a figure of stoker, with that of the bound at the largest size beside it.

    Args:
        found: what ``--json`` writes.
    """
    about, made_of = found["machine"], ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        f"Measured by `{found['command']}` on {about['date']}: {about['cpu']}, {about['cores']} cores, {about['memory']}, "
        f"{about['kernel']}, load {about['load']}; {made_of}. "
        + ("Times are of the processor. " if found["clock"] == "cpu" else "")
        + "Growth: by how much more than it may a cost grows from the smallest to the largest size.",
        "",
        "| direction | sizes | figure | stoker | others at the largest | growth |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found["directions"].items():
        about_all = f"| {name} | " + " · ".join(f"{size:,}" for size in one["sizes"])
        for figure in one["sides"]["stoker"][0]:
            values = " · ".join(_short(each[figure]) for each in one["sides"]["stoker"])
            others = ", ".join(
                f"{side} {_short(each[-1][figure])}"
                for side, each in one["sides"].items()
                if side != "stoker" and figure in each[-1]
            )
            growth = f"{one['growth'][figure]:.2f}" if figure in one["growth"] else ""
            lines.append(f"{about_all} | {_in_words(figure)} | {values} | {others} | {growth} |")
            about_all = "| | "  # said once
    return "\n".join(lines) + "\n"


def plot(found: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the cost against the size, for each direction and figure whose growth is judged; returns the files.

    Args:
        found: what ``--json`` writes.
        folder: where ``scale.svg`` and ``scale.png`` go.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = [(name, one, figure) for name, one in found["directions"].items() for figure in one["growth"]]
    rows = math.ceil(len(panels) / _COLUMNS)
    drawing, axes = plt.subplots(
        rows, _COLUMNS, figsize=(3.2 * _COLUMNS, 2.6 * rows), squeeze=False, layout="constrained"
    )
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    for ax, (name, one, figure) in zip(axes.flat, panels, strict=False):
        sizes, drawn = one["sizes"], []
        for side, each in one["sides"].items():
            if figure in each[0]:
                costs = [_cost(figure, values[figure]) for values in each]
                ax.plot(sizes, costs, marker="o", markersize=3, label=side)
                drawn += costs
        first = _cost(figure, one["sides"]["stoker"][0][figure])
        allowed = [first * (size / sizes[0]) ** one["judged"][figure] for size in sizes]
        ax.plot(sizes, allowed, color="grey", linestyle=":", label="what it may grow by")
        ax.set(xscale="log", yscale="log", title=name)
        # The sizes, and three costs: what matplotlib labels overlaps where an axis is less than a decade long.
        middle = math.sqrt(min(drawn + allowed) * max(drawn + allowed))
        ticks = sorted({min(drawn + allowed), middle, max(drawn + allowed)})
        ax.set_xticks(sizes, [_short(size) for size in sizes])
        ax.set_yticks(ticks, [_short(tick) for tick in ticks])
        ax.minorticks_off()
        ax.set_xlabel(one["what"], fontsize=6, wrap=True)
        ax.set_ylabel(_cost_in_words(figure), fontsize=7)
        ax.tick_params(labelsize=6)
        ax.title.set_fontsize(9)
        ax.legend(fontsize=5)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "scale.svg", folder / "scale.png"]
    for file in files:
        drawing.savefig(file, dpi=120)
    plt.close(drawing)
    return files


def _cost(figure: str, value: float) -> float:
    """What is the worse the larger it is; never 0, which a logarithm has not."""
    return max(1 / value if figure.endswith("_per_s") else value, 1e-9)


def _in_words(figure: str) -> str:
    """``open_first_s`` as ``open first, s``."""
    if figure.endswith("_per_s"):
        return f"{figure.removesuffix('_per_s')}/s"
    stem, _, unit = figure.rpartition("_")
    return f"{stem.replace('_', ' ')}, {_UNITS[unit]}" if unit in _UNITS else figure.replace("_", " ")


def _cost_in_words(figure: str) -> str:
    if figure.endswith("_per_s"):
        return f"s for one of {figure.removesuffix('_per_s')}"
    return _in_words(figure)


def _short(value: float) -> str:
    """Three figures: 1.23 M, 45.6 k, 789, 0.012."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
