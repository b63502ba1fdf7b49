"""A program whose workers cannot be confined: importing it breaks the confinement."""

import errno
from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.evaluation.worker import confinement

MODULES = ()


def start(options: Mapping[str, Any]) -> None:
    """Start nothing."""


def evaluate(_: None, request: Mapping[str, Any], host: Any) -> dict[str, Any]:
    """Run nothing; nobody may get here."""
    return {"value": "it ran"}


def _refuse() -> None:
    raise OSError(errno.EINVAL, "The kernel has no filters here")


confinement.seal_worker = _refuse
