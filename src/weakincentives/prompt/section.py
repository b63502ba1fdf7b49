"""Sections: the parts of a prompt, each with its text, its tools and its children."""

import inspect
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from string import Template
from typing import (
    Any,
    Generic,
    Protocol,
    Self,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
    runtime_checkable,
)

from weakincentives.errors import PromptError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.validation import (
    check_argument,
    check_callable,
    check_dataclass_instance,
    check_items,
)
from weakincentives.runtime import EventBus
from weakincentives.runtime.session import Session

P = TypeVar("P")
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@runtime_checkable
class WorkspaceSection(Protocol):
    """A section that brings a workspace."""

    @property
    def filesystem(self) -> Filesystem:
        """The workspace."""
        ...


class Section(ABC, Generic[P]):
    """A part of a prompt.

    `Section[Params]` takes parameters: a dataclass, of which an instance is given when
    the prompt is rendered. A section that is not enabled is left out with all below it
    and with their tools.
    """

    def __init__(
        self,
        *,
        title: str,
        key: str | None = None,
        params_type: type[P] | None = None,
        default_params: P | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        children: "Sequence[Section[Any]]" = (),
        enabled: Callable[..., bool] | None = None,
        accepts_overrides: bool = True,
    ) -> None:
        """Describe a section.

        Args:
            title: Its heading.
            key: What it is called among its siblings; by default made of the title.
            params_type: The dataclass of its parameters, if `Section[...]` does not tell.
            default_params: Its parameters when none are given.
            tools: What the model can do while the section is part of the prompt.
            children: The sections below it.
            enabled: Asked whether it is part of the prompt, with the parameters if there are any.
            accepts_overrides: Whether its text may be replaced by a stored one.

        Raises:
            PromptError: The title is empty, the key cannot be one, or an argument is of
                another type; the message says what it must be.
        """
        check_argument(type(self).__name__, "title", title, str)
        if not title.strip():
            raise PromptError("Section needs a title")
        self.title: str = title.strip()
        owner = f"Section {self.title!r}"
        check_argument(owner, "key", key, str, or_none=True)
        self.key: str = _slug(self.title) if key is None else key
        if not _KEY.fullmatch(self.key):
            raise PromptError(
                f"Key of section {self.title!r} must be lower case letters, digits, '.', '_'"
                f" or '-': {self.key!r}"
            )
        check_argument(owner, "params_type", params_type, type, or_none=True)
        check_callable(owner, "enabled", enabled)
        check_argument(owner, "accepts_overrides", accepts_overrides, bool)
        check_dataclass_instance(owner, "default_params", default_params)
        self.tools: tuple[Tool[Any, Any], ...] = check_items(owner, "tools", tools, Tool)
        self.children: tuple[Section[Any], ...] = check_items(owner, "children", children, Section)
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self._params_type = params_type
        self._enabled = enabled

    @property
    def params_type(self) -> type[P] | None:
        """The dataclass of its parameters; None if it takes none."""
        if self._params_type is not None:
            return self._params_type
        if self.default_params is not None:
            return type(self.default_params)
        return type_argument(self, Section)

    @property
    @abstractmethod
    def original_text(self) -> str:
        """The text before parameters are filled in; its hash tells whether it is still the same."""

    @abstractmethod
    def render_text(self, params: P | None, text: str | None = None) -> str:
        """Return the text with `params` filled in; `text` stands in for the original."""

    def is_enabled(self, params: P | None) -> bool:
        """Return whether it is part of the prompt."""
        if self._enabled is None:
            return True
        return self._enabled() if self.params_type is None else self._enabled(params)

    def check(self) -> None:
        """Return if the section can be rendered.

        Raises:
            PromptError: It never can.
        """
        kind = self.params_type
        if kind is not None and not is_dataclass(kind):
            raise PromptError(f"Parameters must be a dataclass: {kind!r}")
        if self.default_params is not None and kind is not type(self.default_params):
            raise PromptError(f"Default parameters are not a {kind}: {self.default_params!r}")

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return one for another session; one that holds nothing may be shared.

        A section that holds something returns a new one, with its children cloned.
        """
        children = tuple(each.clone(session=session, bus=bus) for each in self.children)
        if all(new is old for new, old in zip(children, self.children, strict=True)):
            return self
        made = copy(self)
        made.children = children
        return made

    def close(self) -> None:
        """Let go of what the section holds."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def walk(
    sections: "Sequence[Section[Any]]", path: tuple[str, ...] = ()
) -> "Iterator[tuple[tuple[str, ...], Section[Any]]]":
    """Yield every section with the keys that lead to it, parents first."""
    for section in sections:
        here = (*path, section.key)
        yield here, section
        yield from walk(section.children, here)


def is_workspace(section: "Section[Any]") -> "TypeGuard[WorkspaceSection]":
    """Return whether a section brings a workspace; it is not made to find out."""
    found = inspect.getattr_static(section, "filesystem", None)
    return found is not None


def field_names(kind: type[Any] | None) -> set[str]:
    """Return the names of the fields of a dataclass; none for None."""
    return set() if kind is None else {each.name for each in fields(kind)}


def type_argument(value: object, base: type[Any]) -> type[Any] | None:
    """Return the `T` of `Base[T](...)`, or of a class that derives from `Base[T]`."""
    # set by typing after the constructor
    declared = [getattr(value, "__orig_class__", None)]
    for kind in type(value).__mro__:
        declared += vars(kind).get("__orig_bases__", ())
    for each in declared:
        origin, given = get_origin(each), get_args(each)
        if given and isinstance(origin, type) and issubclass(origin, base):
            known = isinstance(given[0], type) and given[0] not in {Any, type(None)}
            return given[0] if known else None
    return None


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64] or "section"


class MarkdownSection(Section[P]):
    """A section whose text is a `string.Template`: `${name}` is a field of its parameters."""

    def __init__(
        self,
        *,
        title: str,
        template: str,
        key: str | None = None,
        params_type: type[P] | None = None,
        default_params: P | None = None,
        tools: Sequence[Tool[Any, Any]] = (),
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        accepts_overrides: bool = True,
    ) -> None:
        """Describe a section as `Section` does; `template` may be indented as a whole."""
        super().__init__(
            title=title,
            key=key,
            params_type=params_type,
            default_params=default_params,
            tools=tools,
            children=children,
            enabled=enabled,
            accepts_overrides=accepts_overrides,
        )
        check_argument(f"Section {self.title!r}", "template", template, str)
        self.template: str = textwrap.dedent(template).strip()

    @property
    def original_text(self) -> str:
        """The template."""
        return self.template

    def render_text(self, params: P | None, text: str | None = None) -> str:
        """Return the template, or `text`, with the parameters in their places."""
        chosen = self.template if text is None else text
        _check(chosen, field_names(self.params_type))
        values = {} if params is None else _values(params)
        return Template(chosen).substitute(values)

    def check(self) -> None:
        """Refuse a template with places that no parameter fills."""
        super().check()
        _check(self.template, field_names(self.params_type))


def _check(text: str, names: set[str]) -> None:
    template = Template(text)
    if not template.is_valid():
        raise PromptError("Template has a '$' that begins no name; write '$$' for a dollar")
    missing = [name for name in template.get_identifiers() if name not in names]
    if missing:
        known = ", ".join(sorted(names)) or "no parameters"
        raise PromptError(f"Template asks for ${{{missing[0]}}}, but there is {known}")


def _values(params: Any) -> dict[str, object]:
    return {each.name: getattr(params, each.name) for each in fields(params)}
