"""Redis or Valkey as an engine: the one for many hosts.

A record is a string of 8 bytes of version and the value. Writes are two-line Lua scripts, which the server runs one at a
time. A write that is repeated because its answer was lost finds its own version stored, and succeeds. A sorted set holds
all keys, for listing.

The server must write each change to disk before it acknowledges it (``appendonly yes``, ``appendfsync always``) and must
never evict. This is checked when it is opened. Replicas follow a server with a delay: a fail-over to one can lose the last
acknowledged writes. Workers that have seen a lane further on than it now is stop with ``EngineRegressedError``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from stoker.arguments import must_be
from stoker.coordination.engines.store import Stored, fresh_version
from stoker.coordination.errors import EngineError, EngineReplacedError, no_answer
from stoker.display import redact_url
from stoker.errors import ConfigError, import_option

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

# Each script begins with this: of an engine that was emptied, nothing that was read before holds.
_GENERATION = """
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
  return -1
end
"""
_CREATE = """
local old = redis.call('GETRANGE', KEYS[1], 0, 7)
if old == '' then
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[2], 0, ARGV[3])
  return 1
end
return old == string.sub(ARGV[2], 1, 8) and 1 or 0
"""
_SWAP = """
local old = redis.call('GETRANGE', KEYS[1], 0, 7)
if old == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[2])
  return 1
end
return old == string.sub(ARGV[2], 1, 8) and 1 or 0
"""
_DELETE = """
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[2] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[3])
return 1
"""
_WANTED = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


class RedisStore:
    """The records in a Redis or Valkey server.

    ``url``: as redis-py takes it, or with ``valkey``; options of our own are ``prefix`` (of all keys; ``stoker``) and
    ``durability`` (``checked``; or ``unchecked`` for a server that is known to be safe, or may lose something). ``timeout``:
    seconds a call may take, reconnecting included.
    """

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self._redis = import_option("redis", f"the engine {redact_url(url)} needs redis-py", "stoker[redis]")
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._prefix = "{" + options.pop("prefix", "stoker") + "}:"
        checked = options.pop("durability", "checked")
        must_be(
            "checked or unchecked", checked in ("checked", "unchecked"), **{f"{redact_url(url)}: durability": checked}
        )
        scheme = parts.scheme.replace("valkey", "redis")
        address = f"{scheme}://{parts.netloc}{parts.path}?{urlencode(options)}"
        self.url = redact_url(url)
        self._timeout = timeout
        self._client = self._redis.Redis.from_url(
            address,
            socket_timeout=timeout / 2,
            socket_connect_timeout=timeout / 2,
            retry=None,
            retry_on_error=[],
            decode_responses=False,
        )
        self._index, self._mark = f"{self._prefix}keys", f"{self._prefix}generation"
        self._scripts = {text: self._client.register_script(_GENERATION + text) for text in (_CREATE, _SWAP, _DELETE)}
        self._call(self._client.ping)
        if checked == "checked":
            self._check_durability()
        self._generation = self._call(self._open_generation)

    def get(self, keys: Sequence[str]) -> list[Stored | None]:
        names = [self._mark, *[self._prefix + key for key in keys]]
        generation, *found = self._call(lambda: self._client.mget(names))
        self._check_generation(generation)
        return [None if one is None else Stored(one[8:], int.from_bytes(one[:8])) for one in found]

    def create(self, key: str, value: bytes) -> int | None:
        version = fresh_version()
        return version if self._run(_CREATE, key, _packed(version) + value, key.encode()) else None

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        fresh = fresh_version()
        return fresh if self._run(_SWAP, key, _packed(fresh) + value, _packed(version)) else None

    def delete(self, key: str, version: int) -> bool:
        return self._run(_DELETE, key, _packed(version), key.encode())

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Stored]]:
        first = b"[" + prefix.encode() if after < prefix else b"(" + after.encode()
        last = b"[" + prefix.encode() + b"\xff"
        names = self._call(lambda: self._client.zrangebylex(self._index, first, last, start=0, num=limit))
        keys = [name.decode() for name in names]
        # A key that goes in between is left out, as if the list had been read later.
        return [(key, found) for key, found in zip(keys, self.get(keys), strict=True) if found is not None]

    def close(self) -> None:
        self._client.close()

    def _run(self, script: str, key: str, *arguments: bytes) -> bool:
        keys = [self._prefix + key, self._index, self._mark]
        done: int = self._call(lambda: self._scripts[script](keys=keys, args=[self._generation, *arguments]))
        self._check_generation(None if done < 0 else self._generation)
        return bool(done)

    def _open_generation(self) -> bytes:
        """A random number of the records, set by the first worker."""
        self._client.set(self._mark, _packed(fresh_version()), nx=True)
        found: bytes = self._client.get(self._mark)
        return found

    def _check_generation(self, found: bytes | None) -> None:
        """Check that the records are those that the engine was opened with."""
        if found is None or found != self._generation:
            raise EngineReplacedError(
                f"the engine {self.url} was emptied while this worker used it, or restarted without its file: the run's "
                "records are lost. End all workers of the run, and start it again, or resume from a checkpoint"
            )

    def _call(self, ask: Callable[[], _Answer]) -> _Answer:
        """Call the server until it answers or the time is up. All calls may be repeated: see the scripts."""
        begun = time.monotonic()
        wait = 0.01
        while True:
            try:
                return ask()
            except (
                self._redis.exceptions.ConnectionError,  # also: it is still loading its file
                self._redis.exceptions.TimeoutError,
                self._redis.exceptions.ReadOnlyError,
            ) as error:
                if isinstance(error, self._redis.exceptions.AuthenticationError):
                    raise self._refused(error) from error
                if time.monotonic() + wait > begun + self._timeout:
                    remedy = "see whether the server runs and can be reached from here"
                    raise no_answer(self.url, begun, error, remedy) from error
            except self._redis.exceptions.RedisError as error:
                raise self._refused(error) from error
            time.sleep(wait)
            wait = min(2 * wait, 0.5)

    def _refused(self, error: Exception) -> EngineError:
        return EngineError(f"the engine {self.url} refused ({error}): see the server's log", url=self.url)

    def _check_durability(self) -> None:
        try:
            found = {}
            for name in _WANTED:
                found.update(self._client.config_get(name))
        except self._redis.exceptions.RedisError as error:
            _log.warning("the engine %s does not tell whether it is durable (%s): it is taken to be", self.url, error)
            return
        wrong = [
            f"{name} {found.get(name)} (needed: {want})" for name, want in _WANTED.items() if found.get(name) != want
        ]
        if wrong:
            raise ConfigError(
                f"the engine {self.url} may lose what it acknowledges: {', '.join(wrong)}: set that in its configuration, or "
                f"add durability=unchecked to the URL to accept it"
            )


def _packed(version: int) -> bytes:
    return version.to_bytes(8)
