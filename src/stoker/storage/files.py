"""Local files that others made: opened only where they are regular files, and mapped without keeping a descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from stoker.concurrency.request_observer import RequestObserver, observer
from stoker.errors import CorruptDataError, ObjectNotFoundError, StorageError
from stoker.policy import READ_WHOLE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

PRIVATE: Final = ".stoker"
"""Directory in which stoker keeps files of its own, in a cache or a dataset."""

CACHE_MARK: Final = "origin"
"""File in a cache's private directory that says which dataset the cache is a copy of."""

CACHE_NAME: Final = re.compile("[0-9a-f]{24}")
"""Names of the directories of caches."""

REMOVED_CACHE: Final = re.compile(r"[0-9a-f]{24}\.[0-9a-f]{16}\.removed")
"""Names of such directories while they are removed."""

READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags of ``os.open`` for a file to read, by which opening a named pipe does not wait."""

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# Errors of asking for what vanished, or for the end of a symbolic link that has none.
_LEADS_NOWHERE: Final = frozenset([errno.ENOENT, errno.ELOOP])
_POPULATE_READ: Final = 22
_ENDS: Final = 1 << 20
"""Bytes at the begin and at the end of a file in which its headers are, nearly always."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FAILED: Final = ctypes.c_void_p(-1).value


def _what_it_is(mode: int) -> str:
    """The kind of a path that is no regular file, in words, by its ``st_mode``."""
    return next((name for test, name in _KINDS if test(mode)), "no regular file")


