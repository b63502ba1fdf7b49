"""Arguments of the wrong type raise an error that names the expected type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.tools import (
    ClaudeAgentWorkspaceSection,
    FilesystemSection,
    HostWorkspaceSection,
    VfsToolsSection,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptError,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.runtime.session import Session


@dataclass(frozen=True)
class Task:
    goal: str = ""


def handle(params: Task, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(params.goal, "")


SECTION = MarkdownSection(title="A", template="text")
TOOL = Tool("tool", "Does it.", handle)
EXAMPLE: ToolExample[Task, str] = ToolExample("one", Task(), "")
TEMPLATE: PromptTemplate[Any] = PromptTemplate(ns="a", key="b", sections=[SECTION])

KINDS: Mapping[str, object] = {
    "text": "x",
    "bytes": b"x",
    "number": 5,
    "fraction": 0.5,
    "truth": True,
    "list of text": ["x"],
    "list of none": [None],
    "mapping": {"x": 1},
    "class": str,
    "value": object(),
    "function": handle,
    "tools": [TOOL],
    "sections": (SECTION,),
    "examples": (EXAMPLE,),
    "params": Task(),
}
Table = list[tuple[str, Callable[..., object], dict[str, set[str]]]]
"""What is made, and for each argument the kinds of values that it may have."""

_SECTION = {
    "title": {"text"},
    "key": {"text"},
    "tools": {"tools"},
    "children": {"sections"},
    "enabled": {"function", "class"},
    "accepts_overrides": {"truth"},
}
_WORKSPACE = {
    **_SECTION,
    "template": {"text"},
    "session": set[str](),
    "mounts": set[str](),
    "allowed_host_roots": {"list of text"},
    "dialect": set[str](),
    "settings": set[str](),
    "ascii_paths": {"truth"},
    "extra_handlers": {"mapping"},
    "snapshot_dir": {"text"},
}
_PROMPT = {
    "ns": {"text"},
    "key": {"text"},
    "name": {"text"},
    "sections": {"sections"},
    "output_type": set[str](),
}
MADE: Table = [
    (
        "Tool",
        partial(Tool, name="t", description="d", handler=handle),
        {
            "name": {"text"},
            "description": {"text"},
            "handler": {"function"},
            "examples": {"examples"},
            "params_type": set(),
            "read_only": {"truth"},
            "bypasses_filesystem": {"truth"},
            "accepts_overrides": {"truth"},
            "aliases": set(),
            "access": {"function", "class"},
        },
    ),
    (
        "ToolExample",
        partial(ToolExample, description="d", input=Task(), output=""),
        {"description": {"text"}},
    ),
    (
        "MarkdownSection",
        partial(MarkdownSection, title="A", template="text"),
        {
            **_SECTION,
            "template": {"text"},
            "params_type": {"class"},
            "default_params": {"params", "sections"},
        },
    ),
    ("VfsToolsSection", VfsToolsSection, {**_WORKSPACE, "limits": set()}),
    (
        "FilesystemSection",
        partial(FilesystemSection, filesystem=InMemoryFilesystem()),
        {**_WORKSPACE, "filesystem": set()},
    ),
    (
        "HostWorkspaceSection",
        HostWorkspaceSection,
        {**_WORKSPACE, "root": {"text"}, "read_only": {"truth"}, "limits": set()},
    ),
    ("ClaudeAgentWorkspaceSection", ClaudeAgentWorkspaceSection, {"children": {"sections"}}),
    (
        "PromptTemplate",
        partial(PromptTemplate, ns="a", key="b", sections=[SECTION]),
        _PROMPT,
    ),
    ("Prompt", partial(Prompt, ns="a", key="b", sections=[SECTION]), _PROMPT),
    (
        "Prompt of a template",
        partial(Prompt, template=TEMPLATE),
        {"template": set(), "overrides_store": set(), "overrides_tag": {"text"}},
    ),
]
CASES = [
    pytest.param(make, argument, allowed, id=f"{name}({argument})")
    for name, make, arguments in MADE
    for argument, allowed in arguments.items()
]


@pytest.mark.parametrize(("make", "argument", "allowed"), CASES)
def test_an_argument_of_the_wrong_type_is_refused_in_a_sentence(
    make: Callable[..., object], argument: str, allowed: set[str]
):
    for kind in sorted(KINDS.keys() - allowed):
        with pytest.raises(PromptError) as refused:
            make(**{argument: KINDS[kind]})
            pytest.fail(f"{argument} may be: {kind}")
        assert len(str(refused.value)) > 10, kind


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Tool("t", "d", handle, examples=("x",)),  # type: ignore[arg-type]
            "Tool 't': examples must be a sequence of ToolExample, but item 0 is str",
        ),
        (
            lambda: MarkdownSection(title="A", template="", children=["x"]),  # type: ignore[list-item]
            "Section 'A': children must be a sequence of Section, but item 0 is str",
        ),
        (
            lambda: MarkdownSection(title="A", template="", children=SECTION),  # type: ignore[arg-type]
            "Section 'A': children must be a sequence of Section, not MarkdownSection",
        ),
        (
            lambda: Tool("t", "d", handle, params_type=Task()),  # type: ignore[arg-type]
            "Tool 't': params_type must be a dataclass or None, not Task",
        ),
        (
            lambda: Tool("t", "d", handle, aliases={"a": 1}),  # type: ignore[dict-item]
            "Tool 't': aliases must be a mapping of str to str, but contains int",
        ),
        (
            lambda: Prompt("Do it."),  # type: ignore[arg-type]
            "Prompt: template must be PromptTemplate, not str",
        ),
        (
            lambda: MarkdownSection(title="A", template="a\ud800"),
            "Section 'A': template contains a lone surrogate at 1",
        ),
        (
            lambda: Tool("t", "\udc80", handle),
            "Tool 't': description contains a lone surrogate at 0",
        ),
        (
            lambda: MarkdownSection(title=None, template=""),  # type: ignore[arg-type]
            "MarkdownSection: title must be str, not None",
        ),
    ],
)
def test_the_sentence_says_what_was_expected(make: Callable[[], object], message: str):
    with pytest.raises(PromptError) as refused:
        make()
    assert str(refused.value) == message


class Calling:
    def __call__(self, params: Task, *, context: ToolContext) -> ToolResult[str]:
        return handle(params, context=context)


def several(prefix: str, params: Task, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(prefix + params.goal, "")


@pytest.mark.parametrize("handler", [Calling(), partial(several, "x"), partial(handle)])
def test_whatever_can_be_called_is_a_handler(handler: Any):
    tool: Tool[Any, Any] = Tool("t", "d", handler)
    assert tool.parse('{"goal": "x"}') == Task("x")


@pytest.mark.parametrize("handler", [len, print, dict, Task, lambda: None, Path])
def test_a_callable_that_takes_something_else_is_refused(handler: Any):
    with pytest.raises(PromptError, match="Handler of tool 't'"):
        Tool("t", "d", handler)


def test_a_section_that_is_refused_leaves_no_workspace_and_follows_no_session(tmp_path: Path):
    session = Session()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(PromptError):
        HostWorkspaceSection(session=session, root=tmp_path, children=["x"])
    assert sorted(tmp_path.iterdir()) == before
    session.reset()
