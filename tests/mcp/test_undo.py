"""Undo, checkpoints, diff and review through an MCP client."""

import errno
import re
import shutil
from pathlib import Path

import pytest
from mcp.types import ListRootsResult, Root
from pydantic import FileUrl

from tests.mcp.serving import Served, call, fail, run
from tests.safety.person.mcp_operations import NoArguments
from weakincentives.posix import fault_hook
from weakincentives.prompt import Tool, ToolContext, ToolResult


def write(client, path, content):
    return call(client, "write_file", path=path, content=content)


def test_undo_takes_back_the_last_call_of_this_client(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        one, two = await served.connect("one"), await served.connect("two")
        await write(one, "a.txt", "1")
        await write(one, "a.txt", "2")
        await write(two, "b.txt", "b")
        text = await call(one, "undo")
        assert "write_file by one #1" in text
        assert (root / "a.txt").read_text() == "1"
        assert (root / "b.txt").read_text() == "b"
        await call(one, "undo")
        assert not (root / "a.txt").exists()
        assert "nothing to undo" in await call(one, "undo")
        await call(two, "undo")
        assert list(root.iterdir()) == []

    run(root, work)


def test_an_undo_can_be_undone(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "d/a.txt", "1")
        number = int(re.findall(r"call=(\d+)", await call(client, "undo"))[0])
        assert not (root / "d").exists()
        await call(client, "undo", call=number)
        assert (root / "d/a.txt").read_text() == "1"
        await call(client, "undo")  # the call counts again
        assert not (root / "d").exists()

    run(root, work)


def test_an_undo_of_all_paths_of_a_call_is_its_undo(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "a.txt", "1")
        await write(client, "d/c.txt", "1")
        await call(client, "undo", call=2, paths=["d/c.txt"])  # and not the directory
        await write(client, "b.txt", "1")
        await call(client, "undo", call=4, paths=["b.txt"])
        review = (await client.call_tool("review")).structured_content
        assert review is not None
        assert [each["undoneBy"] for each in review["calls"]] == [None, None, None, 5, None]
        assert "call 2" in await call(client, "undo")
        assert "call 1" in await call(client, "undo")

    run(root, work)


def test_undo_restores_bytes_modes_links_directories_and_ignored_files(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / ".gitignore").write_text("*.log\n")
    (root / "x.log").write_bytes(b"\0\xff")
    (root / "tree/sub").mkdir(parents=True)
    (root / "tree/run.sh").write_text("#!/bin/sh\n")
    (root / "tree/run.sh").chmod(0o755)
    (root / "tree/sub").chmod(0o700)
    (root / "tree/link").symlink_to("run.sh")
    (root / "tree/empty").mkdir()

    def state():
        return {
            str(path.relative_to(root)): (path.lstat().st_mode, _content(path))
            for path in sorted(root.rglob("*"))
        }

    before = state()

    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "delete_file", path="x.log")
        await call(client, "move_file", source="tree", destination="moved/tree")
        await call(client, "undo")
        await call(client, "undo")
        assert state() == before
        await call(client, "move_file", source="tree", destination="moved/tree")
        await write(client, "moved/tree/run.sh", "other")
        await call(client, "undo", checkpoint="start")
        assert state() == before

    run(root, work)


def _content(path: Path):
    if path.is_symlink():
        return str(path.readlink())
    return path.read_bytes() if path.is_file() else None


def test_undo_never_loses_an_edit_of_somebody_else(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "d/a.txt", "1")
        await write(client, "d/b.txt", "1")
        patch = [{"oldText": "1", "newText": "2"}]
        await call(client, "edit_file", path="d/a.txt", edits=patch)
        (root / "d/a.txt").write_text("mine")
        text = await fail(client, "undo")
        assert "d/a.txt" in text
        assert "the user or another program" in text
        text = await fail(client, "undo", checkpoint="start")
        assert (root / "d/a.txt").read_text() == "mine"
        assert (root / "d/b.txt").read_text() == "1"
        # what is not in conflict can be chosen
        await call(client, "undo", checkpoint="start", paths=["d/b.txt"])
        assert not (root / "d/b.txt").exists()
        assert (root / "d/a.txt").read_text() == "mine"

    run(root, work)


