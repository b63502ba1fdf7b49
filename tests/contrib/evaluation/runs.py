"""Evaluates code in tests."""

from weakincentives.contrib.evaluation import (
    Engine,
    EvalParams,
    EvalResult,
    Evaluator,
    FilesystemWorkspace,
)
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import ToolResult


class Run:
    """Evaluates code on one filesystem."""

    def __init__(self, engine: Engine, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.evaluator = Evaluator(engine)

    def __call__(self, code: str, **params: object) -> EvalResult:
        """Return the result of code that succeeds."""
        result = self.result(code, **params)
        assert result.success, result.message
        assert result.value is not None
        return result.value

    def fail(self, code: str, **params: object) -> ToolResult[EvalResult]:
        """Return the result of code that fails."""
        result = self.result(code, **params)
        assert not result.success, result.message
        return result

    def result(self, code: str, **params: object) -> ToolResult[EvalResult]:
        call = EvalParams(code, **params)  # type: ignore[arg-type]
        return self.evaluator.run(call, FilesystemWorkspace(self.filesystem))
