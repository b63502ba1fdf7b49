"""Random calls of several clients, and a person who edits: undo against a model of the tree."""

import random
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from mcp import Client

from tests.mcp.serving import Served, run, text_of
from tests.sizes import size

NAMES = ("a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "f/g")
Tree = Mapping[str, tuple[object, ...]]


def read_tree(root: Path) -> Tree:
    """Return everything below a directory: kind, mode and content by path."""
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        name, mode = path.relative_to(root).as_posix(), S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("directory", mode)
        else:
            found[name] = ("file", mode, path.read_bytes())
    return found


@dataclass
class Step:
    before: Tree
    after: Tree

    @property
    def changed(self) -> set[str]:
        names = self.before.keys() | self.after.keys()
        return {name for name in names if self.before.get(name) != self.after.get(name)}


def undo(tree: Tree, step: Step, chosen: Sequence[str]) -> Tree | None:
    """Return the tree after an undo; None if that would lose something."""
    changed = {
        name for name in step.changed if not chosen or any(_is_at(name, each) for each in chosen)
    }
    result = dict(tree)
    for name in changed:
        was, now = step.before.get(name), tree.get(name)
        if now not in (was, step.after.get(name)):
            return None
        result.pop(name, None)
        if was is not None:
            result[name] = was
    for name in changed & result.keys():  # directories that were removed with it
        for parent in list(Path(name).parents)[:-1]:
            if parent.as_posix() not in step.after:
                result.setdefault(parent.as_posix(), step.before[parent.as_posix()])
    return result if _is_consistent(result) else None


def plan(steps: Sequence[Step], chosen: Sequence[str]) -> list[tuple[Step, Sequence[str]]]:
    """Return the steps to undo in turn; those without other changes in between are one."""
    names = sorted(set[str]().union(*(each.changed for each in steps)))
    if len(steps) > 1 and all(
        not any(
            _is_at(name, each) for name in Step(one.after, other.before).changed for each in names
        )
        for one, other in pairwise(steps)
    ):
        return [(Step(steps[0].before, steps[-1].after), names)]
    return [(step, chosen) for step in reversed(steps)]


def _is_at(name: str, directory: str) -> bool:
    return f"{name}/".startswith(f"{directory}/")


def _is_consistent(tree: Tree) -> bool:
    """Return whether everything is in a directory: nobody's file is in one that is gone."""
    parents = (parent.as_posix() for name in tree for parent in list(Path(name).parents)[:-1])
    return all(tree.get(parent, ("",))[0] == "directory" for parent in parents)


class Simulation:
    """Clients and a person at work in one directory, and what should come of it."""

    def __init__(self, root: Path, clients: Sequence[Client], seed: int) -> None:
        self.root, self.clients = root, clients
        self.random = random.Random(seed)
        self.steps: dict[int, Step] = {}
        self.checkpoints: dict[str, int] = {"start": 0}
        self.last = 0

    async def act(self) -> None:
        action = self.random.choice(
            [self.write] * 4
            + [self.remove, self.move, self.make]
            + [self.edit_as_person] * 2
            + [self.undo_call] * 3
            + [self.undo_to_checkpoint, self.add_checkpoint]
        )
        await action(self.random.choice(self.clients))

    async def call(self, client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
        before = read_tree(self.root)
        result = await client.call_tool(tool, arguments)
        after = read_tree(self.root)
        if result.is_error:
            assert after == before, f"{tool} failed and changed something"
            return False, text_of(result)
        number = (result.structured_content or {}).get("call")
        assert (number is None) == (before == after), text_of(result)
        if number is not None:
            assert number > self.last  # the steps of the person and failed calls have numbers too
            self.last = number
            self.steps[number] = Step(before, after)
        return True, text_of(result)

    async def write(self, client: Client) -> None:
        await self.call(client, "write_file", path=self.name(), content=str(self.random.random()))

    async def make(self, client: Client) -> None:
        await self.call(client, "create_directory", path=self.name())

    async def remove(self, client: Client) -> None:
        await self.call(client, "delete_file", path=self.name())

    async def move(self, client: Client) -> None:
        await self.call(client, "move_file", source=self.name(), destination=self.name())

    async def add_checkpoint(self, client: Client) -> None:
        _, text = await self.call(client, "checkpoint")
        self.checkpoints[re.findall("'(.*?)'", text)[0]] = self.last

    async def edit_as_person(self, client: Client) -> None:
        del client
        path = self.root / self.name()
        if any(each.is_file() for each in path.parents) or path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.exists() and self.random.random() < 0.5:
            path.chmod(self.random.choice([0o600, 0o644, 0o755]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.random.randbytes(8))

    async def undo_call(self, client: Client) -> None:
        if not self.steps:
            return
        number = self.random.choice(list(self.steps))
        chosen = [self.name()] if self.random.random() < 0.3 else []
        await self.check_undo(client, [self.steps[number]], chosen, call=number)

    async def undo_to_checkpoint(self, client: Client) -> None:
        name, number = self.random.choice(list(self.checkpoints.items()))
        steps = [step for each, step in self.steps.items() if each > number]
        await self.check_undo(client, steps, [], checkpoint=name)

    async def check_undo(
        self, client: Client, steps: Sequence[Step], chosen: Sequence[str], **arguments: Any
    ) -> None:
        before = read_tree(self.root)
        expected: Tree | None = before
        for step, names in plan(steps, chosen):
            expected = None if expected is None else undo(expected, step, names)
        success, text = await self.call(client, "undo", paths=list(chosen), **arguments)
        assert success == (expected is not None), text
        if expected is not None:
            assert read_tree(self.root) == expected, text

    def name(self) -> str:
        return self.random.choice(NAMES)


@pytest.mark.parametrize("seed", range(size(3, 100)))
def test_undo_and_redo_give_exactly_the_files_of_the_model(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a").write_bytes(b"\0a")
    (root / "d").mkdir()
    (root / "d/x").symlink_to("../a")
    (root / "d").chmod(0o750)

    async def work(served: Served) -> None:
        clients = [await served.connect(name) for name in ("one", "two")]
        simulation = Simulation(root, clients, seed)
        for _ in range(40):
            await simulation.act()

    run(root, work)
