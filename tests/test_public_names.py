"""The public names: `__all__` tells the whole truth, and everything in it is explained."""

import importlib
from types import ModuleType

import pytest

from scripts.public_names import Documented, module, names_of, public_modules

MODULES = [each.name for each in public_modules()]
# LiteLLM is installed in an environment of its own, and tests/litellm imports the module there
ELSEWHERE = frozenset({"weakincentives.adapters.litellm"})


@pytest.mark.parametrize("name", [each for each in MODULES if each not in ELSEWHERE])
def test_all_lists_exactly_the_public_names_of_a_module(name: str):
    loaded = importlib.import_module(name)  # noqa: TID251  # the modules are data here
    public = {
        each
        for each, value in vars(loaded).items()
        if not each.startswith("_") and not isinstance(value, ModuleType)
    }
    listed = [each for each in loaded.__all__ if not each.startswith("__")]
    assert len(listed) == len(set(listed))
    if hasattr(loaded, "__path__"):
        assert set(listed) == public
    else:
        assert set(listed) <= public


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_and_function_has_a_docstring(name: str):
    documented = [
        each for each in names_of(module(name)) if isinstance(each.definition, Documented)
    ]
    assert [each.name for each in documented if not each.docstring] == []


def test_there_are_public_names():
    assert "weakincentives.filesystem" in MODULES
