"""`evaluate_python`: an agent computes over files with code instead of in its head.

Run it anywhere: `python examples/compute_over_files.py`. Code that fails writes nothing, and the
model gets the line, the error and what was printed.
"""

from weakincentives.adapters import ScriptedAdapter, ToolCall
from weakincentives.contrib.evaluation import choose_engine
from weakincentives.contrib.tools import VfsToolsSection
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime.session import Session

ORDERS = "customer,amount\nAda,120.50\nLin,80\nAda,19.50\nSam,n/a\n"
FIRST = """\
totals = {}
for line in orders.splitlines()[1:]:
    name, amount = line.split(",")
    print(name, amount)
    totals[name] = totals.get(name, 0) + float(amount)
"""
SECOND = """\
totals, skipped = {}, []
for line in orders.splitlines()[1:]:
    name, amount = line.split(",")
    try:
        totals[name] = totals.get(name, 0) + float(amount)
    except ValueError:
        skipped.append(line)
report = "\\n".join(f"{name}: {total:.2f}" for name, total in sorted(totals.items()))
skipped
"""
FILES = {
    "reads": [{"path": "orders.csv", "name": "orders"}],
    "writes": [{"path": "totals.txt", "content": "{report}\n"}],
}
SCRIPT = [
    ToolCall("evaluate_python", {"code": FIRST, **FILES}),
    ToolCall("evaluate_python", {"code": SECOND, **FILES}),
    "The totals are in totals.txt; one order has no amount.",
]


def main() -> None:
    """Let the agent compute, once wrong and once right."""
    engine = choose_engine()
    session = Session()
    workspace = VfsToolsSection(session=session, extra_handlers=evaluation_handlers(engine))
    workspace.filesystem.write("orders.csv", ORDERS)
    prompt = Prompt(
        ns="examples/evaluation",
        key="totals",
        sections=[MarkdownSection(title="Task", template="Sum up the orders."), workspace],
    )
    answer = ScriptedAdapter(SCRIPT).evaluate(prompt, session=session)
    for outcome in answer.tool_results:
        verdict = "done" if outcome.result.success else "failed, nothing written"
        print(f"{outcome.call.name}: {verdict}\n{outcome.text}\n")
    print(workspace.filesystem.read("totals.txt").content)
    engine.close()


if __name__ == "__main__":
    main()
