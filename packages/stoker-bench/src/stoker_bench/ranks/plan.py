"""The plan of a run, which every rank is given as a file; it also records how the run was started."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.display import is_secret
from stoker.errors import ConfigError
from stoker_bench.settings.schema import build, tree_of
from stoker_bench.settings.workload import Workload, as_plain, without_credentials

NAME: Final = "plan.json"
NO_DATA: Final = "memory://nothing"
"""The URL of the data of a run that has none."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run.

    Attributes:
        workload: all settings.
        url: the data set; training files are below ``train/``.
        results: directory of the results.
        run: a name of its own, drawn.
        source: the workload's file or name.
        origins: where each setting was given.
        notes: what of the file could not be taken over.
        command: as it was started.
        scratch: folder of each host for what loaders keep on disk.
    """

    workload: Workload
    url: str
    results: str
    run: str
    source: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    scratch: str = ""

    @property
    def digest(self) -> str:
        """Tells whether two processes were told the same: of the settings and the data's URL."""
        plain = json.dumps([as_plain(self.workload), self.url], sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()[:32]

    def as_dict(self, *, secrets: bool) -> dict[str, Any]:
        """For JSON; without ``secrets``, credentials are left out."""
        plain = asdict(self) | {"workload": as_plain(self.workload), "origins": dict(self.origins)}
        plain |= {"notes": list(self.notes), "command": list(self.command)}
        if not secrets:
            plain["workload"] = without_credentials(plain["workload"])
            plain["command"] = [_hidden_argument(one) for one in self.command]
        return plain


def _hidden_argument(argument: str) -> str:
    name, equals, _ = argument.partition("=")
    return f"{name}=(not recorded)" if equals and is_secret(name) else argument


def save_plan(plan: RunPlan, path: Path) -> None:
    """Write a plan with its credentials, for this user's processes alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(plan.as_dict(secrets=True), file)


def load_plan(path: Path) -> RunPlan:
    """Read what :func:`save_plan` wrote."""
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a plan of a run: {error}") from None
    given["workload"] = build(Workload, tree_of(given["workload"], str(path)))
    given["notes"], given["command"] = tuple(given["notes"]), tuple(given["command"])
    return RunPlan(**given)
