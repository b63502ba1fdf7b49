import asyncio
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from tests.integrations.frameworks import play_openai_agents
from tests.integrations.pictures import PICTURE, filesystem_with_a_picture
from weakincentives.adapters import ToolCall
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.openai_agents import openai_agents_tools
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_is_given_our_schemas_as_they_are(dialect: Any):
    ours = filesystem_tools(dialect)
    theirs = openai_agents_tools(Toolbox(ours))
    assert [(each.name, each.description, each.params_json_schema) for each in theirs] == [
        (each.name, each.description, each.schema) for each in ours
    ]
    assert not any(each.strict_json_schema for each in theirs)


@pytest.mark.parametrize("arguments", ['{"file_path": ', "[1]", '"a"', "nothing"])
def test_arguments_that_are_no_object_are_answered_by_us(arguments: str):
    box = Toolbox(filesystem=InMemoryFilesystem())
    [told] = play_openai_agents(box, [[ToolCall("read_file", arguments, "c1")]])
    assert told.startswith("Invalid arguments for read_file: ")
    assert [each.call_id for each in box.session[ToolInvoked].all()] == ["c1"]


@pytest.mark.parametrize("pictures", [True, False])
def test_a_picture_is_shown_only_where_it_is_wanted(pictures: bool):
    box = Toolbox(filesystem=filesystem_with_a_picture())
    model = ScriptedModel(
        [
            [function_call("read_file", {"file_path": "dot.png"}, call_id="c1")],
            [assistant_message("A dot.")],
        ]
    )
    agent = Agent("Seer", model=model, tools=[*openai_agents_tools(box, pictures=pictures)])
    done = asyncio.run(Runner.run(agent, "?", run_config=RunConfig(tracing_disabled=True)))
    items: list[Any] = done.to_input_list()
    [output] = [each["output"] for each in items if each.get("type") == "function_call_output"]
    assert isinstance(output, str) is not pictures
    assert (f"data:image/png;base64,{PICTURE}" in str(output)) is pictures
