"""The definition of a mutant."""

from dataclasses import dataclass

from weakincentives.filesystem import BaseFilesystem
from weakincentives.filesystem.testing import ConformanceSuite


@dataclass(frozen=True)
class Mutant:
    """A broken backend, the suite that gets it, and a test that must fail, or `test[case]`."""

    backend: type[BaseFilesystem]
    suite: type[ConformanceSuite]
    killer: str
