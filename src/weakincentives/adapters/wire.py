"""What arrives from a provider, taken as it comes: what is missing or odd is empty."""

import json
import math
from collections.abc import Mapping
from typing import Any, cast


def json_object(data: str) -> Mapping[str, Any] | None:
    """Return the JSON object that a text is, or None if it is none."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", said) if isinstance(said, dict) else None


def count(value: object) -> int:
    """Return a number of things; nothing that is no number."""
    return max(0, int(value)) if isinstance(value, int | float) and math.isfinite(value) else 0


def text(value: object) -> str:
    """Return a text."""
    return value if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object of JSON."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """Return a list."""
    return cast("list[Any]", value) if isinstance(value, list) else []
