"""A process that works on the same few paths as others do, and reports what went wrong.

`python -m tests.safety.worker <root> <number> <rounds>` waits for a line on its input,
works, and prints its findings in JSON.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable

from weakincentives.filesystem import BaseFilesystem, HostFilesystem

# what may happen when somebody else was faster; anything else is a defect
LOST = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)

LETTERS = "abcdefgh"


def content(letter: str) -> str:
    """Return content in which a mix of two writers shows."""
    return letter * 3_000 + "\n"


def is_whole(text: str) -> bool:
    return text in {content(letter) for letter in LETTERS}


def read(fs: BaseFilesystem, path: str) -> None:
    if not is_whole(fs.read(path).content):
        raise AssertionError(f"torn read of {path!r}")


def search(fs: BaseFilesystem) -> None:
    for match in fs.grep("^.", max_matches=20):
        if len(set(match.line_content)) != 1:
            raise AssertionError(f"torn line in {match.path!r}")


def step(fs: BaseFilesystem, letter: str, choice: random.Random) -> None:
    """Do one thing to one of the shared paths."""
    path = choice.choice(["f", "shared/f", "made/by/both/f", "made/by/f"])
    copy = f"copies/{letter}/{choice.randrange(3)}"
    steps: list[Callable[[], object]] = [
        *[lambda: fs.write(path, content(letter))] * 3,
        *[lambda: read(fs, path)] * 2,
        lambda: fs.delete(choice.choice([path, "made"]), recursive=True),
        lambda: fs.move(path, choice.choice(["moved/f", "shared/f"]), overwrite=True),
        lambda: fs.copy(choice.choice([path, "made"]), copy),
        lambda: fs.mkdir(choice.choice(["made/by", "moved/dir", "made/by/both"])),
        lambda: fs.delete(choice.choice(["copies", "moved"]), recursive=True),
        lambda: search(fs),
        lambda: fs.glob("**"),
        lambda: fs.list(),
    ]
    choice.choice(steps)()


def work(fs: BaseFilesystem, number: int, rounds: int) -> tuple[Counter[str], list[str]]:
    """Work for so many rounds; return what happened and what must not have."""
    choice = random.Random(number)
    happened: Counter[str] = Counter()
    defects: list[str] = []
    for _ in range(rounds):
        try:
            step(fs, LETTERS[number], choice)
        except LOST as error:
            happened[type(error).__name__] += 1
        except (AssertionError, OSError, ValueError) as error:
            defects.append(repr(error))
        else:
            happened["worked"] += 1
    return happened, defects


if __name__ == "__main__":
    root, number, rounds = sys.argv[1:]
    with HostFilesystem(root) as fs:
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(work(fs, int(number), int(rounds))))
