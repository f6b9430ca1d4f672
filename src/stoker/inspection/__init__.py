"""Inspection and checks of datasets and caches: :func:`inspect`, :func:`verify`, and the caches of this machine.

``stoker inspect``, ``stoker verify`` and ``stoker cache`` are these functions on the command line.
"""

from stoker.inspection.checks import Problem, VerifyReport
from stoker.inspection.facts import ColumnFacts, DatasetFacts
from stoker.inspection.inspect_dataset import inspect
from stoker.inspection.token_facts import LayoutFacts, TokenFacts, inspect_tokens
from stoker.inspection.verify_dataset import verify

__all__ = [
    "ColumnFacts",
    "DatasetFacts",
    "LayoutFacts",
    "Problem",
    "TokenFacts",
    "VerifyReport",
    "inspect",
    "inspect_tokens",
    "verify",
]
