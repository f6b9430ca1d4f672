"""Settings of the stages of inference: the KV cache of a language model's users, and the search of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stoker.errors import ConfigError
from stoker_bench.settings.schema import Section, setting

_MOST_WORKERS: Final = 500


@dataclass(frozen=True, slots=True)
class UserKind(Section):
    """A kind of users; each user's longest context and longest answer are drawn from its bounds.

    Attributes:
        name: for the results.
        context: least and most tokens of a prompt.
        generate: least and most tokens of an answer.
        think_seconds: least and most seconds between two requests.
    """

    name: str = "users"
    context: tuple[int, ...] = (512, 4096)
    generate: tuple[int, ...] = (50, 200)
    think_seconds: tuple[float, ...] = (0.1, 0.5)

    def __post_init__(self) -> None:
        for name, least in (("context", 1), ("generate", 1), ("think_seconds", 0)):
            bounds = getattr(self, name)
            if len(bounds) != 2 or not least <= bounds[0] <= bounds[1]:
                raise ConfigError(
                    f"kind {self.name!r}: {name} must be [least, most], from {least} on, got {list(bounds)}"
                )


PUBLISHED_USERS = (
    UserKind("chatbot", (512, 4096), (50, 200), (0.1, 0.5)),
    UserKind("coding", (4096, 25000), (100, 500), (0.2, 1.0)),
    UserKind("document", (4096, 16384), (200, 800), (0.3, 1.5)),
)
"""The kinds of users of MLPerf Storage v3; each user is one of them with the same chance."""


@dataclass(frozen=True, slots=True)
class KvCacheSettings(Section):
    """The stage ``kv_cache``: keys and values of users' contexts are written and read. The model is in ``model``."""

    users: int = setting(200, "users of a rank", least=1)
    kinds: tuple[UserKind, ...] = setting(PUBLISHED_USERS, "kinds of users: contexts, answers, pauses")
    phase: Literal["both", "prefill", "decode"] = setting(
        "both", "prefill: contexts are written and answered elsewhere; decode: entries that are there are read"
    )
    seconds: float = setting(300.0, "end after so long; 0: after requests", least=0)
    requests: int = setting(0, "end after so many requests of a rank; 0: after seconds", unit="count", least=0)
    repeats: int = setting(1, "run the whole stage so often, for the spread", least=1)
    seed: int = setting(42, "of users and requests; each rank adds its number", least=0)
    accelerator_bytes: int = setting(
        0, "budget of the accelerator's memory, whose entries take no time here", unit="bytes", least=0
    )
    memory_bytes: int = setting(0, "this host's memory for entries, of each rank", unit="bytes", least=0)
    capacity_bytes: int = setting(
        0, "storage for entries, of each rank; 0: nine tenths of what is free, by ranks", unit="bytes", least=0
    )
    conversation_end: float = setting(0.2, "chance that a request begins a new conversation", least=0)
    turns: int = setting(50, "most requests of a conversation; each reads the entries of all before it", least=1)
    prefix_probability: float = setting(
        0.2, "chance that a context begins with a shared prefix, not written again", least=0
    )
    prefix_tokens: tuple[int, ...] = setting((5, 9, 6), "tokens of the shared prefixes, of which one is drawn")
    prefill_only_tokens: int = setting(
        10_000, "a context of at least so many tokens is written, and answered elsewhere", unit="count", least=1
    )
    decode_batch: int = setting(32, "tokens of an answer for which its entry is read once", least=1)
    paced: bool = setting(True, "requests wait until their users have thought; false: all are there from the begin")
    workers: int = setting(0, "requests that are answered at once; 0: as many as users, up to 500", least=0)
    writers: int = setting(16, "entries that are written at once; 0: as many as workers", least=0)
    part_bytes: int = setting(4 << 20, "of an entry that are written or read by one request", unit="bytes", least=4096)
    direct: bool = setting(True, "files by O_DIRECT, past the page cache")
    fsync: bool = setting(True, "an entry counts as written when it is on the device")

    @property
    def threads(self) -> int:
        """Requests of a rank that are answered at once."""
        return self.workers or min(self.users, _MOST_WORKERS)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.kinds:
            raise ConfigError("kinds names at least one kind of users")
        if not self.prefix_tokens or min(self.prefix_tokens) < 0:
            raise ConfigError(f"prefix_tokens are at least one number, from 0 on, got {list(self.prefix_tokens)}")
        for name in ("conversation_end", "prefix_probability"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} is a chance from 0 to 1, got {getattr(self, name)}")
        if not self.seconds and not self.requests:
            raise ConfigError("the stage never ends: give seconds, requests, or both")
        if self.part_bytes % 4096:
            raise ConfigError(f"part_bytes is a multiple of 4096, as devices have it, got {self.part_bytes}")


@dataclass(frozen=True, slots=True)
class VectorSettings(Section):
    """The stage ``vectors``: the vectors nearest to queries are searched in an index that is in files."""

    index: Literal["diskann", "usearch", "pgvector"] = setting(
        "diskann",
        "diskann: beam search over a graph, by reads of 4 KiB; usearch: that package's HNSW, mapped from its file; "
        "pgvector: HNSW in a PostgreSQL server",
    )
    server: str | None = setting(
        None,
        "pgvector: postgresql://user@host/database, with the extension vector; passwords by PGPASSWORD or ~/.pgpass",
    )
    count: int = setting(100_000, "vectors", unit="count", least=16)
    dimension: int = setting(128, "values of a vector, of 4 bytes each", least=1)
    degree: int = setting(48, "edges of a vector in the graph", least=4)
    queries: int = setting(1000, "queries of a rank", unit="count", least=1)
    neighbours: int = setting(10, "vectors that a query asks for", least=1)
    kept: int = setting(
        100, "nearest vectors that a search keeps while it goes on; more find more, and read more", least=1
    )
    beam: int = setting(4, "pages that a search reads at once", least=1)
    workers: int = setting(4, "queries that are answered at once", least=1)
    seed: int = setting(42, "of vectors and queries; each rank has other queries", least=0)
    repeats: int = setting(1, "run all queries so often, for the spread", least=1)
    recall: float = setting(0.9, "least part of the nearest vectors that must be found, 0 to 1", least=0)
    direct: bool = setting(
        True, "diskann: reads by O_DIRECT, several at once; false: through the page cache, one by one"
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.recall > 1:
            raise ConfigError(f"recall is a part of 1, got {self.recall}")
        if self.neighbours > min(self.kept, self.count):
            raise ConfigError(f"a search that keeps {self.kept} of {self.count} vectors can not find {self.neighbours}")
