"""Prompts: named trees of sections, rendered with parameters to text and a list of tools."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from weakincentives.errors import PromptError
from weakincentives.filesystem import Filesystem
from weakincentives.posix import CloseOnExit
from weakincentives.prompt.overrides import (
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    StaleOverride,
    describe,
    find_stale_overrides,
)
from weakincentives.prompt.section import Section, WorkspaceSection, is_workspace, walk
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.validation import check_argument, check_items
from weakincentives.runtime import Deadline, EventBus
from weakincentives.runtime.session import Session
from weakincentives.serde import json_schema

OutputT = TypeVar("OutputT")

_NS = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_log = logging.getLogger(__name__)


class PromptTemplate(Generic[OutputT]):
    """A named tree of sections; `PromptTemplate[Answer]` asks the model for an `Answer`.

    The constructor finds every error that does not depend on parameters, and the message
    names the section.
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
        """Create a template.

        Args:
            ns: The namespace of the prompt, such as `agents/coder`.
            key: Its name in the namespace.
            sections: The sections, in order.
            name: A display name.
            output_type: The dataclass of the answer, or a list of one.

        Raises:
            PromptError: The prompt can never be rendered.
        """
        check_argument(type(self).__name__, "ns", ns, str)
        check_argument(type(self).__name__, "key", key, str)
        if not _NS.fullmatch(ns) or not _KEY.fullmatch(key):
            raise PromptError(f"Prompt ns and key must be lower case names: {ns!r}, {key!r}")
        self.ns = ns
        self.key = key
        self.name = name
        check_argument(self.label, "name", name, str, or_none=True)
        self.sections: tuple[Section[Any], ...] = check_items(
            self.label, "sections", sections, Section
        )
        self._output_type = output_type
        _parse_output_type(self.label, output_type)
        self._check()

    @property
    def label(self) -> str:
        """The name used in messages."""
        return f"{self.ns}:{self.key}"

    @property
    def output(self) -> tuple[type[Any] | None, bool]:
        """The dataclass of the answer, and whether the answer is a list of them.

        Raises:
            PromptError: The declared type is not a dataclass.
        """
        return _parse_output_type(self.label, self._output_type or _type_argument(self))

    @property
    def workspace(self) -> WorkspaceSection | None:
        """The section with a workspace, if there is one."""
        return next((each for _, each in walk(self.sections) if is_workspace(each)), None)

    @property
    def descriptor(self) -> PromptDescriptor:
        """The hashes of the texts that accept overrides."""
        return describe(self.ns, self.key, self.sections)

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return a copy whose sections serve another session."""
        clone = type(self)(
            ns=self.ns,
            key=self.key,
            name=self.name,
            sections=[section.clone(session=session, bus=bus) for section in self.sections],
            output_type=self._output_type,
        )
        _copy_type_argument(self, clone)
        return clone

    def close(self) -> None:
        """Close all sections in reverse order, even if one of them fails."""
        with ExitStack() as stack:
            for _, section in walk(self.sections):
                stack.callback(section.close)

    def _check(self) -> None:
        if not self.sections:
            raise PromptError(f"{self.label}: a prompt needs at least one section")
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
                        f"{place}: tool {tool.name!r} is already defined in {owners[tool.name]}"
                    )
                owners[tool.name] = place

    def _check_workspaces(self) -> None:
        places = [
            " > ".join((self.label, *path))
            for path, section in walk(self.sections)
            if is_workspace(section)
        ]
        if len(places) > 1:
            raise PromptError(
                f"{places[1]}: a prompt can have only one workspace, already in {places[0]}"
            )


def _check_section(section: Section[Any], place: str) -> None:
    try:
        section.check()
    except PromptError as error:
        raise PromptError(f"{place}: {error}") from error


def _type_argument(generic: object) -> Any:
    """Return the `T` of `PromptTemplate[T](...)` or `Prompt[T](...)`."""
    arguments = get_args(getattr(generic, "__orig_class__", None))
    return arguments[0] if arguments else None


def _copy_type_argument(source: object, target: object) -> None:
    """Give `target` the `T` of `source`."""
    if hasattr(source, "__orig_class__"):
        object.__setattr__(target, "__orig_class__", source.__orig_class__)  # type: ignore[attr-defined]


def _parse_output_type(label: str, declared: Any) -> tuple[type[Any] | None, bool]:
    is_array = get_origin(declared) in {list, tuple} and bool(get_args(declared))
    kind = get_args(declared)[0] if is_array else declared
    if any(kind is each for each in (None, Any, type(None))) or isinstance(kind, TypeVar):
        return None, False
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise PromptError(f"{label}: the output type must be a dataclass: {kind!r}")
    return kind, is_array


@dataclass(frozen=True)  # no slots: with them a subscript, `RenderedPrompt[...](...)`, raises
class RenderedPrompt(Generic[OutputT]):
    """The text and tools of a prompt, ready to be sent to a model.

    Args:
        text: The text.
        tools: The tools of all enabled sections.
        output_type: The dataclass of the answer, or None for plain text.
        is_array: Whether the answer is a list of them.
        output_schema: The JSON schema of the answer.
        deadline: When the work has to be done.
        ns: The namespace of the prompt.
        key: Its name in the namespace.
        name: Its display name.
        stale_overrides: Overrides that were not used because their original text changed.
    """

    text: str
    tools: tuple[Tool[Any, Any], ...] = ()
    output_type: type[Any] | None = None
    is_array: bool = False
    output_schema: Mapping[str, object] | None = None
    deadline: Deadline | None = None
    ns: str = ""
    key: str = ""
    name: str | None = None
    stale_overrides: tuple[StaleOverride, ...] = ()

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class Prompt(CloseOnExit, Generic[OutputT]):
    """A template with parameters, ready to render; `Prompt[Answer]` asks for an `Answer`.

    Args:
        template: The template.
        ns: As in `PromptTemplate`, if no template is given; so are the next four.
        key: The name of the prompt in its namespace.
        name: A display name.
        sections: The sections, in order.
        output_type: The dataclass of the answer.
        overrides_store: Where overrides of texts are stored.
        overrides_tag: The tag of the override to use.
    """

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
        """Use `template`, or create one from the other arguments.

        Raises:
            PromptError: The prompt can never be rendered.
        """
        if template is None:
            template = PromptTemplate(
                ns=ns, key=key, name=name, sections=sections, output_type=output_type
            )
        elif ns or key or sections or output_type is not None:
            raise PromptError("Pass a template, or ns, key and sections, but not both")
        check_argument("Prompt", "template", template, PromptTemplate)
        check_argument(template.label, "overrides_tag", overrides_tag, str)
        check_argument(
            template.label, "overrides_store", overrides_store, PromptOverridesStore, or_none=True
        )
        self.template: PromptTemplate[OutputT] = template
        self.ns: str = template.ns
        self.key: str = template.key
        self.name: str | None = template.name
        self.sections: tuple[Section[Any], ...] = template.sections
        self.params: tuple[object, ...] = ()
        self._store = overrides_store
        self._tag = overrides_tag

    def bind(self, *params: object) -> Self:
        """Return a copy with these parameters, at most one per type; later ones win.

        Raises:
            PromptError: No section takes one of them.
        """
        return self._copy(self.template, self._merge_params(params))

    def render(self, *params: object, deadline: Deadline | None = None) -> RenderedPrompt[OutputT]:
        """Return the text and tools for a model; parameters that are None are ignored.

        Raises:
            PromptError: Parameters are missing or unknown; the message names the section.
        """
        template = self.template
        descriptor = template.descriptor
        override = None if self._store is None else self._store.resolve(descriptor, self._tag)
        stale = () if override is None else tuple(find_stale_overrides(descriptor, override))
        for each in stale:
            _log.warning("%s: %s", template.label, each)
        renderer = Renderer(template.label, self._merge_params(params), override, stale)
        text = renderer.render(template.sections)
        kind, is_array = template.output
        if kind is None:
            kind, is_array = _parse_output_type(template.label, _type_argument(self))
        return RenderedPrompt(
            text,
            tuple(renderer.tools),
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
        """Return the prompt's workspace, or None."""
        workspace = self.template.workspace
        return None if workspace is None else workspace.filesystem

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return a copy whose sections serve another session."""
        return self._copy(self.template.clone(session=session, bus=bus), self.params)

    def close(self) -> None:
        """Close all sections."""
        self.template.close()

    def _copy(self, template: PromptTemplate[OutputT], params: tuple[object, ...]) -> Self:
        clone = type(self)(template, overrides_store=self._store, overrides_tag=self._tag)
        clone.params = params
        _copy_type_argument(self, clone)
        return clone

    def _merge_params(self, params: Sequence[object]) -> tuple[object, ...]:
        given = [each for each in params if each is not None]
        accepted = {section.params_type for _, section in walk(self.sections)}
        for each in given:
            if type(each) not in accepted:
                raise PromptError(
                    f"{self.template.label}: no section takes a {type(each).__name__}: {each!r}"
                )
        merged = {type(each): each for each in (*self.params, *given)}
        return tuple(merged.values())


class Renderer:
    """Renders sections with parameters and overrides, and collects their tools."""

    def __init__(
        self,
        label: str,
        params: Sequence[object],
        override: PromptOverride | None,
        stale: Sequence[StaleOverride],
    ) -> None:
        """Render with `params`; the `stale` parts of an override are ignored."""
        self._label = label
        self._params = {type(each): each for each in params}
        unused = {each.name for each in stale}
        stored = override or PromptOverride("", "", "")
        self._texts = {
            name: each.text for name, each in stored.sections.items() if name not in unused
        }
        self._descriptions = {
            name: each.text for name, each in stored.tools.items() if name not in unused
        }
        self.tools: list[Tool[Any, Any]] = []

    def render(self, sections: Sequence[Section[Any]]) -> str:
        """Return the text of all enabled sections, and collect their tools."""
        return "\n\n".join(self._render_sections(sections, (), ()))

    def _render_sections(
        self, sections: Sequence[Section[Any]], path: tuple[str, ...], numbers: tuple[int, ...]
    ) -> Iterator[str]:
        number = 0
        for section in sections:
            here = (*path, section.key)
            params = self._params_for(section, here)
            if not self._is_enabled(section, params, here):
                continue
            number += 1
            section_numbers = (*numbers, number)
            yield _format_title(section.title, section_numbers)
            body = self._render_body(section, params, here)
            if body:
                yield body
            self.tools += map(self._override_description, section.tools)
            yield from self._render_sections(section.children, here, section_numbers)

    def _params_for(self, section: Section[Any], path: tuple[str, ...]) -> Any:
        kind = section.params_type
        if kind is None:
            return None
        if kind in self._params:
            return self._params[kind]
        if section.default_params is not None:
            return section.default_params
        missing = [each.name for each in fields(kind) if _is_required(each)]
        if missing:
            raise PromptError(
                f"{self._label_of(path)}: needs a {kind.__name__} with {', '.join(missing)}"
            )
        return kind()

    def _is_enabled(self, section: Section[Any], params: Any, path: tuple[str, ...]) -> bool:
        try:
            return section.is_enabled(params)
        except Exception as error:
            raise PromptError(
                f"{self._label_of(path)}: its enabled predicate failed: {error}"
            ) from error

    def _render_body(self, section: Section[Any], params: Any, path: tuple[str, ...]) -> str:
        text = self._texts.get("/".join(path)) if section.accepts_overrides else None
        try:
            return section.render_text(params, text).strip()
        except PromptError as error:
            raise PromptError(f"{self._label_of(path)}: {error}") from error

    def _override_description(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        text = self._descriptions.get(tool.name) if tool.accepts_overrides else None
        return tool if text is None else tool.with_description(text)

    def _label_of(self, path: tuple[str, ...]) -> str:
        return " > ".join((self._label, *path))


def _is_required(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING and each.init


def _format_title(title: str, numbers: tuple[int, ...]) -> str:
    level = "#" * min(len(numbers) + 1, 6)
    return f"{level} {'.'.join(map(str, numbers))}. {title}"