def check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """See by a file's status that it is a regular file.

    Raises:
        ObjectNotFoundError: it is something else; says what.
    """
    if not stat.S_ISREG(status.st_mode):
        name = os.fspath(path)
        raise ObjectNotFoundError(f"{name}: not a file but {_what_it_is(status.st_mode)}. Check the path.", url=name)


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> tuple[int, os.stat_result]:
    """Open a regular file to read it. Opening never waits, as opening a named pipe would.

    Args:
        path: the file.
        flags: what ``os.open`` is given beside what reading needs.

    Returns:
        A descriptor, which the caller closes, and the file's status.

    Raises:
        ObjectNotFoundError: the path leads to something else: a directory, a named pipe, a device.
        OSError: it can not be opened.
    """
    descriptor = os.open(path, READ_FLAGS | flags)
    try:
        status = os.fstat(descriptor)
        check_regular(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_own(path: str | os.PathLike[str], flags: int = 0) -> int:
    """Open a file of stoker's own to read and write it, made if need be; through no symbolic link.

    Args:
        path: the file.
        flags: what ``os.open`` is given beside: ``O_EXCL`` where it must be new.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        StorageError: there is a symbolic link, or what is no file.
        OSError: it can not be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            name = os.fspath(path)
            raise StorageError(
                f"{name} is a symbolic link, and stoker makes none: what it leads to is not written to. Remove it, and see "
                "who may write to that directory",
                url=name,
            ) from error
        raise
    try:
        check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_own_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory for files of stoker's own, unless it is there, and see that not everyone may put files into it.

    Raises:
        StorageError: it is a symbolic link, or everyone may write to it, and it is not ours to change that.
        OSError: it can not be made.
    """
    name = os.fspath(path)
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o775)  # less what umask says: a group may share it, everyone may not
    status = os.lstat(name)
    if stat.S_ISLNK(status.st_mode):
        raise StorageError(
            f"{name} is a symbolic link: it must be a directory, so that stoker writes nowhere else. Remove it",
            url=name,
        )
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    if not status.st_mode & stat.S_IWOTH:
        return
    if status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # file systems without modes say that everyone may, and refuse this
            os.chmod(name, stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
    elif status.st_uid:
        raise StorageError(
            f"everyone may write to {name}, which is of user {status.st_uid}: have its owner take that away (chmod o-w; a "
            "group may share it), or choose another directory",
            url=name,
        )


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file.

    Raises:
        ObjectNotFoundError: the path leads to something else.
        OSError: it can not be read.
    """
    descriptor, _ = open_regular(path)
    with open(descriptor, "rb") as file:
        return file.read()


def walk_files(root: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files below a directory, in no order: path below ``root``, and status.

    A symbolic link to a file is that file, wherever it lies. A link to a directory below ``root`` is followed once, and not
    in circles. ``root`` itself may be a link. What vanishes meanwhile is passed over, and links that lead nowhere with a
    warning. So are
    stoker's caches below ``root``: they hold copies, which would be read as further data.

    Args:
        root: the directory.
        wanted: says of a name whether to look at it; of a directory's name, whether to look into it.

    Raises:
        StorageError: a link leads to a directory that is not below ``root``: it could be all of the machine, and what it
            holds must not be left out without a word.
        OSError: a directory can not be read.
    """
    for path, entry in _walk(root, wanted):
        if (status := _file_status(entry)) is not None:
            yield path, status


def walk_named(root: str, name: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Paths below a directory of its regular files of one name, as :func:`walk_files` finds them; asks for no status."""
    for path, entry in _walk(root, wanted):
        # Of what is no link, the listing of its directory tells whether it is a regular file.
        if entry.name == name and (entry.is_file(follow_symlinks=False) or _file_status(entry) is not None):
            yield path


def _walk(root: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below ``root`` that is no directory: path below it, and entry."""
    top = os.path.realpath(root)
    linked: set[str] = set()
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = [entry for entry in found if wanted(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                if error.errno in _LEADS_NOWHERE:
                    _pass_over(entry)
                    continue
                raise
            if not is_folder:
                yield prefix + entry.name, entry
                continue
            is_link = entry.is_symlink()
            if is_link and not _is_followed(entry.path, top, linked):
                continue
            if not _is_cache(entry.path, os.path.basename(os.path.realpath(entry.path)) if is_link else entry.name):
                folders.append((entry.path, f"{prefix}{entry.name}/"))


def _file_status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Status of a regular file; ``None`` where it is something else, which is logged, or vanished."""
    try:
        status = entry.stat()
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            _pass_over(entry)
            return None
        raise
    if stat.S_ISREG(status.st_mode):
        return status
    logger.warning("%s is passed over: it is not a file but %s", entry.path, _what_it_is(status.st_mode))
    return None


def _pass_over(entry: os.DirEntry[str]) -> None:
    if entry.is_symlink():
        logger.warning("%s is passed over: it is a symbolic link to what is not there", entry.path)


def is_in_cache(path: str, root: str) -> bool:
    """Whether a file below ``root`` lies in one of stoker's caches below ``root``."""
    folder = os.path.dirname(path)
    while len(folder) > len(root):
        if _is_cache(folder, os.path.basename(os.path.realpath(folder) if os.path.islink(folder) else folder)):
            return True
        folder = os.path.dirname(folder)
    return False


def _is_cache(folder: str, name: str) -> bool:
    """Whether stoker made this directory as a cache; ``name`` is its own, not that of a link that leads there."""
    if CACHE_NAME.match(name) is None or (CACHE_NAME.fullmatch(name) is None and REMOVED_CACHE.fullmatch(name) is None):
        return False
    return os.path.isfile(f"{folder}/{PRIVATE}/{CACHE_MARK}")


def _is_followed(link: str, top: str, linked: set[str]) -> bool:
    """Whether to look into the directory that a link leads to; ``linked`` are those that other links have led to."""
    target = os.path.realpath(link)
    if os.path.commonpath([top, target]) != top:
        raise StorageError(
            f"{link} is a symbolic link to {target}, which is not below {top}: links to directories elsewhere are not "
            "followed. Give that directory itself, a list of files, or put it there (a bind mount, a copy)",
            url=link,
        )
    here = os.path.realpath(os.path.dirname(link))
    if target in linked or os.path.commonpath([here, target]) == target:
        return False
    linked.add(target)
    return True


class MappedFile(mmap.mmap):
    """A window of a file, mapped read-only. Unlike :class:`mmap.mmap` it holds no descriptor.

    Python's map keeps a duplicate of the descriptor, so that open shards would count against ``RLIMIT_NOFILE``. Here an
    anonymous map reserves the addresses, and the file is mapped over it.

    Args:
        descriptor: of the file; it may be closed afterwards.
        start: the window's first byte, a multiple of :data:`mmap.ALLOCATIONGRANULARITY`.
        end: the byte after the window, more than ``start``.
        path: names the file.
        status: of the file.

    Raises:
        OSError: it can not be mapped.

    Attributes:
        path: names the file.
        copied: whether it lies in a cache, as a copy of a shard.
        fetched: whether its read-ahead had the kernel fetch anything from a device; known only where requests are counted.
    """

    path: str
    copied: bool = False
    fetched: bool = False
    _awaited: tuple[int, int] = (0, 0)
    _end: int
    _file: tuple[int, int]

    def __new__(cls, descriptor: int, start: int, end: int, path: str, status: os.stat_result) -> Self:
        import numpy as np  # who only looks at URLs does without

        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self = super().__new__(cls, -1, end - start, flags=flags, prot=mmap.PROT_READ)
        self.path, self._end, self._file = path, end, (status.st_dev, status.st_ino)
        address: int = np.frombuffer(self, np.uint8).ctypes.data
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc.mmap(address, end - start, mmap.PROT_READ, flags, descriptor, start) == _FAILED:
            error = ctypes.get_errno()
            # The kernel may have dropped the reservation: freeing it later could unmap what took its place meanwhile.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            raise OSError(error, os.strerror(error), path)
        return self

    def await_headers(self, *, first: bool) -> None:
        """Wait until the first page, or the begin and the end of the window, are in memory, without Python's lock.

        Where the first to touch a page is Python code, no other thread runs until storage has given it.

        Args:
            first: the first page is enough.
        """
        import numpy as np

        whole, counts = np.frombuffer(self, np.uint8), observer()
        begun = None if counts is None else counts.begin()
        await_pages(whole[: 1 if first else _ENDS])
        if len(whole) > _ENDS and not first:
            await_pages(whole[max(_ENDS, len(whole) - _ENDS) :])
        if counts is not None and begun is not None:
            ended = counts.begin()
            self._awaited = ended[0] - begun[0], ended[1] - begun[1]

    def begin_request(self, counts: RequestObserver) -> tuple[int, int]:
        """The begin of a request for bytes of the file, to be given to ``counts.end``.

        The first request of a file began so much earlier as opening it has waited for headers, which of a small file are
        all of its pages.
        """
        begun, (fetched, waited) = counts.begin(), self.__dict__.pop("_awaited", (0, 0))  # one thread gets it
        return begun[0] - fetched, begun[1] - waited

    def check(self) -> None:
        """Check that the file was not cut since it was mapped: touching what is past its end kills the process (SIGBUS).

        Raises:
            CorruptDataError: it was. A file that was removed or replaced by another of its name stays whole for its maps.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        if status.st_size < self._end and (status.st_dev, status.st_ino) == self._file:
            raise CorruptDataError(
                f"{self.path} was cut to {status.st_size} bytes while it is being read; its first {self._end} bytes are in "
                "use. Restore the file, and replace files by renaming new ones into their place"
            )

    def __reduce__(self) -> Any:
        raise TypeError("a mapped file can not be pickled")


def await_pages(data: NDArray[np.uint8]) -> None:
    """Wait until memory that may be of a mapped file is there, without Python's lock: contiguous, of shape ``(n,)``.

    Linux before 5.14 refuses it: the pages come when they are touched then. It also refuses what a file no longer has.
    """
    address: int = data.ctypes.data
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + len(data) - first), _POPULATE_READ)


def map_open_file(descriptor: int, start: int, end: int, path: str, status: os.stat_result) -> MappedFile | bytes:
    """Bytes ``[start, end)`` of an open file: mapped, or read where they are few.

    Args:
        descriptor: of the file; it may be closed afterwards.
        start: a multiple of :data:`mmap.ALLOCATIONGRANULARITY`.
        end: at most the file's size.
        path: names the file in errors.
        status: of the file.

    Raises:
        CorruptDataError: the file is shorter.
        OSError: it can not be mapped or read.
    """
    if end - start > READ_WHOLE:
        return MappedFile(descriptor, start, end, path, status)
    if end <= start:
        return b""
    counts = observer()
    begun = None if counts is None else counts.begin()
    data = os.pread(descriptor, end - start, start)
    if counts is not None and begun is not None:
        counts.end(begun, len(data))
    if len(data) != end - start:
        raise CorruptDataError(f"{path} ends at byte {start + len(data)}: it was cut while it was opened")
    return data


def map_file(path: str | os.PathLike[str]) -> MappedFile | bytes:
    """A whole regular file, mapped read-only, or read where it is small. No descriptor is kept.

    Raises:
        ObjectNotFoundError: the path leads to no regular file.
        CorruptDataError: it was cut meanwhile.
        OSError: it can not be read.
    """
    descriptor, status = open_regular(path)
    try:
        return map_open_file(descriptor, 0, status.st_size, os.fspath(path), status)
    finally:
        os.close(descriptor)


def check_mapped(files: Iterable[object]) -> None:
    """See of those of some buffers that are mapped files that none was cut; see :meth:`MappedFile.check`."""
    for file in files:
        if isinstance(file, MappedFile):
            file.check()


def existing_path(path: str | os.PathLike[str]) -> str:
    """The path, or the nearest of its parent directories that exists: where it would be made. Absolute."""
    found = os.path.abspath(path)
    while not os.path.exists(found) and found != os.path.dirname(found):
        found = os.path.dirname(found)
    return found
