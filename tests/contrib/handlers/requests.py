"""Shared by the tests of handlers: workspaces, a plain dialect, and a way to send requests."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.tools.context import Dialect, HandlerContext, ToolSettings, ToolSpec
from weakincentives.contrib.tools.requests import (
    GlobParams,
    GrepParams,
    LsParams,
    ReadFileParams,
)
from weakincentives.contrib.tools.suite import HANDLERS
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session

ROOMY = Limits(max_write_length=2**40)


def _spec(name: str, kind: type[Any]) -> ToolSpec[Any]:
    def encode(request: Any) -> dict[str, object]:
        return {
            each.name: getattr(request, each.name)
            for each in fields(request)
            if getattr(request, each.name) != each.default
        }

    return ToolSpec(
        name=name,
        description=name,
        params=kind,
        requests=(kind,),
        decode=lambda params, context: params,
        encode=encode,
        read_only=True,
    )


PLAIN = Dialect(
    (
        _spec("ls", LsParams),
        _spec("read_file", ReadFileParams),
        _spec("glob", GlobParams),
        _spec("grep", GrepParams),
    )
)

WORKSPACES: dict[str, Callable[[Path], Filesystem]] = {
    "memory": lambda place: InMemoryFilesystem(limits=ROOMY),
    "host": lambda place: HostFilesystem(place, limits=ROOMY),
    "foreign": lambda place: MockFilesystem(),
}


def make_context(
    fs: Filesystem, *, dialect: Dialect = PLAIN, settings: ToolSettings | None = None, **more: Any
) -> HandlerContext:
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    return HandlerContext(context, fs, settings or ToolSettings(**more), dialect, HANDLERS)


@dataclass(frozen=True)
class Answer:
    """What a request came to; tests know which value it has."""

    message: str
    value: Any
    success: bool


def ask(fs: Filesystem, request: object, **settings: Any) -> Answer:
    context = make_context(fs, **settings)
    result = context.handle(request)
    assert result.exclude_value_from_context
    assert 0 < len(result.message) <= context.settings.budget
    return Answer(result.message, result.value, result.success)


def refusal(fs: Filesystem, request: object, kind: type[Exception], **settings: Any) -> str:
    """Return the text of the error that a request ends in."""
    with pytest.raises(kind) as caught:
        ask(fs, request, **settings)
    return str(caught.value)


def make_link(fs: BaseFilesystem, path: str, target: str) -> None:
    fs._make_link(path, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links
