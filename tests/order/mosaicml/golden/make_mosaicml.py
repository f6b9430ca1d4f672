"""Ask mosaicml-streaming for orders and keep the answers, so that tests compare without it.

Run it where ``tools/environments.py mosaic`` has made the peer's environment::

    python tests/order/mosaicml/golden/make_mosaicml.py
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE.parent), str(_HERE.parents[2])]

from mosaicml_cases import Case, mixture_of, partition_case, sampling_case, shuffle_case, work_case  # noqa: E402
from test_mosaicml_peer import ask, run_orders  # noqa: E402


def main() -> None:
    """Write ``mosaicml.json``."""
    makers: dict[str, tuple[Callable[[random.Random], Case], int]] = {
        "shuffle": (shuffle_case, 30),
        "partition": (partition_case, 40),
        "sampling": (sampling_case, 12),
        "work": (work_case, 60),
    }
    kept: dict[str, list[dict[str, Any]]] = {name: [] for name in makers}
    rng = random.Random(2)
    with tempfile.TemporaryDirectory() as tmp, run_orders(Path(tmp)) as peer:
        for name, (make, count) in makers.items():
            while len(kept[name]) < count:
                case = make(rng)
                if name == "work" and tied(case):
                    continue
                answer = ask(peer, name, **({"case": case} if name == "work" else case))
                ids = answer[0] if isinstance(answer, tuple) else answer
                if ids is not None and 0 < ids.size < 4000:
                    kept[name].append({"case": case, **digest(ids)})
    path = _HERE / "mosaicml.json"
    lines = [f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for name, cases in kept.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path.name}: {sum(map(len, kept.values()))} cases, {path.stat().st_size} bytes")


def digest(ids: Any) -> dict[str, Any]:
    """An array's shape, its first numbers, and a hash of all."""
    flat = np.ascontiguousarray(ids, dtype="<i8")
    return {
        "shape": list(flat.shape),
        "begins": flat.ravel()[:8].tolist(),
        "sha1": hashlib.sha1(flat.tobytes()).hexdigest(),
    }


def tied(case: Case) -> bool:
    """Whether the order depends on the processor: streams that are equally near to one more sample of a batch."""
    if case["settings"]["batching_method"] != "stratified" or len(case["weights"]) < 4:
        return False
    wanted = np.array(mixture_of(case).proportion)
    return len(np.unique(np.round(wanted, 9))) < len(wanted)


if __name__ == "__main__":
    main()
