"""Handlers that evaluate Python code in an engine, and the tools for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.contrib import evaluation
from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Binding,
    Handler,
    HandlerContext,
    ToolSettings,
    build_tools,
    select_specs,
)
from weakincentives.contrib.tools.dialects.evaluation import EVALUATION_TOOL_SPECS
from weakincentives.contrib.tools.shell.limits import check_workspace, limit_seconds
from weakincentives.prompt import Tool, ToolResult

__all__ = ["EVALUATION_TOOL_SPECS", "evaluation_handlers", "evaluation_tools"]


def evaluation_handlers(
    engine: evaluation.Engine, *, limits: evaluation.EvalLimits = evaluation.DEFAULT_EVAL_LIMITS
) -> Mapping[type[Any], Handler]:
    """Return the handler for requests that evaluate Python code.

    Pass it as `extra_handlers=` to a section or to `filesystem_tools` to add the tool of the
    dialect.

    Args:
        engine: What runs the code.
        limits: Limits of one evaluation.
    """
    return {evaluation.EvalParams: _EvaluationHandler(evaluation.Evaluator(engine, limits=limits))}


def evaluation_tools(
    engine: evaluation.Engine,
    dialect: str = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    limits: evaluation.EvalLimits = evaluation.DEFAULT_EVAL_LIMITS,
    binding: Binding | None = None,
) -> tuple[Tool[Any, Any], ...]:
    """Return only the tool of a dialect that evaluates Python code.

    Args:
        engine: What runs the code.
        dialect: The dialect.
        settings: Limits and rules of the tools.
        limits: Limits of one evaluation.
        binding: Returns the context for each call.

    Raises:
        PromptError: The dialect is unknown.
    """
    handlers = evaluation_handlers(engine, limits=limits)
    offered = select_specs(EVALUATION_TOOL_SPECS, dialect, handlers)
    return build_tools(offered, handlers, settings, binding)


@dataclass(frozen=True, slots=True)
class _EvaluationHandler:
    """Evaluates code on the files of a call, within its time."""

    evaluator: evaluation.Evaluator

    @property
    def description(self) -> str:
        """What the code can use, for the description of the tool."""
        limits = self.evaluator.limits
        return (
            f"{_describe_language(self.evaluator.engine.language)}\n"
            f"At most {limits.max_code_length:,} characters of code and {limits.max_seconds:g} s."
        )

    @property
    def bypasses_filesystem(self) -> bool:
        """Whether the code can change files other than through the workspace's methods."""
        return self.evaluator.engine.bypasses_filesystem

    def __call__(
        self, request: evaluation.EvalParams, context: HandlerContext
    ) -> ToolResult[evaluation.EvalResult]:
        engine = self.evaluator.engine
        if isinstance(engine, evaluation.PythonEngine):
            check_workspace(engine.sandbox, context)
        seconds = limit_seconds(self.evaluator.limits.max_seconds, context)
        return self.evaluator.run(request, context, seconds=seconds)


def _describe_language(language: evaluation.EngineLanguage) -> str:
    parts = [f"Language: {language.summary}."]
    if language.modules:
        parts.append(f"Modules: {', '.join(language.modules)}.")
    given = [each for each in language.functions if each not in ("read_text", "write_text")]
    if given:
        parts.append(f"Already imported: {', '.join(given)}.")
    if language.missing:
        parts.append(f"Not available: {', '.join(language.missing)}.")
    return "\n".join(parts)
