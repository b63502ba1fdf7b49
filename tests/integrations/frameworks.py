"""The frameworks, each with its own scripted test model."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from weakincentives.adapters import ToolCall
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.langchain import langchain_tools
from weakincentives.contrib.integrations.openai_agents import openai_agents_tools
from weakincentives.contrib.integrations.pydantic_ai import WorkspaceToolset

Steps: TypeAlias = Sequence[Sequence[ToolCall]]
Play: TypeAlias = Callable[..., list[str]]
"""Runs an agent on a toolbox; returns what its model was told of each call, in their order."""

_QUESTION, _ANSWER = "Please.", "Done."


class ToolModel(FakeMessagesListChatModel):
    """A fake model that can be given tools."""

    def bind_tools(self, tools: Any, **_: Any) -> "ToolModel":
        return self


def play_langchain(toolbox: Toolbox, steps: Steps) -> list[str]:
    # side by side in threads they have no order
    config: Any = {"max_concurrency": 1}
    return _told(_langchain_agent(toolbox, steps).invoke(_asked(), config))


def play_langchain_async(toolbox: Toolbox, steps: Steps) -> list[str]:
    return _told(asyncio.run(_langchain_agent(toolbox, steps).ainvoke(_asked())))


def play_openai_agents(toolbox: Toolbox, steps: Steps) -> list[str]:
    said = [
        [function_call(each.name, _sent(each), call_id=each.call_id) for each in s] for s in steps
    ]
    model = ScriptedModel([*said, [assistant_message(_ANSWER)]])
    agent = OpenAIAgent("Worker", model=model, tools=[*openai_agents_tools(toolbox)])
    quietly = RunConfig(tracing_disabled=True)
    done = asyncio.run(Runner.run(agent, _QUESTION, run_config=quietly))
    assert done.final_output == _ANSWER
    items: list[Any] = done.to_input_list()
    return [each["output"] for each in items if each.get("type") == "function_call_output"]


def play_pydantic_ai(toolbox: Toolbox, steps: Steps) -> list[str]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = sum(isinstance(each, ModelResponse) for each in messages)
        if said == len(steps):
            return ModelResponse([TextPart(_ANSWER)])
        return ModelResponse([ToolCallPart(e.name, _sent(e), e.call_id) for e in steps[said]])

    agent = PydanticAgent(FunctionModel(answer), toolsets=[WorkspaceToolset(toolbox)])
    done = asyncio.run(agent.run(_QUESTION))
    assert done.output == _ANSWER
    parts = [part for message in done.all_messages() for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


PLAYS: dict[str, Play] = {
    "langchain": play_langchain,
    "langchain, async": play_langchain_async,
    "openai-agents": play_openai_agents,
    "pydantic-ai": play_pydantic_ai,
}


def _langchain_agent(toolbox: Toolbox, steps: Steps) -> Any:
    said = [
        AIMessage(
            "", tool_calls=[{"name": e.name, "args": e.arguments, "id": e.call_id} for e in s]
        )
        for s in steps
    ]
    model = ToolModel(responses=[*said, AIMessage(_ANSWER)])
    return create_agent(model, langchain_tools(toolbox))


def _asked() -> Any:
    return {"messages": [HumanMessage(_QUESTION)]}


def _told(done: Any) -> list[str]:
    assert done["messages"][-1].text == _ANSWER
    return [each.text for each in done["messages"] if isinstance(each, ToolMessage)]


def _sent(call: ToolCall) -> Any:
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
