"""What the routes of the debug server answer."""

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import pytest

from tests.debug.conftest import Client
from tests.debug.recordings import APP, KEY, PNG, Recorded, record, workspace
from weakincentives.contrib.review.records import RunRecord, write_record
from weakincentives.filesystem import ArchiveFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import CommandOutcome

EDIT, FAILED, SHELL = 5, 6, 7


def test_the_session_in_figures(client: Client):
    (found,) = client.api("sessions")
    assert found["name"] == "run"
    assert found["task"] == "Make the greeting kind."
    assert found["model"] == "a-model"
    assert (found["steps"], found["tool_calls"], found["failed_calls"]) == (9, 4, 1)
    assert found["tokens"] == {"input_tokens": 2400, "output_tokens": 68, "cached_tokens": 0}
    assert found["problem"] is None


def test_the_steps_with_kind_outcome_duration_tokens_and_paths(client: Client):
    steps = client.api("steps")["steps"]
    kinds = ["start", "prompt", "model", "tool", "tool", "tool", "tool", "model", "end"]
    assert [each["kind"] for each in steps] == kinds
    edit, failed = steps[EDIT - 1], steps[FAILED - 1]
    assert edit["paths"] == ["app.py", "docs/new.md"]
    assert (edit["changes"], edit["ms"]) == (2, 12.5)
    assert not {"ok", "rolled_back", "branch", "cost"} & edit.keys()  # they have their defaults
    assert (failed["ok"], failed["rolled_back"]) == (False, True)
    assert "changes" not in failed
    assert steps[2]["tokens"]["input_tokens"] == 1200
    assert client.api("steps?since=8")["steps"] == steps[8:]


def test_a_step_has_parameters_result_messages_and_slices(client: Client):
    step = client.api(f"steps/{EDIT}")
    assert step["details"]["params"]["new_string"] == "dear "
    assert step["details"]["result_message"] == "done"
    assert [each["role"] for each in step["messages"]] == ["tool"]
    changed = {each["type"].rpartition(":")[2]: each for each in step["slices"]}
    assert changed["Plan"]["before"] == 0
    assert changed["Plan"]["added"] == [{"goal": "be kind"}]
    assert changed["ToolInvoked"]["before"] == 1
    assert changed["ToolInvoked"]["after"] == 2
    commands = [each["command"] for each in step["commands"]]
    assert any(each.startswith("wink resume ") and each.endswith("--at 5") for each in commands)


