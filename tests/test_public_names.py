"""Public names: `__all__` is complete, and everything in it is documented."""

import ast
import importlib
from contextlib import suppress
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import pytest

from scripts.public_names import Documented, module, names_of, public_modules
from weakincentives.adapters import PromptResponse
from weakincentives.prompt import RenderedPrompt, ToolExample, ToolResult
from weakincentives.runtime import TokenUsage

MODULES = [each.name for each in public_modules()]
# LiteLLM is installed in an environment of its own, and tests/litellm imports the module there
ELSEWHERE = frozenset({"weakincentives.adapters.litellm"})


@pytest.mark.parametrize("name", [each for each in MODULES if each not in ELSEWHERE])
def test_all_lists_exactly_the_public_names_of_a_module(name: str):
    loaded = importlib.import_module(name)  # noqa: TID251  # the modules are data here
    public = {
        each
        for each in set(dir(loaded)) - _offered_inside(name)
        if not each.startswith("_") and not isinstance(getattr(loaded, each), ModuleType)
    }
    listed = [each for each in loaded.__all__ if not each.startswith("__")]
    assert len(listed) == len(set(listed))
    if hasattr(loaded, "__path__"):
        assert set(listed) == public
    else:
        assert set(listed) <= public


def _offered_inside(name: str) -> set[str]:
    """Return the names that a package offers to our other packages alone: `X as X`."""
    aliases = [
        alias
        for each in module(name).tree.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    ]
    return {each.name for each in aliases if each.asname == each.name}


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_and_function_has_a_docstring(name: str):
    documented = [
        each for each in names_of(module(name)) if isinstance(each.definition, Documented)
    ]
    assert [each.name for each in documented if not each.docstring] == []


def test_there_are_public_names():
    assert "weakincentives.filesystem" in MODULES


def _public_generics() -> list[type[Any]]:
    found: dict[type[Any], None] = {}
    for name in MODULES:
        # on other Pythons not every extra is installed; on one all but LiteLLM are
        with suppress(ModuleNotFoundError):
            loaded = importlib.import_module(name)  # noqa: TID251  # the modules are data here
            for each in loaded.__all__:
                value = getattr(loaded, each, None)
                if isinstance(value, type) and getattr(value, "__parameters__", ()):
                    found[value] = None
    return list(found)


@pytest.mark.parametrize("kind", _public_generics())
def test_a_public_generic_can_be_made_with_its_subscript(kind: type[Any]):
    subscripted = kind[(object,) * len(kind.__parameters__)]  # type: ignore[index]
    if is_dataclass(kind):
        # typing sets an attribute on what was made, and frozen with slots raises TypeError for it
        made: Any = object.__new__(kind)
        with suppress(AttributeError):
            made.__orig_class__ = subscripted
    assert subscripted.__origin__ is kind


def test_values_that_are_generic_are_made_with_their_types():
    tool = ToolExample[str, int]("one", "input", 1)
    assert tool == ToolExample("one", "input", 1)
    assert ToolResult[int]("done", 1).value == 1
    assert ToolResult[Any].ok(1).success
    assert RenderedPrompt[str]("text").text == "text"
    usage = TokenUsage()
    response = PromptResponse[str]("name", "text", None, (), usage, 1, "end", ())
    assert response.usage is usage


def test_generics_are_found():
    assert {ToolResult, ToolExample, RenderedPrompt, PromptResponse} <= set(_public_generics())
