"""`evaluate_python`: code that computes over the workspace, in a process that can be killed."""

from weakincentives.contrib.evaluation.engine import (
    DEFAULT_EVAL_LIMITS,
    Engine,
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    EngineUnavailableError,
    EvalError,
    EvalFileRead,
    EvalFileWrite,
    EvalLimits,
    EvalParams,
    EvalResult,
    FileAccess,
    JsonValue,
)
from weakincentives.contrib.evaluation.evaluator import Evaluator, render_result
from weakincentives.contrib.evaluation.files import EvalWorkspace, FilesystemWorkspace
from weakincentives.contrib.evaluation.python import PythonEngine
from weakincentives.contrib.evaluation.registry import (
    DEFAULT_ENGINE,
    ENGINES,
    EngineEntry,
    choose_engine,
    create_engine,
    find_problem,
)

__all__ = [
    "DEFAULT_ENGINE",
    "DEFAULT_EVAL_LIMITS",
    "ENGINES",
    "Engine",
    "EngineEntry",
    "EngineLanguage",
    "EngineOutcome",
    "EngineRequest",
    "EngineUnavailableError",
    "EvalError",
    "EvalFileRead",
    "EvalFileWrite",
    "EvalLimits",
    "EvalParams",
    "EvalResult",
    "EvalWorkspace",
    "Evaluator",
    "FileAccess",
    "FilesystemWorkspace",
    "JsonValue",
    "PythonEngine",
    "choose_engine",
    "create_engine",
    "find_problem",
    "render_result",
]
