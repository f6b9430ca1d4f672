"""Text for people: counts and sizes, secrets cut out, and nothing in it that moves a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stoker.errors import StokerError

_SECRET: Final = ("secret", "token", "password", "passwd", "key", "credential", "signature", "sas")
_BYTES: Final = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_AZURE: Final = ("az", "azure", "abfs", "abfss", "adl")
# Comparisons as they are written elsewhere.
_OPERATORS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("=", "===", "eq", "is"), "=="),
    **dict.fromkeys(("<>", "=!", "~=", "≠", "ne", "is not"), "!="),
    **dict.fromkeys(("=<", "≤", "le"), "<="),
    **dict.fromkeys(("=>", "≥", "ge"), ">="),
    **dict.fromkeys(("isin", "is in"), "in"),
    **dict.fromkeys(("notin", "not_in", "!in"), "not in"),
    **{word: word for word in ("in", "not in")},
    "lt": "<",
    "gt": ">",
}


def counted(number: int, noun: str) -> str:
    """A number of things, with a noun that takes an s in the plural.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def digits(value: float) -> str:
    """Three digits, without zeros at the end of a fraction."""
    if value >= 100:
        return f"{value:,.0f}"
    text = f"{value:.{2 if value < 10 else 1}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def byte_unit(size: float) -> tuple[int, str]:
    """The largest unit of bytes that ``size``, with three digits, has at least one of."""
    return next((unit for unit in _BYTES if size >= 0.9995 * unit[0]), _BYTES[-1])


def bytes_text(size: float) -> str:
    """A size by powers of 1000, as makers of storage have it: ``1.52 GB``. Sizes are shown by no others."""
    unit, name = byte_unit(size)
    return f"{digits(size / unit)} {name}"


def with_article(noun: str) -> str:
    """A noun, such as the name of a type, with its article.

    >>> with_article("int"), with_article("str"), with_article("LMStream")
    ('an int', 'a str', 'an LMStream')
    """
    vowels = "AEFHILMNORSX" if noun[:2].isupper() else "AEIOUaeiou"  # capitals are spoken one by one
    return f"{'an' if noun[:1] in tuple(vowels) else 'a'} {noun}"


def escape(text: str, keep: str = "") -> str:
    """The text with escapes for what is not printable: control characters, overrides of direction, lone surrogates.

    Names in a dataset are its author's, who is not trusted.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def is_secret(name: str) -> bool:
    """Whether a setting of this dotted name, or a parameter of a URL, may hold credentials."""
    last = name.rpartition(".")[2].lower()
    return last in ("options", "storage_options", "sig") or any(part in last for part in _SECRET)


def redact_url(url: str) -> str:
    """A URL without what can be a password or a signature in it; other texts stay as they are.

    >>> redact_url("redis://user:word@host:6379/0?password=word")
    'redis://user:***@host:6379/0?***'
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() == "file":
        return url
    rest = rest.partition("#")[0]
    rest, question, _ = rest.partition("?")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    name, colon, _ = user.partition(":")
    if at and (colon or scheme.lower() not in _AZURE):  # there a container may stand before the account
        user = f"{name if colon else ''}:***".removeprefix("" if colon else ":")
    return f"{scheme}://{user}{at}{host}{slash}{path}{question and '?***'}"


def nearest(name: object, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name that is most like ``name``, else nothing."""
    import difflib  # of an error alone

    lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), list(lower), 1, 0.65)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def unknown_name(what: str, name: object, known: Iterable[str], meant: str | None = None) -> str:
    """The message for a name that is none of the known: names all of them, and the one that was probably ``meant``, by
    default the most like it."""
    names = list(known)
    near = nearest(name, names) if meant is None else f"; did you mean {meant!r}?"
    return f"{what} {name!r} is unknown{near or ';'} known: {', '.join(names) or 'none'}"


def unknown_operator(op: object, known: Iterable[str]) -> str:
    """As :func:`unknown_name`, of comparisons: letters that are alike tell nothing, other ways to write one do."""
    meant = _OPERATORS.get(" ".join(str(op).lower().split()))
    names = list(known)
    return (
        f"operator {op!r} is unknown; {f'did you mean {meant!r}? ' if meant in names else ''}known: {', '.join(names)}"
    )


def error_text(error: BaseException) -> str:
    """The message of an error of stoker's; of any other also its name."""
    return str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
