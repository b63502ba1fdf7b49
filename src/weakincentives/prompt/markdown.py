"""Sections of Markdown, with places for parameters."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from string import Template
from typing import Any, TypeVar

from weakincentives.prompt.arguments import check_argument
from weakincentives.prompt.problems import PromptError
from weakincentives.prompt.section import Section, field_names
from weakincentives.prompt.tool import Tool

P = TypeVar("P")


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
        self.template = textwrap.dedent(template).strip()

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
