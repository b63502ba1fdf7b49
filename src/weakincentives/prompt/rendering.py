"""Rendering: a prompt with its parameters becomes text and a list of tools."""

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
    """What a model is told and may do.

    Args:
        text: The prompt.
        tools: The tools of the sections that are part of it.
        output_type: The dataclass that the answer must be, or None for plain text.
        is_array: Whether the answer is a list of them.
        output_schema: The JSON schema of the answer.
        deadline: When the work has to be done.
        ns: The family of prompts.
        key: What the prompt is called there.
        name: What people call it.
        stale_overrides: Stored texts that were not used, because their originals changed.
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


class Rendering:
    """One rendering: the parameters by their type, and the texts to use."""

    def __init__(
        self,
        label: str,
        params: Sequence[object],
        override: PromptOverride | None,
        stale: Sequence[StaleOverride],
    ) -> None:
        """Render with `params`; of an override, what is `stale` is not used."""
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

    def text(self, sections: Sequence[Section[Any]]) -> str:
        """Return the text of all sections that are enabled, and collect their tools."""
        return "\n\n".join(self._parts(sections, (), ()))

    def _parts(
        self, sections: Sequence[Section[Any]], path: tuple[str, ...], numbers: tuple[int, ...]
    ) -> Iterator[str]:
        number = 0
        for section in sections:
            here = (*path, section.key)
            params = self._params_for(section, here)
            if not self._is_enabled(section, params, here):
                continue
            number += 1
            place = (*numbers, number)
            yield _heading(section.title, place)
            body = self._body(section, params, here)
            if body:
                yield body
            self.tools += map(self._described, section.tools)
            yield from self._parts(section.children, here, place)

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
                f"{self._at(path)}: needs a {kind.__name__} with {', '.join(missing)}"
            )
        return kind()

    def _is_enabled(self, section: Section[Any], params: Any, path: tuple[str, ...]) -> bool:
        try:
            return section.is_enabled(params)
        except Exception as error:
            raise PromptError(f"{self._at(path)}: its enabled predicate failed: {error}") from error

    def _body(self, section: Section[Any], params: Any, path: tuple[str, ...]) -> str:
        text = self._texts.get("/".join(path)) if section.accepts_overrides else None
        try:
            return section.render_text(params, text).strip()
        except PromptError as error:
            raise PromptError(f"{self._at(path)}: {error}") from error

    def _described(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        text = self._descriptions.get(tool.name) if tool.accepts_overrides else None
        return tool if text is None else tool.with_description(text)

    def _at(self, path: tuple[str, ...]) -> str:
        return " > ".join((self._label, *path))


def _is_required(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING and each.init


def _heading(title: str, numbers: tuple[int, ...]) -> str:
    level = "#" * min(len(numbers) + 1, 6)
    return f"{level} {'.'.join(map(str, numbers))}. {title}"
