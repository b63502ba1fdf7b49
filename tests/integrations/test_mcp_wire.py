"""What providers are sent about foreign tools, by their own SDKs to a server on this machine."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.adapters.anthropic import server as anthropic_server
from tests.adapters.chat_server import Server, says
from tests.adapters.claude_code import server as claude_agent_server
from tests.adapters.openai import server as openai_server
from tests.integrations.mcp_servers.start import quoted, raw_section
from weakincentives.adapters import ProviderAdapter, ToolCall
from weakincentives.contrib.integrations.mcp import McpToolsSection
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session

pytestmark = pytest.mark.usefixtures("clean_environment")

Asked = AbstractContextManager[tuple[ProviderAdapter, Server]]
CALL = ToolCall("raw__say", {"words": "42"}, "call-1")
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": True}


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def section() -> Generator[McpToolsSection, None, None]:
    with raw_section(include=["say"]) as section:
        yield section


def openai_tools(body: dict[str, Any]) -> list[tuple[str, str, object]]:
    functions = [each["function"] for each in body["tools"]]
    assert not any(each.get("strict") for each in functions)
    return [(each["name"], each["description"], each["parameters"]) for each in functions]


def anthropic_tools(body: dict[str, Any]) -> list[tuple[str, str, object]]:
    return [(each["name"], each["description"], each["input_schema"]) for each in body["tools"]]


PROVIDERS: dict[str, tuple[Callable[[], Asked], Callable[[dict[str, Any]], Any]]] = {
    "openai": (lambda: openai_server.asked(says("", CALL), says("42")), openai_tools),
    "anthropic": (
        lambda: anthropic_server.asked(
            anthropic_server.says("", CALL), anthropic_server.says("42")
        ),
        anthropic_tools,
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_gets_the_schema_and_the_model_the_result(
    provider: str, section: McpToolsSection
):
    start, tools = PROVIDERS[provider]
    with start() as (adapter, server):
        prompt = Prompt(ns="tests", key="mcp", sections=[section])
        answer = adapter.evaluate(prompt, session=Session())
        assert answer.text == "42"
        assert tools(server.requests[0].body) == [
            ("raw__say", section.tools[0].description, SCHEMA)
        ]
        assert [quoted(each) for each in answer.tool_results] == ["42"]
        assert "<mcp-result " in str(server.requests[1].body["messages"])


@pytest.mark.slow
def test_claude_code_gets_the_schema_too(section: McpToolsSection):
    ours = claude_agent_server.ours(CALL)
    answers = (claude_agent_server.says("", ours), claude_agent_server.says("42"))
    with claude_agent_server.asked(*answers) as (adapter, server):
        prompt = Prompt(ns="tests", key="mcp", sections=[section])
        answer = adapter.evaluate(prompt, session=Session())
        sent = {
            name: schema
            for request in server.requests
            for name, _, schema in anthropic_tools({"tools": request.body.get("tools", [])})
        }
    assert answer.text == "42"
    assert sent[ours.name] == SCHEMA
    assert [quoted(each) for each in answer.tool_results] == ["42"]
