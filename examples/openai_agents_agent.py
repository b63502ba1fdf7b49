"""An agent of the OpenAI Agents SDK works in a workspace, and you see the diff.

Needs the extra openai-agents: `pip install '.[openai-agents]'`. Run it anywhere:
`python examples/openai_agents_agent.py`. A script replaces the model; leave out `model=`, and
nothing else changes.
"""

from typing import Any

from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.openai_agents import openai_agents_tools
from weakincentives.filesystem import InMemoryFilesystem, diff
from weakincentives.runtime import ToolInvoked

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("edit_file", {"file_path": "app.py", "old_string": "9090", "new_string": "8000"}),
    ("edit_file", {"file_path": "app.py", "old_string": "8080", "new_string": "8000"}),
    ("write_file", {"file_path": "CHANGES.md", "content": "- the port is 8000\n"}),
    ("read_file", {"file_path": "app.py"}),
]


def script() -> ScriptedModel:
    """Return a model that makes one call at a time, then answers."""
    calls = [
        [function_call(name, args, call_id=f"call-{number}")]
        for number, (name, args) in enumerate(CALLS, 1)
    ]
    return ScriptedModel([*calls, [assistant_message("The port is 8000 now.")]])


def main() -> None:
    """Run the agent and print its changes."""
    files = InMemoryFilesystem()
    files.write("app.py", "PORT = 8080\n")
    before = files.snapshot()

    toolbox = Toolbox(filesystem=files)
    agent = Agent("Porter", model=script(), tools=[*openai_agents_tools(toolbox)])
    done = Runner.run_sync(
        agent, "Serve on port 8000.", run_config=RunConfig(tracing_disabled=True)
    )

    for call in toolbox.session[ToolInvoked].all():
        verdict = "success" if call.success else "error"
        print(f"{call.tool}: {verdict}: {call.result_message.splitlines()[0]}")
    print(f"\n{done.final_output}\n")
    print(diff(files.view(before), files).patch())


if __name__ == "__main__":
    main()
