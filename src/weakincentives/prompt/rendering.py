"""Prompt rendering: sections and parameters become text and a list of tools."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

from weakincentives.errors import PromptError
from weakincentives.prompt.overrides import PromptOverride, StaleOverride
from weakincentives.prompt.section import Section
from weakincentives.prompt.tool import Tool
from weakincentives.runtime import Deadline

OutputT = TypeVar("OutputT")


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
            yield _heading(section.title, section_numbers)
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


def _heading(title: str, numbers: tuple[int, ...]) -> str:
    level = "#" * min(len(numbers) + 1, 6)
    return f"{level} {'.'.join(map(str, numbers))}. {title}"
