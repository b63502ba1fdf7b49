import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, ToolReturnPart
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from tests.integrations.frameworks import play_pydantic_ai
from tests.integrations.pictures import filesystem_with_a_picture
from weakincentives.adapters import ToolCall
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.pydantic_ai import WorkspaceToolset
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked


def returned(done: Any) -> list[ToolReturnPart]:
    parts = [part for message in done.all_messages() for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_is_given_our_schemas_as_they_are(dialect: Any):
    ours = filesystem_tools(dialect)
    model = TestModel(call_tools=[])
    asyncio.run(Agent(model, toolsets=[WorkspaceToolset(Toolbox(ours))]).run("?"))
    assert model.last_model_request_parameters is not None
    theirs = model.last_model_request_parameters.function_tools
    assert [(each.name, each.description, each.parameters_json_schema) for each in theirs] == [
        (each.name, each.description, each.schema) for each in ours
    ]
    assert [each.sequential for each in theirs] == [not each.read_only for each in ours]
    assert not any(each.strict for each in theirs)


def test_a_model_that_calls_every_tool_gets_an_answer_from_each():
    box = Toolbox(filesystem=InMemoryFilesystem())
    done = asyncio.run(Agent(TestModel(), toolsets=[WorkspaceToolset(box)]).run("?"))
    assert {each.tool_name for each in returned(done)} == {each.name for each in box.tools}
    assert {each.tool for each in box.session[ToolInvoked].all()} == {e.name for e in box.tools}


@pytest.mark.parametrize("arguments", ['{"file_path": ', "[1]", '"a"', "nothing"])
def test_arguments_that_are_no_object_are_answered_by_us(arguments: str):
    box = Toolbox(filesystem=InMemoryFilesystem())
    [told] = play_pydantic_ai(box, [[ToolCall("read_file", arguments, "c1")]])
    assert told.startswith("Invalid arguments for read_file: ")
    assert [each.call_id for each in box.session[ToolInvoked].all()] == ["c1"]


def test_failed_calls_do_not_use_up_retries():
    box = Toolbox(filesystem=InMemoryFilesystem())
    gone = [[ToolCall("read_file", {"file_path": "gone"}, f"c{number}")] for number in range(5)]
    assert len(play_pydantic_ai(box, gone)) == 5


def test_a_failed_call_has_the_outcome_of_one():
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("It is gone.")])
        return ModelResponse([ToolCallPart("read_file", {"file_path": "gone"})])

    box = Toolbox(filesystem=InMemoryFilesystem())
    agent = Agent(FunctionModel(answer), toolsets=[WorkspaceToolset(box)])
    assert [each.outcome for each in returned(asyncio.run(agent.run("?")))] == ["failed"]


def test_a_toolset_can_be_renamed_like_any_other():
    fs = InMemoryFilesystem()
    toolset = WorkspaceToolset(Toolbox(filesystem=fs), id="files").prefixed("my")

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("Written.")])
        return ModelResponse([ToolCallPart("my_write_file", {"file_path": "a", "content": "x"})])

    asyncio.run(Agent(FunctionModel(answer), toolsets=[toolset]).run("?"))
    assert fs.read("a").content == "x"


@pytest.mark.parametrize("pictures", [True, False])
def test_a_picture_is_shown_only_where_it_is_wanted(pictures: bool):
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("A dot.")])
        return ModelResponse([ToolCallPart("read_file", {"file_path": "dot.png"})])

    box = Toolbox(filesystem=filesystem_with_a_picture())
    agent = Agent(FunctionModel(answer), toolsets=[WorkspaceToolset(box, pictures=pictures)])
    [part] = returned(asyncio.run(agent.run("?")))
    content: Any = part.content
    seen = [each for each in content if isinstance(each, BinaryContent)]
    assert [each.media_type for each in seen] == ["image/png"] * pictures
