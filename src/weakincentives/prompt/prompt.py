"""Prompts: sections under one name, rendered with parameters."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from weakincentives.errors import PromptError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.overrides import (
    PromptDescriptor,
    PromptOverridesStore,
    describe,
    stale_overrides,
)
from weakincentives.prompt.rendering import RenderedPrompt, Rendering
from weakincentives.prompt.section import Section, WorkspaceSection, is_workspace, walk
from weakincentives.prompt.validation import check_argument, check_items
from weakincentives.runtime import Deadline, EventBus
from weakincentives.runtime.session import Session
from weakincentives.serde import json_schema

OutputT = TypeVar("OutputT")

_NS = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_log = logging.getLogger(__name__)


class PromptTemplate(Generic[OutputT]):
    """Sections under one name; `PromptTemplate[Answer]` asks for an `Answer`.

    Everything that can be wrong with a prompt before it has parameters is found when it
    is made, and the message says in which section.
    """

    def __init__(
        self,
        *,
        ns: str,
        key: str,
        sections: Sequence[Section[Any]],
        name: str | None = None,
        output_type: Any = None,
    ) -> None:
        """Put sections together.

        Args:
            ns: The family of prompts, such as `agents/coder`.
            key: What the prompt is called there.
            sections: Its parts, in order.
            name: What people call it.
            output_type: The dataclass that the answer must be, or a list of one.

        Raises:
            PromptError: It can never be rendered.
        """
        check_argument(type(self).__name__, "ns", ns, str)
        check_argument(type(self).__name__, "key", key, str)
        if not _NS.fullmatch(ns) or not _KEY.fullmatch(key):
            raise PromptError(f"Prompt needs lower case names for ns and key: {ns!r}, {key!r}")
        self.ns = ns
        self.key = key
        self.name = name
        check_argument(self.label, "name", name, str, or_none=True)
        self.sections: tuple[Section[Any], ...] = check_items(
            self.label, "sections", sections, Section
        )
        self._output_type = output_type
        _output(self.label, output_type)
        self._check()

    @property
    def label(self) -> str:
        """The name that messages use."""
        return f"{self.ns}:{self.key}"

    @property
    def output(self) -> tuple[type[Any] | None, bool]:
        """The dataclass that the answer must be, and whether it is a list of them.

        Raises:
            PromptError: It is not a dataclass.
        """
        return _output(self.label, self._output_type or _declared(self))

    @property
    def workspace(self) -> WorkspaceSection | None:
        """The section that brings a workspace, if there is one."""
        return next((each for _, each in walk(self.sections) if is_workspace(each)), None)

    @property
    def descriptor(self) -> PromptDescriptor:
        """The hashes of the texts that may be replaced."""
        return describe(self.ns, self.key, self.sections)

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return one whose sections serve another session."""
        made = type(self)(
            ns=self.ns,
            key=self.key,
            name=self.name,
            sections=[section.clone(session=session, bus=bus) for section in self.sections],
            output_type=self._output_type,
        )
        _declare(made, self)
        return made

    def close(self) -> None:
        """Close all sections, the last first; what one of them raises stops no other."""
        with ExitStack() as closing:
            for _, section in walk(self.sections):
                closing.callback(section.close)

    def _check(self) -> None:
        if not self.sections:
            raise PromptError(f"{self.label}: a prompt needs a section")
        self._check_workspaces()
        owners: dict[str, str] = {}
        paths: Counter[tuple[str, ...]] = Counter()
        for path, section in walk(self.sections):
            place = " > ".join((self.label, *path))
            paths[path] += 1
            if paths[path] > 1:
                raise PromptError(f"{place}: two sections have this key")
            _check_section(section, place)
            for tool in section.tools:
                if tool.name in owners:
                    raise PromptError(
                        f"{place}: tool {tool.name!r} is there already, from {owners[tool.name]}"
                    )
                owners[tool.name] = place

    def _check_workspaces(self) -> None:
        places = [
            " > ".join((self.label, *path))
            for path, section in walk(self.sections)
            if is_workspace(section)
        ]
        if len(places) > 1:
            raise PromptError(f"{places[1]}: a prompt has one workspace, and {places[0]} is it")


def _check_section(section: Section[Any], place: str) -> None:
    try:
        section.check()
    except PromptError as error:
        raise PromptError(f"{place}: {error}") from error


def _declared(generic: object) -> Any:
    """Return the `T` of `PromptTemplate[T](...)` or `Prompt[T](...)`."""
    given = get_args(getattr(generic, "__orig_class__", None))
    return given[0] if given else None


def _declare(made: object, source: object) -> None:
    """Declare the `T` of another one."""
    if hasattr(source, "__orig_class__"):
        object.__setattr__(made, "__orig_class__", source.__orig_class__)  # type: ignore[attr-defined]


