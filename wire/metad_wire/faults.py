"""Says what is wrong with a value, by the names of its fields. They are not on the wire: a decoder reports positions.

Nothing here runs while all values are right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a stranger's payload may raise: ValidationError is a DecodeError; text that is not UTF-8 and
nesting that is too deep come through as Python's own errors."""
UNFIT: Final = (Exception,)
"""What encoding or routing a caller's value may raise: anything, because a value may have methods of its own."""

_NOT_UTF8: Final = "the text is not UTF-8"
_TOO_DEEP: Final = "it is nested too deeply"
_PATH: Final = re.compile(r"(.*) - at (?:`key` in )?`\$(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]")
_TOO_SHORT: Final = re.compile(r"Expected `array` of at least length \d+, got (\d+)")
_encode: Final = msgspec.msgpack.Encoder().encode
_values: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def reason(error: Exception, kind: Any) -> str:
    """What a decoder of ``kind`` complains of, as ``field: expected this, got that``."""
    if isinstance(error, UnicodeDecodeError):
        return _NOT_UTF8
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    return _named(str(error), kind)


def fault(value: object, kind: Any) -> str | None:
    """What is wrong with a value that should be of this type; None if nothing is. Raises nothing, whatever the value
    does when it is looked at."""
    try:
        return _fault(value, kind)
    except UNFIT as error:
        return f"expected {_name_of(kind)}, got {type(value).__name__}, which raises {type(error).__name__}"


def fault_of_encoded(item: msgspec.Raw, kind: Any, error: Exception) -> str:
    """What is wrong with an encoded message whose decoder said ``error``."""
    if not isinstance(error, UnicodeDecodeError):
        return reason(error, kind)
    try:
        values = _values(item)
    except MALFORMED:
        return _NOT_UTF8
    for (name, field, decode), value in zip(_fields(kind), values, strict=False):
        try:
            decode(value)
        except MALFORMED as wrong:
            return _within(name, reason(wrong, field))
    return _NOT_UTF8


def item_type(kind: Any) -> Any:
    """The type of a list's items."""
    (item,) = get_args(plain(kind))
    return item


def _fault(value: object, kind: Any) -> str | None:
    message = _alternative(kind)
    if _is_message(message):
        if value is None and message is not plain(kind):
            return None
        if not isinstance(value, get_origin(message) or message):
            return f"expected {_name_of(kind)}, got {type(value).__name__}"
        for field in msgspec.structs.fields(message):
            wrong = fault(getattr(value, field.name), field.type)
            if wrong is not None:
                return _within(field.name, wrong)
        return None
    try:
        encoded = _encode(value)
    except UNFIT as error:
        return _unfit(value, kind, error)
    try:
        msgspec.msgpack.decode(encoded, type=kind)
    except MALFORMED as error:
        return reason(error, kind)
    return None


def _unfit(value: object, kind: Any, error: Exception) -> str:
    """Why a value cannot be encoded at all."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(value, list | tuple):
        element = item_type(kind) if get_origin(plain(kind)) is list else Any
        for at, each in enumerate(value):
            wrong = fault(each, element)
            if wrong is not None:
                return _within(f"[{at}]", wrong)
    if isinstance(value, str):
        return "the text has surrogates, which UTF-8 has not"
    if isinstance(value, int):
        return "the number is too large"
    return f"expected {_name_of(kind)}, got {type(value).__name__}"


@functools.lru_cache(4096)
def _named(text: str, kind: Any) -> str:
    """A decoder's complaint. The cache is bounded, for a stranger chooses the positions; there are few texts else."""
    parts = _PATH.fullmatch(text)
    if parts is None:
        return _in_words(text, kind)
    what, path = parts[1], parts[2]
    names = ""
    for step in _STEP.findall(path):
        kind = _alternative(kind)
        if _is_message(kind):
            field = msgspec.structs.fields(kind)[int(step)]
            names, kind = f"{names}.{field.name}" if names else field.name, field.type
        else:
            names += f"[{step}]"
            inner = get_args(kind)
            kind = inner[-1] if inner else Any
    return _within(names, _in_words(what, kind))


def _in_words(what: str, kind: Any) -> str:
    missing = _TOO_SHORT.fullmatch(what)
    kind = plain(kind)
    if missing is not None and _is_message(kind):
        return f"{msgspec.structs.fields(kind)[int(missing[1])].name}: it is missing"
    what = what.replace("`", "").replace("null", "None")
    return what[:1].lower() + what[1:]


def _within(name: str, wrong: str) -> str:
    """What is wrong inside of a field."""
    head, colon, _ = wrong.partition(": ")
    if colon and re.fullmatch(r"[\w.\[\]]+", head):
        return f"{name}{wrong}" if head.startswith("[") else f"{name}.{wrong}"
    return f"{name}: {wrong}"


def _is_message(kind: Any) -> bool:
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def plain(kind: Any) -> Any:
    """Without bounds."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _alternative(kind: Any) -> Any:
    """Without bounds, and without None where the type is this or None."""
    kind = plain(kind)
    others = [each for each in get_args(kind) if each is not type(None)]
    return plain(others[0]) if type(None) in get_args(kind) and len(others) == 1 else kind


def _name_of(kind: Any) -> str:
    inner = _alternative(kind)
    name = str(getattr(get_origin(inner) or inner, "__name__", inner))
    return name if inner is plain(kind) else f"{name} | None"


@functools.cache
def _fields(kind: Any) -> list[tuple[str, Any, Callable[[msgspec.Raw], Any]]]:
    """Name, type and decoder of each: decoders take long to make, and a stranger may send a thousand bad items."""
    fields = msgspec.structs.fields(kind)
    return [(field.name, field.type, msgspec.msgpack.Decoder(field.type).decode) for field in fields]