def test_a_chosen_path_is_created_again_where_its_directory_was_renamed(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    (root / "d/a.txt").write_text("mine")

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "d/a.txt", "1")
        (root / "d").rename(root / "moved")
        refused = await fail(client, "undo")
        assert "d/a.txt: changed since call 1" in refused
        assert "To create again what is gone, choose it with `paths`: d/a.txt" in refused
        assert not (root / "d").exists()
        text = await call(client, "undo", call=1, paths=["d/a.txt"])
        assert "Restored: d/a.txt" in text
        assert (root / "d/a.txt").read_text() == "mine"
        assert (root / "moved/a.txt").read_text() == "1"

    run(root, work)


def swap(root: Path) -> Tool[NoArguments, str]:
    """Return a command during which the user saves through a link; it fails."""

    def command(params: NoArguments, *, context: ToolContext) -> ToolResult[str]:
        del params, context
        (root / "a.txt").write_text("agent")
        (root / "d").rename(root / "real")
        (root / "d").symlink_to("real")
        (root / "d/f.txt").write_text("mine")
        return ToolResult("It failed", "It failed", success=False)

    return Tool[NoArguments, str](
        name="swap",
        description="Fails.",
        handler=command,
        params_type=NoArguments,
        bypasses_filesystem=True,
    )


@pytest.mark.parametrize("later", ["removed", "a link", "edited"])
def test_what_was_saved_through_a_link_is_had_again_where_the_link_led(
    tmp_path: Path, later: str
) -> None:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    for path in ("a.txt", "d/e.txt", "d/f.txt"):
        (root / path).write_text("base")

    async def work(served: Served) -> None:
        client = await served.connect()
        await fail(client, "swap")
        assert not (root / "real").exists()  # rolled back with the command
        if later == "edited":
            (root / "d/e.txt").write_text("later")
        else:
            shutil.rmtree(root / "d")
        if later == "a link":
            (root / "d").symlink_to("nowhere")
        refused = await fail(client, "undo", call=2)
        assert "To undo the rest, choose it with `paths`: a.txt, real" in refused.split("\n")
        chosen = await fail(client, "undo", call=2, paths=["d/f.txt"])
        assert "d is a link, and this path is real/f.txt. Choose that" in chosen
        found = sorted(str(each.relative_to(root)) for each in root.rglob("*"))
        await call(client, "undo", call=2, paths=["real/f.txt"])
        assert (root / "real/f.txt").read_text() == "mine"
        now = sorted(str(each.relative_to(root)) for each in root.rglob("*"))
        assert [each for each in now if each not in found] == ["real", "real/f.txt"]

    run(root, work, tools=[swap(root)])


