"""The symbols that code in asteval can use: builtins, and parts of modules by name.

This whitelist is what keeps code from everything else, so modules are never passed on as they
are: each is a namespace with the names listed here. Used in the worker process.
"""

import abc
import ast
import base64
import bisect
import builtins
import calendar
import collections
import contextlib
import copy
import csv
import dataclasses
import datetime
import decimal
import difflib
import enum
import fractions
import functools
import hashlib
import heapq
import html
import io
import itertools
import json
import math
import operator
import pprint
import random
import re
import statistics
import string
import textwrap
import time
import typing
import unicodedata
import urllib.parse
import xml.etree.ElementTree
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from weakincentives.contrib.evaluation.worker.asteval import access

_BUILTINS = (
    *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr"),
    *("complex", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash"),
    *("hex", "id", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min"),
    *("next", "object", "oct", "ord", "pow", "property", "range", "repr", "reversed", "round"),
    *("set", "slice", "sorted", "staticmethod", "classmethod", "str", "sum", "tuple", "zip"),
)


class Namespace(SimpleNamespace):
    """The part of a module that code can use."""

    def __repr__(self) -> str:
        """Return what says nothing about the module itself."""
        return "<module>"


class HostFunction:
    """A function of ours, which shows nothing of its inside."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Call `function`."""
        self._name = name
        self._function = function

    def __repr__(self) -> str:
        """Return the name."""
        return f"<function {self._name}>"

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it."""
        return self._function(*arguments, **options)


def _wraps(original: Any, *_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator that keeps the name, for `functools.wraps`."""

    def decorate(function: Any) -> Any:
        if isinstance(original, access.UserFunction) and isinstance(function, access.UserFunction):
            function.__name__ = original.__name__
        return function

    return decorate


def _public(module: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _all(module: Any, *without: str) -> dict[str, Any]:
    listed: list[str] = getattr(module, "__all__", None) or dir(module)
    return {
        name: getattr(module, name)
        for name in listed
        if not name.startswith("_")
        and name not in without
        and not isinstance(getattr(module, name), type(abc))
    }


_TABLES: Mapping[str, Mapping[str, Any]] = {
    "ast": _all(ast, "iter_fields", "main"),  # an object can name any of its attributes a field
    "abc": _public(abc, "ABC", "abstractmethod"),
    "base64": _public(base64, "b64encode", "b64decode", "urlsafe_b64encode", "urlsafe_b64decode"),
    "bisect": _all(bisect),
    "calendar": _public(calendar, "isleap", "leapdays", "monthrange", "weekday", "month_name")
    | _public(calendar, "month_abbr", "day_name", "day_abbr", "timegm"),
    "collections": _all(collections, "UserDict", "UserList", "UserString"),
    "contextlib": _public(contextlib, "contextmanager", "suppress", "closing", "nullcontext"),
    "copy": _public(copy, "copy", "deepcopy"),
    "csv": _public(csv, "reader", "writer", "DictReader", "DictWriter", "QUOTE_ALL", "Sniffer")
    | _public(csv, "QUOTE_MINIMAL", "QUOTE_NONNUMERIC", "QUOTE_NONE", "Error"),
    "dataclasses": _public(dataclasses, "dataclass", "field", "asdict", "astuple", "replace")
    | _public(dataclasses, "fields", "is_dataclass"),
    "datetime": _public(datetime, "date", "datetime", "time", "timedelta", "timezone", "UTC"),
    "decimal": _all(decimal),
    "difflib": _public(difflib, "get_close_matches", "unified_diff", "ndiff", "SequenceMatcher"),
    "enum": _public(enum, "Enum", "IntEnum", "Flag", "auto", "unique"),
    "fractions": _public(fractions, "Fraction"),
    "functools": _public(functools, "reduce", "partial", "lru_cache", "cache", "cmp_to_key")
    | {"wraps": _wraps},
    "hashlib": _public(hashlib, "md5", "sha1", "sha256", "sha512", "blake2b"),
    "heapq": _all(heapq),
    "html": _public(html, "escape", "unescape"),
    "io": _public(io, "StringIO", "BytesIO"),
    "itertools": _all(itertools),
    "json": _public(json, "dumps", "loads", "JSONDecodeError", "dump", "load", "JSONEncoder"),
    "math": _all(math),
    "operator": _all(operator, "attrgetter", "methodcaller", "call")
    | {"attrgetter": access.attribute_getter, "methodcaller": access.method_caller},
    "pprint": _public(pprint, "pformat"),
    "random": _public(random, "random", "randint", "choice", "choices", "sample", "shuffle")
    | _public(random, "uniform", "gauss", "seed", "randrange", "Random"),
    "re": _all(re, "Scanner"),
    "statistics": _all(statistics),
    "string": _all(string, "Formatter"),
    "textwrap": _public(textwrap, "wrap", "fill", "dedent", "indent", "shorten"),
    "time": _public(time, "time", "perf_counter", "monotonic", "sleep", "strftime", "gmtime"),
    "typing": _public(typing, "Any", "Optional", "Union", "List", "Dict", "Tuple", "Set")
    | _public(typing, "Iterable", "Iterator", "Callable", "NamedTuple", "Sequence", "Mapping"),
    "unicodedata": _all(unicodedata),
    "urllib.parse": _public(urllib.parse, "quote", "unquote", "quote_plus", "unquote_plus")
    | _public(
        urllib.parse, "urlparse", "urlsplit", "urlencode", "parse_qs", "parse_qsl", "urljoin"
    ),
    "xml.etree.ElementTree": _public(
        xml.etree.ElementTree, "fromstring", "tostring", "Element", "SubElement", "ParseError"
    ),
}

datetime.datetime.strptime("1Z", "%d%z")  # it imports a module, when files can still be opened

MODULES = tuple(sorted(_TABLES))
"""The modules that code can import."""


def create_modules() -> dict[str, Namespace]:
    """Return new namespaces, which the code of one evaluation may change."""
    return {name: Namespace(**table) for name, table in _TABLES.items()}


def create_symbols() -> dict[str, Any]:
    """Return the symbols that are there without an import."""
    available = vars(builtins)
    errors = {
        name: value
        for name, value in available.items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    return {
        **{name: available[name] for name in _BUILTINS},
        **errors,
        "type": access.type_of,
        "getattr": access.get_attribute,
        "setattr": access.set_attribute,
        "delattr": access.delete_attribute,
        "hasattr": access.has_attribute,
        "__name__": "__main__",
    }
