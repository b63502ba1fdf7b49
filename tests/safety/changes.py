"""Single changes to a small workspace, each of which must happen whole or not at all."""

from collections.abc import Callable
from pathlib import Path

from weakincentives.filesystem import HostFilesystem

Change = Callable[[HostFilesystem], object]

CHANGES: dict[str, Change] = {
    "write": lambda fs: fs.write("f", "new " * 3_000),
    "create": lambda fs: fs.write("g", "new", mode="create"),
    "append": lambda fs: fs.write("f", "new", mode="append"),
    "create below missing": lambda fs: fs.write("n/e/w/f", "new"),
    "mkdir": lambda fs: fs.mkdir("n"),
    "mkdir below missing": lambda fs: fs.mkdir("n/e/w"),
    "delete": lambda fs: fs.delete("f"),
    "delete link": lambda fs: fs.delete("t/link"),
    "delete tree": lambda fs: fs.delete("t", recursive=True),
    "move": lambda fs: fs.move("f", "g"),
    "move over": lambda fs: fs.move("f", "t/a", overwrite=True),
    "move below missing": lambda fs: fs.move("f", "n/e/w/f"),
    "move tree": lambda fs: fs.move("t", "u"),
    "move tree below missing": lambda fs: fs.move("t", "n/e/w/t"),
    "copy": lambda fs: fs.copy("f", "g"),
    "copy over": lambda fs: fs.copy("f", "t/a", overwrite=True),
    "copy below missing": lambda fs: fs.copy("f", "n/e/w/f"),
    "copy link": lambda fs: fs.copy("t/link", "g"),
    "copy tree": lambda fs: fs.copy("t", "u"),
    "copy tree below missing": lambda fs: fs.copy("t", "n/e/w/t"),
}


def prepare(root: Path) -> None:
    """Lay out what the changes work on."""
    (root / "f").write_text("old " * 5_000)
    (root / "t" / "deep").mkdir(parents=True)
    (root / "t" / "a").write_text("a")
    (root / "t" / "deep" / "b").write_text("b")
    (root / "t" / "link").symlink_to("a")
