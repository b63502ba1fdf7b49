"""Values to JSON and back: dataclasses, enumerations, dates, UUIDs, paths, bytes, containers.

Bytes become base64, dates RFC 3339, enumerations their values. A field that the
type does not have is refused. Nothing that data says is imported or called: the
caller names the type, and the data only fills it.
"""

import json
import re
from typing import TypeVar

import msgspec

from weakincentives.serde.fields import check_fields
from weakincentives.serde.hooks import from_json_value, to_json_value
from weakincentives.serde.problems import SerdeError, refusal

T = TypeVar("T")

_DEPTH = "Nested too deeply"
_ESCAPED = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(value: object) -> bytes:
    """Return `value` as JSON in UTF-8.

    Raises:
        SerdeError: It holds what JSON cannot say, or refers to itself.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=to_json_value)
    except UnicodeEncodeError:
        # a lone surrogate: the name of a file whose bytes are no UTF-8
        return _encoded_slowly(value)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error
    if b"null" in data:
        # msgspec writes numbers that JSON lacks as null: they would be lost
        _encoded_slowly(value)
    return data


def decode(data: bytes | str, kind: type[T]) -> T:
    """Return the `kind` that the JSON in `data` describes.

    Raises:
        SerdeError: It is not JSON, or not a `kind`; the message names the fields.
    """
    return convert(_parse(data), kind)


def to_builtins(value: object) -> object:
    """Return `value` as dictionaries, lists, tuples, strings, numbers, booleans and None.

    Raises:
        SerdeError: It holds what JSON cannot say, or refers to itself.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=to_json_value)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error


def convert(value: object, kind: type[T], *, lax: bool = False) -> T:
    """Return `value`, as `to_builtins` or a JSON parser gives it, as a `kind`.

    With `lax`, numbers and truth values may be texts.

    Raises:
        SerdeError: It is not a `kind`; the message names the fields.
    """
    try:
        made = msgspec.convert(value, kind, strict=not lax, dec_hook=from_json_value, str_keys=True)
        check_fields(value, kind)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except msgspec.ValidationError as fault:
        raise refusal(value, kind, fault) from None
    except (TypeError, NameError) as error:
        raise SerdeError(f"Type cannot be read from JSON: {error}") from error
    return made


def _parse(data: bytes | str) -> object:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as fault:
        # what it says of half a character depends on what follows
        text = data if isinstance(data, str) else data.decode("latin-1")
        if _ESCAPED.search(text) is None:
            raise SerdeError(f"Not JSON: {fault}") from None
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except ValueError as fault:
        raise SerdeError(f"Not JSON: {fault}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _encoded_slowly(value: object) -> bytes:
    try:
        text = json.dumps(
            to_builtins(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except ValueError as error:
        if isinstance(error, SerdeError):
            raise
        raise SerdeError("No JSON for a number that is infinite, or none") from None
    return _SURROGATE.sub(_escape, text).encode("utf-8", "surrogatepass")


def _escape(found: re.Match[str]) -> str:
    r"""Return a surrogate as `\ud800`, but for the second of a pair.

    As two escapes a pair would be read as the one character that it is in UTF-16.
    """
    is_second = "\ud800" <= found.string[found.start() - 1] <= "\udbff" <= found[0]
    return found[0] if is_second else f"\\u{ord(found[0]):04x}"
