"""Checkpoints: an agent works in your directory, and you roll its changes back.

Needs no extra. Run it anywhere: `python examples/undo_what_an_agent_did.py`. Each tool call is
atomic; a rollback to a checkpoint restores files and session together, whoever changed the
files.
"""

import tempfile
from pathlib import Path

from weakincentives.adapters import ScriptedAdapter, ToolCall
from weakincentives.contrib.tools import HostWorkspaceSection
from weakincentives.filesystem import diff
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.checkpoints import checkpoint, rollback_to
from weakincentives.runtime.session import Session

SCRIPT = [
    # the second edit does not match, so neither is applied
    ToolCall(
        "edit_file",
        {
            "file_path": "settings.ini",
            "edits": [
                {"old_string": "debug = on", "new_string": "debug = off"},
                {"old_string": "colour = on", "new_string": "colour = off"},
            ],
        },
    ),
    ToolCall("rm", {"path": "data"}),
    "Debugging is off, and I removed a directory that looked unused.",
]


def main() -> None:
    """Run the agent, print the damage, and roll it back."""
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory)
        (project / "data").mkdir()
        (project / "data" / "customers.csv").write_text("name\nAda\n")
        (project / "settings.ini").write_text("[app]\ndebug = on\n")

        session = Session()
        with HostWorkspaceSection(root=project, session=session) as workspace:
            files = workspace.filesystem
            prompt = Prompt(
                ns="examples/undo",
                key="tidy",
                sections=[
                    MarkdownSection(title="Task", template="Turn debugging off."),
                    workspace,
                ],
            )
            before = checkpoint(session, files, "before the agent")
            print(ScriptedAdapter(SCRIPT).evaluate(prompt, session=session).text, "\n")
            for event in session[ToolInvoked].all():
                print(f"{event.tool}: {'done' if event.success else 'rejected, nothing changed'}")

            snapshot = files.history.list()[-1]
            for change in diff(files.view(snapshot), files).entries:
                print(f"{change.kind}: {change.path}")

            rollback_to(session, before, files)
            print(f"\nRestored: {(project / 'data' / 'customers.csv').read_text()!r}")
            files.cleanup()


if __name__ == "__main__":
    main()