def test_a_rollback_that_was_cut_off_between_its_records_can_be_undone(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    for path in ("a.txt", "d/f.txt"):
        (root / path).write_text("base")
    records: list[str] = []

    def fill(point: str) -> None:
        records.extend([point] if point == "record.writing" else [])
        if len(records) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def work(served: Served) -> None:
        with fault_hook(fill):
            await fail(await served.connect(), "swap")

    async def look(served: Served) -> None:
        client = await served.connect()
        review = await call(client, "review")
        assert "call 1: swap by tester #1, other session" in review
        assert "(undone by call 2)" in review
        assert "call 3" not in review
        await call(client, "undo", call=2)
        assert (root / "real/f.txt").read_text() == "mine"

    options = {"history_directory": tmp_path / "calls"}
    run(root, work, tools=[swap(root)], **options)
    run(root, look, **options)


def test_undo_keeps_a_file_that_somebody_put_into_a_new_directory(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "new/a.txt", "1")
        (root / "new/theirs.txt").write_text("keep")
        assert "new/theirs.txt" in await fail(client, "undo")
        await call(client, "undo", paths=["new/a.txt"])
        assert [each.name for each in (root / "new").iterdir()] == ["theirs.txt"]

    run(root, work)


def test_undo_names_the_call_of_another_client_that_is_in_the_way(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        one, two = await served.connect("one"), await served.connect("two")
        await write(one, "a.txt", "1")
        await write(two, "a.txt", "2")
        assert "write_file by two #2" in await fail(one, "undo")
        assert (root / "a.txt").read_text() == "2"

    run(root, work)


def test_what_is_in_the_way_is_named_and_not_the_undo_of_something_later(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        for content in ("1", "2", "3"):
            await write(client, "a.txt", content)
        await call(client, "undo", call=3)
        assert "changed by call 2 (write_file" in await fail(client, "undo", call=1)
        await call(client, "undo", call=2)
        await call(client, "undo", call=1)
        assert not (root / "a.txt").exists()

    run(root, work)


def test_an_edit_between_two_calls_survives_going_back_to_a_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "a.txt", "1")
        await call(client, "checkpoint", name="good", note="works")
        (root / "theirs.txt").write_text("keep")
        await write(client, "a.txt", "2")
        (root / "theirs.txt").write_text("keep this")
        await write(client, "b.txt", "2")
        assert "works" in await call(client, "list_checkpoints")
        await call(client, "undo", checkpoint="good")
        assert (root / "a.txt").read_text() == "1"
        assert not (root / "b.txt").exists()
        assert (root / "theirs.txt").read_text() == "keep this"

    run(root, work)


def test_diff_shows_calls_checkpoints_and_pages(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "a.txt", "one\n")
        await call(client, "checkpoint", name="c")
        written = await client.call_tool("write_file", {"path": "a.txt", "content": "two\n"})
        number = written.structured_content["call"]
        assert written.structured_content["changed"] == ["a.txt"]
        await write(client, "d/b.txt", "b\n")
        assert "+two" in await call(client, "diff")
        assert "-one" not in await call(client, "diff")
        assert "-one" in await call(client, "diff", **{"from": "c"})
        assert "b.txt" not in await call(client, "diff", call=number)
        assert "-one" in await call(client, "diff", **{"from": number, "to": number})
        assert "a.txt" not in await call(client, "diff", path="d")
        page = await call(client, "diff", max_characters=250)
        assert "start=2" in page
        assert "b.txt" in await call(client, "diff", start=2)
        assert "Unknown checkpoint: 'x'" in await fail(client, "diff", **{"from": "x"})
        assert "call cannot be combined" in await fail(client, "diff", call=1, to="c")

    run(tmp_path / "w", work)


def test_review_lists_the_calls_of_all_clients_and_what_to_do(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        one, two = await served.connect("one"), await served.connect("two")
        await write(one, "a.txt", "1")
        await write(two, "b.txt", "2")
        await call(one, "undo")
        text = await call(two, "review")
        assert "call 1: write_file by one #1: a.txt (undone by call 3)" in text
        assert "call 2: write_file by two #2: b.txt" in text
        assert "added b.txt" in text
        assert text.endswith("wink review 7")

    run(tmp_path / "w", work, review_hint="wink review 7")


@pytest.mark.parametrize(
    "given", [{"call": 99}, {"checkpoint": "none"}, {"call": 1, "checkpoint": "c"}]
)
def test_an_undo_of_something_that_does_not_exist_says_so(tmp_path: Path, given: dict) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "a.txt", "1")
        await fail(client, "undo", **given)

    run(tmp_path / "w", work)
    assert (tmp_path / "w/a.txt").read_text() == "1"


def test_results_of_the_history_tools_have_fields_for_programs(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect("one")

        async def fields(tool: str, **arguments: object) -> dict:
            result = await client.call_tool(tool, arguments)  # the SDK validates it
            assert not result.is_error, result.content
            return result.structured_content

        await write(client, "d/a.txt", "1\n2\n")
        made = (await fields("checkpoint", name="cp", note="first"))["checkpoint"]
        assert (made["name"], made["note"], made["call"]) == ("cp", "first", 1)
        assert (made["client"], made["time"][:2]) == ("one #1", "20")
        await write(client, "b.txt", "b\n")
        await fail(client, "edit_file", path="b.txt", edits=[{"oldText": "no", "newText": ""}])
        names = [each["name"] for each in (await fields("list_checkpoints"))["checkpoints"]]
        assert names == ["start", "cp"]

        found = await fields("diff")
        lines = [(each["path"], each["kind"], each["insertions"]) for each in found["changes"]]
        assert lines == [("b.txt", "added", 1), ("d", "added", 0), ("d/a.txt", "added", 2)]
        assert (found["totalChanges"], found["truncated"], found["nextStart"]) == (3, False, None)
        cut = await fields("diff", max_characters=1)
        assert (cut["truncated"], cut["nextStart"]) == (True, 1)
        rest = await fields("diff", start=1)
        assert [each["path"] for each in rest["changes"]] == ["d", "d/a.txt"]
        assert (await fields("diff", to="cp", path="b.txt"))["changes"] == []

        undone = await fields("undo", checkpoint="cp")
        assert (undone["undone"], undone["call"], undone["changed"]) == ([2], 4, ["b.txt"])
        review = await fields("review")
        assert [each["failed"] for each in review["calls"]] == [False, False, True, False]
        assert [each["undoneBy"] for each in review["calls"]] == [None, 4, None, None]
        assert review["calls"][3]["undoes"] == [2]
        assert review["calls"][0]["paths"] == ["d/a.txt"]
        assert (review["totalCalls"], review["totalChanges"]) == (4, 2)
        await call(client, "undo")
        assert (await fields("undo"))["undone"] == []

    run(root, work)


def test_the_history_of_others_does_not_show_paths_outside_the_roots(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "mine").mkdir(parents=True)
    uri = (root / "mine").as_uri()

    async def list_roots(context: object) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl(uri))])

    async def work(served: Served) -> None:
        one, two = (
            await served.connect("one"),
            await served.connect("two", list_roots_callback=list_roots),
        )
        await write(one, "secret.txt", "1")
        await call(one, "move_file", source="secret.txt", destination="mine/open.txt")
        review = await two.call_tool("review", {})
        log = str((await two.read_resource("wink://log")).contents)
        shown = f"{review.structured_content} {log}"
        assert "open.txt" in shown
        assert "secret" not in shown
        assert "secret" in str((await one.read_resource("wink://log")).contents)

    run(root, work)


