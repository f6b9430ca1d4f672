"""The pages on the way from other libraries: their snippets and ours, one after the other, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE

FROM = Path(__file__).resolve().parents[3] / "docs" / "from"
PAGES = {"litdata": "litdata", "webdataset": "webdataset", "huggingface": "datasets", "grain": "grain"}


@pytest.mark.parametrize("page", PAGES)
def test_their_snippets_run_beside_ours(page: str, tmp_path: Path) -> None:
    text = (FROM / f"{page}.md").read_text()
    found = re.findall(r"^```python ?(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert {name for name, _ in found} == {"", PAGES[page]}
    script = tmp_path / "page.py"
    script.write_text("\n".join(code for _, code in found))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
