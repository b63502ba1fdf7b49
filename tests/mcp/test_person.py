"""A person who saves a file while a call runs in place: the save is at its path, or had back."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.mcp.serving import serve
from tests.sizes import size
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import fault_hook
from weakincentives.sandbox import LocalSandbox

Call = tuple[str, dict[str, Any]]
Work = Callable[["Workplace", Client, "Person"], Awaitable[None]]
COMMAND = ["sh", "-c", "echo 2 > d/a.txt; touch begun; sleep 600"]
OLD = "".join(f"line {number}\n" for number in range(9))
MINE = "this is mine\n"
EDIT = {"path": "d/a.txt", "edits": [{"oldText": "line 8", "newText": "eight"}]}


def rename_over(path: Path) -> None:
    """Save as most editors do: write another file and rename it."""
    path.parent.mkdir(exist_ok=True)
    other = path.with_name(".a.txt.swp")
    other.write_text(MINE)
    other.rename(path)


def truncate(path: Path) -> None:
    """Save in place, if there is a place."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(MINE)


def append(path: Path) -> None:
    """Add a line at the end."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(MINE)


SAVES: Sequence[Callable[[Path], None]] = [rename_over, truncate, append]


class Person:
    """Saves once, at a fault point that is counted from 1 as soon as the person has arrived."""

    def __init__(self, save: Callable[[], None], at: int) -> None:
        self.save, self.at = save, at
        self.has_arrived = False
        self.points: list[str] = []

    def __call__(self, point: str) -> None:
        if self.has_arrived:
            self.points.append(point)
            if len(self.points) == self.at:
                self.save()


class Workplace:
    """A directory, and calls on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "d" / "a.txt"
        self.path.parent.mkdir(parents=True)
        self.path.write_text(OLD)
        (root / "b.txt").write_text("other\n")

    def run(self, work: Work, save: Callable[[Path], None], at: int) -> list[str]:
        """Work; let the person save at a point of it; return the points that were reached."""

        async def main() -> list[str]:
            git = self.root.with_suffix(".git")
            with (
                HostFilesystem(self.root, git_dir=git) as files,
                LocalSandbox(files) as sandbox,
                anyio.fail_after(60),
            ):
                async with serve(files, sandbox=sandbox) as served:
                    client = await served.connect()
                    await client.call_tool("list_checkpoints", {})  # the start is taken
                    person = Person(lambda: save(self.path), at)
                    with fault_hook(person):
                        await work(self, client, person)
                    if at <= len(person.points):
                        await self.check_kept(client)
                    return person.points

        return anyio.run(main)

    async def check_kept(self, client: Client) -> None:
        """Check that the save is at its path, or comes back with an undo of its path."""
        if self.has_save():
            return
        review = (await client.call_tool("review", {})).structured_content
        assert review is not None
        for each in reversed(review["calls"]):
            paths = {"call": each["number"], "paths": ["d/a.txt"]}
            await client.call_tool("undo", paths)
            if self.has_save():
                return
        raise AssertionError(f"The save is lost: {review['calls']}")

    def has_save(self) -> bool:
        """Return whether the save is there; it goes with its directory, which may be moved."""
        places = (self.path, self.root / "e" / "a.txt")
        return any(each.is_file() and each.read_text().endswith(MINE) for each in places)


def calls(*given: Call) -> Work:
    """Return calls, with the person beside the last one."""

    async def work(place: Workplace, client: Client, person: Person) -> None:
        for each in given[:-1]:
            assert not (await client.call_tool(*each)).is_error
        person.has_arrived = True
        await client.call_tool(*given[-1])

    return work


async def cancel_a_command(place: Workplace, client: Client, person: Person) -> None:
    """Cancel a command that has changed the file, with the person beside its rollback."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "shell_execute", {"command": COMMAND})
        while not (place.root / "begun").exists():
            await anyio.sleep(0.01)
        person.has_arrived = True
        group.cancel_scope.cancel()
    await client.call_tool("review", {})  # waits for the rollback


WRITE: Call = ("write_file", {"path": "d/a.txt", "content": "agent\n"})
WORK: dict[str, Work] = {
    "write": calls(WRITE),
    "edit": calls(("edit_file", EDIT)),
    "delete": calls(("delete_file", {"path": "d/a.txt"})),
    "move": calls(("move_file", {"source": "d/a.txt", "destination": "b2.txt"})),
    "undo": calls(WRITE, ("undo", {})),
    "undo of a deletion": calls(("delete_file", {"path": "d/a.txt"}), ("undo", {})),
    "undo of a move": calls(("move_file", {"source": "d", "destination": "e"}), ("undo", {})),
    "undo of several": calls(
        WRITE,
        ("write_file", {"path": "c.txt", "content": "agent\n"}),
        ("edit_file", {"path": "d/a.txt", "edits": [{"oldText": "agent", "newText": "2"}]}),
        ("undo", {"checkpoint": "start"}),
    ),
    "redo": calls(WRITE, ("undo", {}), ("undo", {"call": 2})),
    "cancel": cancel_a_command,
}


@pytest.mark.slow
@pytest.mark.parametrize("save", SAVES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", WORK)
def test_a_save_at_any_point_of_a_call_is_kept(
    tmp_path: Path, name: str, save: Callable[[Path], None]
) -> None:
    step = size(9, 1)  # each save at other points
    at = first = count = 1 + 3 * SAVES.index(save) % step
    while at <= count:
        count = len(Workplace(tmp_path / str(at)).run(WORK[name], save, at))
        at += step
    assert first <= count
