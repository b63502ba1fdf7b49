"""An agent may read everything, change little, and only after you have seen the change.

Run it anywhere: `python examples/ask_before_writing.py`. Policies say no with a reason, which
the model is told; what they forbid has never happened.
"""

from weakincentives.adapters import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    ReadBeforeWrite,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
)
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime.session import Session

SCRIPT = [
    ToolCall("write_file", {"file_path": "secrets.env", "content": "x", "mode": "overwrite"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "80"}),
    ToolCall("read_file", {"file_path": "src/app.py"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "80"}),
    ToolCall("edit_file", {"file_path": "src/app.py", "old_string": "8080", "new_string": "8000"}),
    "The port is 8000 now.",
]


def ask(request: ApprovalRequest) -> bool | str:
    """Decide on a change; here a rule does what a person would do."""
    patch = request.diff.patch()
    print(patch)
    return "Ports below 1024 need root: choose a higher one" if "+PORT = 80\n" in patch else True


def main() -> None:
    """Run the agent under three policies."""
    session = Session()
    workspace = VfsToolsSection(session=session)
    workspace.filesystem.write("src/app.py", "PORT = 8080\n")
    workspace.filesystem.write("secrets.env", "KEY=1\n")
    prompt = Prompt(
        ns="examples/policies",
        key="port",
        sections=[MarkdownSection(title="Task", template="Change the port."), workspace],
    )
    policies = (AllowedPaths(["src/**"]), ReadBeforeWrite(), Approval(ask))
    answer = ScriptedAdapter(SCRIPT).evaluate(
        prompt, session=session, options=RunOptions(policies=policies)
    )
    for outcome in answer.tool_results:
        verdict = "done" if outcome.result.success else "refused"
        print(f"{outcome.call.name}: {verdict}: {outcome.text.splitlines()[0]}")
    print(workspace.filesystem.read("src/app.py").content)


if __name__ == "__main__":
    main()