def test_a_call_is_undone_as_often_as_its_undo_counts(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()

        async def undone() -> list[int | None]:
            result = await client.call_tool("review", {})
            assert result.structured_content is not None
            return [each["undoneBy"] for each in result.structured_content["calls"]]

        await write(client, "a.txt", "1")
        await call(client, "undo")
        await call(client, "undo", call=2)
        assert await undone() == [None, 3, None]
        await call(client, "undo", call=3)  # the first undo counts again
        assert await undone() == [2, None, 4, None]
        assert "nothing to undo" in await call(client, "undo")
        await write(client, "b.txt", "1")
        await call(client, "undo", checkpoint="start")
        assert await undone() == [6, 6, 6, 6, 6, None]
        assert "nothing to undo" in await call(client, "undo")
        assert list(root.iterdir()) == []

    run(root, work)


def test_what_a_person_saved_before_a_call_is_a_step_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("old\n")

    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "list_checkpoints")  # the start is known
        (root / "a.txt").write_text("mine\n")
        result = await client.call_tool("write_file", {"path": "a.txt", "content": "agent\n"})
        assert result.structured_content["call"] == 2
        review = await call(client, "review")
        assert "call 1: change by the user: a.txt\n- call 2: write_file by tester #1" in review
        await call(client, "undo", checkpoint="start")  # the calls, not what the user did
        assert (root / "a.txt").read_text() == "mine\n"
        await call(client, "undo", call=1)
        assert (root / "a.txt").read_text() == "old\n"

    run(root, work)


