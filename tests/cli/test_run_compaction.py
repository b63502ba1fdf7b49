"""`wink run` with a conversation that is longer than the model's context window."""

import re
from pathlib import Path

from tests.cli.workplace import Script, Wink
from weakincentives.runtime.timeline import Timeline

LINES = "a line of a file that is long\n" * 300


def test_a_long_conversation_is_compacted_in_sight_and_recorded_whole(
    wink: Wink, script: Script, project: Path
) -> None:
    for number in range(8):
        (project / f"f{number}.txt").write_text(f"file {number}\n{LINES}")
    reads = [
        {"name": "read_file", "arguments": {"file_path": f"f{number}.txt"}} for number in range(8)
    ]
    arguments = ("--workspace", project, "--model", script(*reads, "Done."), "--sandbox", "none")
    done = wink("run", "read all", *arguments, "--context-window", "25k")
    assert done.code == 0
    assert "tool results shortened: " in done.err

    done = wink("run", "read all", *arguments, "--context-window", "25k", "--json")
    compacted = [each for each in done.events if each["event"] == "compacted"]
    assert compacted
    assert all(each["tokens_after"] < each["tokens_before"] for each in compacted)
    path = done.last["timeline"]
    with Timeline(path) as timeline:
        kinds = [step.kind for step in timeline.steps]
        messages = timeline.messages(timeline.last)
    assert kinds.count("context") == len(compacted)
    results = [each["text"] for each in messages if each["role"] == "tool"]
    assert len(results) == 8
    assert all(LINES.splitlines()[0] in each and "left out" not in each for each in results)
    log = wink("log", path)
    assert re.search(r"context +compacted from [0-9,]+ to [0-9,]+ tokens", log.out)
    assert wink("replay", path).code == 0