def _output(label: str, asked: Any) -> tuple[type[Any] | None, bool]:
    is_array = get_origin(asked) in {list, tuple} and bool(get_args(asked))
    kind = get_args(asked)[0] if is_array else asked
    if any(kind is each for each in (None, Any, type(None))) or isinstance(kind, TypeVar):
        return None, False
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise PromptError(f"{label}: the answer must be a dataclass: {kind!r}")
    return kind, is_array


class Prompt(Generic[OutputT]):
    """A template with parameters, ready to be rendered; `Prompt[Answer]` asks for an `Answer`."""

    def __init__(
        self,
        template: PromptTemplate[OutputT] | None = None,
        *,
        ns: str = "",
        key: str = "",
        name: str | None = None,
        sections: Sequence[Section[Any]] = (),
        output_type: Any = None,
        overrides_store: PromptOverridesStore | None = None,
        overrides_tag: str = "latest",
    ) -> None:
        """Use `template`, or make one of the other arguments.

        Args:
            template: The sections.
            ns: As in `PromptTemplate`, if no template is given; and so the next four.
            key: What the prompt is called.
            name: What people call it.
            sections: Its parts.
            output_type: What the answer must be.
            overrides_store: Where texts that replace others are kept.
            overrides_tag: Which of them to use.

        Raises:
            PromptError: It can never be rendered.
        """
        if template is None:
            template = PromptTemplate(
                ns=ns, key=key, name=name, sections=sections, output_type=output_type
            )
        elif ns or key or sections or output_type is not None:
            raise PromptError("Prompt takes a template or what makes one, not both")
        check_argument("Prompt", "template", template, PromptTemplate)
        check_argument(template.label, "overrides_tag", overrides_tag, str)
        check_argument(
            template.label, "overrides_store", overrides_store, PromptOverridesStore, or_none=True
        )
        self.template = template
        self._params: tuple[object, ...] = ()
        self._store = overrides_store
        self._tag = overrides_tag

    @property
    def ns(self) -> str:
        """The family of prompts that it belongs to."""
        return self.template.ns

    @property
    def key(self) -> str:
        """What it is called there."""
        return self.template.key

    @property
    def name(self) -> str | None:
        """What people call it."""
        return self.template.name

    @property
    def sections(self) -> tuple[Section[Any], ...]:
        """Its parts."""
        return self.template.sections

    def bind(self, *params: object) -> Self:
        """Return the prompt with these parameters, one of a type; later ones win.

        Raises:
            PromptError: No section takes one of them.
        """
        bound = self._copy(self.template)
        bound._params = self._merged(params)
        return bound

    def render(self, *params: object, deadline: Deadline | None = None) -> RenderedPrompt[OutputT]:
        """Return what a model is told; None among the parameters means none.

        Raises:
            PromptError: Parameters are missing or unknown; the message says where.
        """
        template = self.template
        descriptor = template.descriptor
        override = None if self._store is None else self._store.resolve(descriptor, self._tag)
        stale = () if override is None else tuple(stale_overrides(descriptor, override))
        for each in stale:
            _log.warning("%s: %s", template.label, each)
        rendering = Rendering(template.label, self._merged(params), override, stale)
        text = rendering.text(template.sections)
        kind, is_array = template.output
        if kind is None:
            kind, is_array = _output(template.label, _declared(self))
        return RenderedPrompt(
            text,
            tuple(rendering.tools),
            kind,
            is_array,
            None if kind is None else json_schema(list[kind] if is_array else kind),
            deadline,
            template.ns,
            template.key,
            template.name,
            stale,
        )

    def filesystem(self) -> Filesystem | None:
        """Return the workspace that the prompt brings, or None."""
        workspace = self.template.workspace
        return None if workspace is None else workspace.filesystem

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return one whose sections serve another session."""
        return self._copy(self.template.clone(session=session, bus=bus))

    def close(self) -> None:
        """Close all sections."""
        self.template.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _copy(self, template: PromptTemplate[OutputT]) -> Self:
        made = type(self)(template, overrides_store=self._store, overrides_tag=self._tag)
        made._params = self._params
        _declare(made, self)
        return made

    def _merged(self, params: Sequence[object]) -> tuple[object, ...]:
        given = [each for each in params if each is not None]
        known = {section.params_type for _, section in walk(self.sections)}
        for each in given:
            if type(each) not in known:
                raise PromptError(
                    f"{self.template.label}: no section takes a {type(each).__name__}: {each!r}"
                )
        merged = {type(each): each for each in (*self._params, *given)}
        return tuple(merged.values())