def test_both_saves_of_a_person_around_a_call_can_be_had_back(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("old\n")

    def save_again(point: str) -> None:
        if point == "journal.ended" and (root / "a.txt").read_text() == "agent\n":
            (root / "draft").write_text("second\n")
            (root / "draft").replace(root / "a.txt")

    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "list_checkpoints")
        (root / "a.txt").write_text("first\n")
        with fault_hook(save_again):
            await write(client, "a.txt", "agent\n")
        assert "call 3: change by the user: a.txt" in await call(client, "review")
        # what the call wrote is nowhere; it must not look as if there were nothing to go back to
        assert "a.txt: changed by call 3 (change by the user)" in await fail(client, "undo")
        await call(client, "undo", call=3)
        assert (root / "a.txt").read_text() == "first\n"
        assert "Nothing is left to undo" in await call(client, "undo", call=2)
        await call(client, "undo", call=5)  # after the one that failed
        assert (root / "a.txt").read_text() == "second\n"

    run(root, work)


def test_an_undo_on_a_full_disk_changes_nothing_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "w"

    def fill(point: str) -> None:
        if point in ("change.exchanged", "change.removed"):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def work(served: Served) -> None:
        client = await served.connect()
        for content in ("1", "2"):
            await write(client, "a.txt", content)
            await write(client, "b.txt", content)
        with fault_hook(fill):
            text = await fail(client, "undo", checkpoint="start")
        assert "No space left" in text
        assert [(root / name).read_text() for name in ("a.txt", "b.txt")] == ["2", "2"]
        review = await client.call_tool("review", {})
        assert [each["undoneBy"] for each in review.structured_content["calls"]] == [None] * 5
        await call(client, "undo")
        assert (root / "b.txt").read_text() == "1"

    run(root, work)


def test_only_the_chosen_file_of_a_deleted_directory_comes_back(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    for name in ("a.txt", "b.txt"):
        (root / "d" / name).write_text(name)

    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "delete_file", path="d")
        await call(client, "undo", paths=["d/a.txt"])
        assert [each.name for each in (root / "d").iterdir()] == ["a.txt"]
        await call(client, "undo", paths=["d/b.txt"], call=1)
        assert {each.name for each in (root / "d").iterdir()} == {"a.txt", "b.txt"}

    run(root, work)


def test_an_undo_of_the_last_call_stores_nothing_and_later_saves_are_steps(tmp_path: Path) -> None:
    root, store = tmp_path / "w", tmp_path / "w.git"
    root.mkdir()
    (root / "a.txt").write_text("old\n")

    async def work(served: Served) -> None:
        client = await served.connect()
        for content in ("1\n", "2\n"):
            await write(client, "a.txt", content)
        stored = {each for each in store.rglob("*") if each.is_file()}
        await call(client, "undo")
        await call(client, "undo")
        assert {each for each in store.rglob("*") if each.is_file()} == stored
        (root / "a.txt").write_text("mine\n")
        await call(client, "edit_file", path="a.txt", edits=[{"oldText": "m", "newText": "f"}])
        assert "call 5: change by the user: a.txt\n- call 6: edit_file" in await call(
            client, "review"
        )
        await call(client, "undo")
        assert (root / "a.txt").read_text() == "mine\n"
        await call(client, "undo", call=5)
        assert (root / "a.txt").read_text() == "old\n"

    run(root, work)
