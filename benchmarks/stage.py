"""What a workload builds its cases from: sizes, corpora, and scratch space that is removed."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.corpus import Corpus, standard_library, synthetic, write_synthetic


class Closeable(Protocol):
    """Anything that is closed when the workload is over."""

    def close(self) -> None:
        """Give everything back."""
        ...


T = TypeVar("T", bound=Closeable)


@dataclass(slots=True)
class Stage:
    """The surroundings of one workload; use it as a context manager."""

    smallest: bool = False
    sizes: tuple[int, ...] = ()
    exits: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Stage":
        """Open the stage."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close and remove what the workload made."""
        self.exits.close()

    def sizes_or(self, *default: int) -> tuple[int, ...]:
        """The sizes asked for, else the default ones, else (smallest) the first of them."""
        if self.smallest:
            return (min(default),)
        return self.sizes or default

    def scratch(self) -> Path:
        """A new empty directory, removed at the end."""
        return Path(self.exits.enter_context(tempfile.TemporaryDirectory(prefix="wink-bench-")))

    def keep(self, thing: T) -> T:
        """Close `thing` at the end."""
        self.exits.callback(thing.close)
        return thing

    def library(self) -> Corpus:
        """Corpus A: the running interpreter's standard library (a part of it when smallest)."""
        return standard_library(part=self.smallest)

    def tree(self, files: int) -> Corpus:
        """S1k, S10k, S100k: small files in folders of 100."""
        return synthetic(files)

    def own_tree(self, files: int) -> Path:
        """The same files as `tree`, in a directory that may be changed and goes away."""
        root = self.scratch()
        write_synthetic(root, files)
        return root
