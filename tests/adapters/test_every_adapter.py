"""The same task through every adapter ends in the same tree."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.adapters.anthropic import server as anthropic_server
from tests.adapters.anthropic.test_runs import TASK as BY_ANTHROPIC
from tests.adapters.claude_code import server as claude_agent_server
from tests.adapters.claude_code.server import ours
from tests.adapters.openai import server as openai_server
from tests.adapters.openai.test_runs import TASK as BY_OPENAI
from tests.adapters.same_task import ANSWER, STEPS, TREE, tree_hash, work
from weakincentives.adapters import ProviderAdapter, ScriptedAdapter
from weakincentives.adapters.registry import PROVIDERS
from weakincentives.extras import install_command
from weakincentives.filesystem import InMemoryFilesystem

pytestmark = pytest.mark.usefixtures("clean_environment")

BY_CLAUDE_CODE = (
    *(claude_agent_server.says("", *map(ours, calls)) for calls in STEPS),
    claude_agent_server.says(ANSWER),
)
PLAYERS: Mapping[str, Callable[[], AbstractContextManager[tuple[ProviderAdapter, object]]]] = {
    "scripted": lambda: nullcontext((ScriptedAdapter([*STEPS, ANSWER]), None)),
    "openai": lambda: openai_server.asked(*BY_OPENAI),
    "anthropic": lambda: anthropic_server.asked(*BY_ANTHROPIC),
    "claude-agent": lambda: claude_agent_server.asked(*BY_CLAUDE_CODE),
}
# it has an environment of its own; there `expected` holds its tree against the same hash
ELSEWHERE = {"litellm"}


def test_the_same_task_ends_in_the_same_tree_through_every_adapter():
    trees: dict[str, str] = {}
    for name, playing in PLAYERS.items():
        files = InMemoryFilesystem()
        with playing() as (adapter, _):
            assert work(adapter, files).text == ANSWER
        trees[name] = tree_hash(files)
    assert trees == dict.fromkeys(PLAYERS, TREE)


def test_no_adapter_is_left_out():
    assert {"scripted", *PROVIDERS} - ELSEWHERE == {*PLAYERS}


def test_a_module_whose_extra_is_missing_names_it_in_one_sentence():
    sources = list(PROVIDERS.values())
    code = f"""
import importlib
import sys
for package in {[each.package for each in sources]}:
    sys.modules[package] = None
for module in {[each.module for each in sources]}:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.partition(": ")[2] for line in done.stdout.splitlines()] == [
        install_command(each.extra) for each in sources
    ]
