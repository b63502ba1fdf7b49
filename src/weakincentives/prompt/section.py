"""Prompt sections: titled text with parameters, tools and child sections."""

import inspect
import re
import textwrap
from abc import abstractmethod
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
from weakincentives.posix import CloseOnExit
from weakincentives.prompt.tool import Tool
from weakincentives.prompt.validation import check_argument, check_items, check_or_none
from weakincentives.runtime import EventBus
from weakincentives.runtime.session import Session

P = TypeVar("P")
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@runtime_checkable
class WorkspaceSection(Protocol):
    """A section with a workspace."""

    @property
    def filesystem(self) -> Filesystem:
        """The workspace."""
        ...


class Section(CloseOnExit, Generic[P]):
    """A part of a prompt.

    `Section[Params]` takes parameters: pass an instance of the dataclass `Params` when you
    render the prompt. A disabled section is omitted with its children and their tools.

    Args:
        title: The heading.
        key: Its name among its siblings; by default derived from the title.
        params_type: The dataclass of its parameters, if not given as `Section[...]`.
        default_params: The parameters to use if none are given.
        tools: Tools that the model has while the section is enabled.
        children: Child sections.
        enabled: A predicate that enables the section; called with the parameters, if any.
        accepts_overrides: Whether a stored text may replace its text.
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

        Raises:
            PromptError: An argument is invalid; the message says what is expected.
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
                f"Key of section {self.title!r} must consist of lower case letters, digits,"
                f" '.', '_' or '-': {self.key!r}"
            )
        check_argument(owner, "params_type", params_type, type, or_none=True)
        check_or_none(owner, "enabled", enabled, "a callable", is_valid=callable(enabled))
        check_argument(owner, "accepts_overrides", accepts_overrides, bool)
        given, is_valid = default_params, is_dataclass(type(default_params))
        check_or_none(owner, "default_params", given, "a dataclass instance", is_valid=is_valid)
        self.tools: tuple[Tool[Any, Any], ...] = check_items(owner, "tools", tools, Tool)
        self.children: tuple[Section[Any], ...] = check_items(owner, "children", children, Section)
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self._params_type = params_type
        self._enabled = enabled

    @property
    def params_type(self) -> type[P] | None:
        """The dataclass of its parameters; None if it has none."""
        if self._params_type is not None:
            return self._params_type
        if self.default_params is not None:
            return type(self.default_params)
        return type_argument(self, Section)

    @property
    @abstractmethod
    def original_text(self) -> str:
        """The text before substitution; overrides are bound to its hash."""

    @abstractmethod
    def render_text(self, params: P | None, text: str | None = None) -> str:
        """Return the text with `params` substituted; `text` overrides the original text."""

    def is_enabled(self, params: P | None) -> bool:
        """Return whether the section is part of the prompt."""
        if self._enabled is None:
            return True
        return self._enabled() if self.params_type is None else self._enabled(params)

    def check(self) -> None:
        """Check that the section can be rendered.

        Raises:
            PromptError: It can never be rendered.
        """
        kind = self.params_type
        if kind is not None and not is_dataclass(kind):
            raise PromptError(f"Parameters must be a dataclass: {kind!r}")
        if self.default_params is not None and kind is not type(self.default_params):
            raise PromptError(f"Default parameters are not a {kind}: {self.default_params!r}")

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return a copy for another session; a section without resources may be shared.

        A section that holds resources returns a new section with cloned children.
        """
        children = tuple(each.clone(session=session, bus=bus) for each in self.children)
        if all(new is old for new, old in zip(children, self.children, strict=True)):
            return self
        clone = copy(self)
        clone.children = children
        return clone

    def close(self) -> None:
        """Release the resources of the section."""


def walk(
    sections: "Sequence[Section[Any]]", path: tuple[str, ...] = ()
) -> "Iterator[tuple[tuple[str, ...], Section[Any]]]":
    """Yield every section with its path of keys, parents first."""
    for section in sections:
        here = (*path, section.key)
        yield here, section
        yield from walk(section.children, here)


def is_workspace(section: "Section[Any]") -> "TypeGuard[WorkspaceSection]":
    """Return whether a section has a workspace, without creating it."""
    found = inspect.getattr_static(section, "filesystem", None)
    return found is not None


def field_names(kind: type[Any] | None) -> set[str]:
    """Return the names of the fields of a dataclass; none for None."""
    return set() if kind is None else {each.name for each in fields(kind)}


def type_argument(value: object, base: type[Any]) -> type[Any] | None:
    """Return the `T` of `Base[T](...)`, or of a class that derives from `Base[T]`."""
    # typing sets __orig_class__ after the constructor has run
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
    """A section whose text is a `string.Template`: `${name}` refers to a parameter field."""

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
        """Describe a section like `Section`; common indentation of `template` is removed."""
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
        """Return the template, or `text`, with the parameters substituted."""
        chosen = self.template if text is None else text
        _check_template(chosen, field_names(self.params_type))
        given: Any = params
        names = () if params is None else fields(given)
        return Template(chosen).substitute(
            {each.name: getattr(params, each.name) for each in names}
        )

    def check(self) -> None:
        """Check that the parameters have every field that the template uses."""
        super().check()
        _check_template(self.template, field_names(self.params_type))


def _check_template(text: str, names: set[str]) -> None:
    template = Template(text)
    if not template.is_valid():
        raise PromptError("Template has a '$' without a name; write '$$' for a dollar sign")
    missing = [name for name in template.get_identifiers() if name not in names]
    if missing:
        known = ", ".join(sorted(names)) or "none"
        raise PromptError(f"Template uses ${{{missing[0]}}}, but the parameters are: {known}")