def test_the_whole_conversation_and_all_slices_at_a_step(client: Client):
    found = client.api(f"steps/{EDIT}/messages")
    roles = [each["role"] for each in found["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert (found["first"], found["total"]) == (0, 5)
    assert [each["n"] for each in found["messages"]] == [2, 2, 3, 4, EDIT]
    assert found["messages"][1]["nodes"] == [["h2", "Task"], ["p", "Make the greeting kind."]]
    assert found["messages"][4]["files"] == {"app.py": "M", "docs/new.md": "A"}
    assert client.api(f"steps/{EDIT}/messages?first=4")["messages"] == found["messages"][4:]
    types = {each["type"].rpartition(":")[2] for each in client.api(f"steps/{EDIT}/slices")}
    assert types >= {"Plan", "ToolInvoked"}


def test_the_tree_is_that_of_the_step(client: Client):
    before = {each[0] for each in client.api("steps/1/tree")["entries"]}
    after = {each[0] for each in client.api(f"steps/{SHELL}/tree")["entries"]}
    assert before - after == {"README.md"}
    assert after - before == {"docs", "docs/new.md"}


def _text(found: dict[str, Any]) -> str:
    return "\n".join("".join(token for _, token in line) for line in found["lines"])


def test_a_file_is_shown_as_it_was_with_highlighting(client: Client):
    before = client.api("steps/1/file?path=app.py")
    assert _text(before) == APP.rstrip("\n")
    assert ["k", "def"] in before["lines"][3]
    assert before["language"] == "python"
    assert "dear" in _text(client.api(f"steps/{EDIT}/file?path=app.py"))


def test_a_long_file_is_shown_in_pages(client: Client):
    page = client.api("steps/1/file?path=long.txt")
    assert (len(page["lines"]), page["next"]) == (2000, 2000)
    last = client.api("steps/1/file?path=long.txt&first=4000")
    assert _text(last).startswith("line 4001\n")
    assert (len(last["lines"]), last["next"]) == (1000, None)


def test_pictures_notebooks_and_binary_files(client: Client):
    assert client.api("steps/1/file?path=picture.png")["type"] == "image/png"
    cells = client.api("steps/1/file?path=notes.ipynb")["cells"]
    assert [each["type"] for each in cells] == ["text", "code"]
    assert cells[1]["outputs"][0] == {"text": "printed by the cell\n"}
    assert cells[1]["outputs"][1]["image"].startswith("data:image/png;base64,")
    binary = client.api("steps/1/file?path=data.bin")
    assert binary["kind"] == "binary"
    assert len(binary["hex"]) == 32


def test_the_changes_of_a_step_by_line(client: Client):
    found = client.api(f"steps/{EDIT}/diff")
    assert [(each["path"], each["kind"]) for each in found["changes"]] == [
        ("app.py", "modified"),
        ("docs/new.md", "added"),
    ]
    lines = found["changes"][0]["hunks"][0]["lines"]
    shown = [(each["sign"], each["old"], each["new"]) for each in lines]
    assert shown[-2:] == [("-", 5, None), ("+", None, 5)]
    assert (found["insertions"], found["deletions"]) == (2, 1)


def test_the_changes_since_another_step_and_of_one_path(client: Client):
    found = client.api(f"steps/{SHELL}/diff?base=1")
    assert [each["path"] for each in found["changes"]] == ["README.md", "app.py", "docs/new.md"]
    only = client.api(f"steps/{SHELL}/diff?base=1&path=README.md")
    assert [(each["path"], each["kind"]) for each in only["changes"]] == [("README.md", "removed")]


def test_raw_files_are_exact_and_inert(client: Client):
    answer = client.get("/api/steps/1/raw?path=picture.png")
    assert answer.body == PNG
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["content-disposition"].startswith("attachment")
    text = client.get("/api/steps/1/raw?path=app.py")
    assert text.headers["content-type"] == "application/octet-stream"
    assert client.get("/api/steps/5/raw").json["number"] == 5


def test_the_archive_of_a_step_loads(client: Client, tmp_path: Path):
    answer = client.get(f"/api/steps/{EDIT}/archive")
    assert zipfile.is_zipfile(io.BytesIO(answer.body))
    (tmp_path / "step.fs.zip").write_bytes(answer.body)
    with ArchiveFilesystem(tmp_path / "step.fs.zip") as files:
        assert "dear" in files.read("app.py").content


def test_the_last_state_by_the_routes_of_the_dump(client: Client):
    assert client.api("filesystem/meta")["file_count"] == 8
    tree = client.api("filesystem/tree")
    assert {"path": "picture.png", "size_bytes": len(PNG)} in tree
    assert "dear" in client.api("filesystem/file?path=app.py")["content"]


@pytest.mark.parametrize("session", ["one", "two"])
def test_the_routes_of_the_dump_obey_the_session(
    tmp_path: Path, serving: Callable[[Path], Any], session: str
):
    for name in ("one", "two"):
        files = InMemoryFilesystem()
        files.write(f"{name}.txt", name)
        files.export_archive(tmp_path / f"{name}.fs.zip")
    query = f"session={session}"
    with serving(tmp_path) as client:
        assert client.api(f"filesystem/meta?{query}")["total_bytes"] == 3
        assert [each["path"] for each in client.api(f"filesystem/tree?{query}")] == [
            f"{session}.txt"
        ]
        found = client.api(f"filesystem/file?path={session}.txt&{query}")
        assert found["content"] == session
        for route in ("meta", "tree", "file?path=one.txt"):
            joint = "&" if "?" in route else "?"
            answer = client.get(f"/api/filesystem/{route}{joint}session=three")
            assert answer.status == 404
            assert b"'three'" in answer.body


def test_the_routes_of_the_dump_show_the_newest_session_like_the_others(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    files = InMemoryFilesystem()
    files.export_archive(tmp_path / "one.fs.zip")
    with serving(tmp_path) as client:
        files.write("later.txt", "x")
        files.export_archive(tmp_path / "two.fs.zip")
        os.utime(tmp_path / "one.fs.zip", (1, 1))
        assert [each["name"] for each in client.api("sessions")] == ["two", "one"]
        assert client.api("steps")["session"]["name"] == "two"
        assert [each["path"] for each in client.api("filesystem/tree")] == ["later.txt"]


@pytest.mark.parametrize(
    "path",
    [
        "../..",
        "../../etc/passwd",
        "/etc/passwd",
        "a%00b",
        "manifest.json",
        "files/app.py",
        "docs",
        "",
    ],
)
@pytest.mark.parametrize("route", ["filesystem/file", "steps/9/file", "steps/9/raw"])
def test_no_path_leads_out_of_the_workspace(client: Client, route: str, path: str):
    answer = client.get(f"/api/{route}?path={path}")
    if route == "steps/9/file" and path in {"docs", ""}:
        assert answer.json["kind"] == "directory"
    else:
        assert answer.status in {400, 404}
        assert answer.json["error"]
    assert b"root:x" not in answer.body


@pytest.mark.parametrize(
    "target",
    [
        "steps/0",
        "steps/10",
        "steps/99999999999999999999",
        "steps/-1",
        "steps/x",
        "steps/1/file",
        "steps/1/file?path=app.py&first=x",
        "steps/1/file?path=app.py&first=-1",
        "steps/4/diff?base=99",
        "steps/4/diff?base=%f0",
        "steps?since=x",
        "search",
        "search?q=",
        "search?q=a&step=77",
        "compare?a=run&b=nothing",
        "steps?session=nothing",
        "steps/1/tree?" + "a=b&" * 100,
    ],
)
def test_a_wrong_question_gets_a_sentence(client: Client, target: str):
    answer = client.get(f"/api/{target}")
    assert answer.status in {400, 404}
    assert len(answer.json["error"]) > 10


def test_search_finds_steps_names_and_lines(client: Client):
    found = client.api("search?q=GREET&step=1")
    assert {each["n"] for each in found["steps"]} >= {2, 8}
    assert {(each["path"], each["line"]) for each in found["lines"]} >= {("app.py", 4)}
    assert client.api("search?q=module.js")["names"] == ["src/deep/module.js"]
    assert client.api("search?q=%28%5B.%2A")["lines"] == []


def test_a_folder_has_its_sessions(folder_client: Client):
    names = {each["name"] for each in folder_client.api("sessions")}
    assert names == {"first", "branches"}
    assert folder_client.api("steps?session=first")["session"]["name"] == "first"


def test_two_runs_are_compared(folder_client: Client):
    found = folder_client.api("compare?a=first&b=branches&b_step=11")
    assert [each["name"] for each in found["sessions"]] == ["first", "branches"]
    assert found["pairs"][:4] == [[1, 1, True], [2, 2, True], [3, 3, True], [4, 4, True]]
    assert [5, 11, False] in found["pairs"]  # the same call with other arguments
    assert any(not same for _, _, same in found["pairs"])
    assert {each["path"] for each in found["diff"]["changes"]} == {
        "README.md",
        "app.py",
        "docs/new.md",
    }


def test_two_branches_are_compared_by_name(folder_client: Client):
    target = "compare?a=branches&a_branch=main&b=branches&b_branch=other"
    found = folder_client.api(target)
    assert found["ends"] == [9, 11]
    assert [each["tool_calls"] for each in found["sessions"]] == [4, 2]
    assert folder_client.get("/api/compare?a=branches&a_branch=none&b=first").status == 404


def test_a_run_at_a_glance(client: Client, folder_client: Client):
    found = client.api("run")
    assert (found["branch"], found["end"], found["branches"]) == ("main", 9, {"main": 9})
    assert found["outcome"] == {"status": "done", "error": None, "decision": "", "test": None}
    assert found["answer"] == [["p", "The greeting is kind now."]]
    assert folder_client.api("run?session=branches")["branch"] == "other"
    assert folder_client.api("run?session=branches&branch=main")["end"] == 9
    answer = folder_client.get("/api/run?session=branches&branch=none")
    assert (answer.status, answer.json["error"]) == (
        404,
        "There is no branch 'none': 'branches' has 'main', 'other'",
    )


@pytest.mark.parametrize(
    ("command", "is_test"),
    [
        ("python3 -m pytest -q", True),
        ("npm run test", True),
        ("cd x && make check", True),
        ("go build", False),
        ("ls tests", False),
    ],
)
def test_the_tests_of_a_run_are_recognized(
    tmp_path: Path, serving: Callable[[Path], Any], command: str, is_test: bool
):
    recorded = Recorded(tmp_path / "tests.timeline", workspace())
    recorded.begin("Test it.")
    for code in (1, 0):
        outcome = CommandOutcome(exit_code=code)
        recorded.call("shell_execute", command=command, outcome=outcome)
    recorded.recorder.close()
    with serving(tmp_path / "tests.timeline") as client:
        test = client.api("run")["outcome"]["test"]
        expected = {"n": 4, "command": command, "failed": False, "outcome": "exit 0"}
        assert test == (expected | {"runs": 2, "failures": 1} if is_test else None)
        assert client.api("run")["outcome"]["status"] == "interrupted"


def test_the_outcome_of_a_run_says_what_became_of_its_changes(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    place = tmp_path / "1a2b3c4d"
    recorded = Recorded(place / "history", workspace())
    recorded.begin("Do it.")
    recorded.end("Done.")
    recorded.recorder.close()
    now = datetime.now(UTC)
    record = RunRecord(original="/project", created_at=now, began_at=now, status="failed")
    write_record(place, record)
    with serving(place / "history") as client:
        outcome = client.api("run")["outcome"]
        assert (outcome["status"], outcome["decision"]) == ("failed", "not applied")


def test_branches_have_their_parents(folder_client: Client):
    steps = folder_client.api("steps?session=branches")["steps"]
    assert [each["parent"] for each in steps[-2:]] == [4, 10]
    assert steps[9]["branch"] == "other"


def test_new_steps_of_a_running_session_appear(tmp_path: Path, serving: Callable[[Path], Any]):
    recorded = Recorded(tmp_path / "live.timeline", workspace())
    with serving(tmp_path / "live.timeline") as client:
        assert client.api("steps")["session"]["steps"] == 1
        recorded.call("read_file", "app.py")
        answer = client.api("steps?since=1")
        assert [each["title"] for each in answer["steps"]] == ["read_file app.py"]
    recorded.recorder.close()


def test_a_dump_without_timeline_shows_its_last_state(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    shutil.rmtree(record(tmp_path))
    with serving(tmp_path / "run.jsonl") as client:
        (session,) = client.api("sessions")
        assert "timeline" in session["problem"]
        assert [each[0] for each in client.api("steps/1/tree")["entries"]][:2] == [".env", "app.py"]
        assert "Plan" in {each["type"].rpartition(":")[2] for each in client.api("steps/1/slices")}
        assert client.api("steps/1/diff")["changes"] == []


def test_names_that_are_not_utf8_can_be_opened(tmp_path: Path, serving: Callable[[Path], Any]):
    name = os.fsdecode(b"caf\xe9 \xf0.txt")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / name).write_text("found\n")
    with HostFilesystem(tmp_path / "project", git_dir=tmp_path / "store") as files:
        Recorded(tmp_path / "odd.timeline", files).recorder.close()
    with serving(tmp_path / "odd.timeline") as client:
        assert client.api("steps/1/tree")["entries"][0][0] == name
        quoted = quote_from_bytes(name.encode("utf-8", "surrogateescape"))
        assert _text(client.api(f"steps/1/file?path={quoted}")) == "found"


def test_a_damaged_timeline_is_shown_as_far_as_it_goes(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    path = record(tmp_path)
    os.truncate(path / "steps", (path / "steps").stat().st_size - 40)
    with serving(path) as client:
        answer = client.api("steps")
        assert answer["session"]["steps"] == 8
        assert "8 steps are intact" in answer["session"]["problem"]


def test_a_file_that_is_no_recording_is_named_in_the_list(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    record(tmp_path)
    (tmp_path / "broken.timeline").write_bytes(b"not a timeline")
    with serving(tmp_path) as client:
        problems = {each["name"]: each["problem"] for each in client.api("sessions")}
        assert problems["run"] is None
        assert "cannot be read" in problems["broken"]


def test_the_key_in_a_file_is_masked_in_an_export_only(client: Client):
    assert KEY in _text(client.api("steps/1/file?path=.env"))


def test_a_list_of_sessions_keeps_no_file_open_and_notices_new_steps(
    tmp_path: Path, serving: Callable[[Path], Any]
):
    live = Recorded(tmp_path / "live.timeline", workspace())
    for number in range(5):
        shutil.copytree(tmp_path / "live.timeline", tmp_path / f"copy-{number}.timeline")
    with serving(tmp_path) as client:
        client.api("sessions")
        open_files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        assert not [each for each in open_files if "copy-" in each]
        live.call("read_file", "app.py")
        steps = {each["name"]: each["steps"] for each in client.api("sessions")}
        assert (steps["live"], steps["copy-0"]) == (2, 1)
    live.recorder.close()


def test_comparisons_in_both_directions_do_not_block_each_other(folder_client: Client):
    pairs = ["compare?a=first&b=branches", "compare?a=branches&b=first"] * 6
    with ThreadPoolExecutor(len(pairs)) as pool:
        found = list(pool.map(folder_client.api, pairs))
    assert {len(each["pairs"]) for each in found} == {len(found[0]["pairs"])}
