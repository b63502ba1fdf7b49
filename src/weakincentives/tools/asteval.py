"""Names of the specification: the evaluation of Python code."""

from weakincentives.contrib.evaluation import (
    EvalFileRead,
    EvalFileWrite,
    EvalLimits,
    EvalParams,
    EvalResult,
)
from weakincentives.contrib.tools.sections import AstevalSection

__all__ = [
    "AstevalSection",
    "EvalFileRead",
    "EvalFileWrite",
    "EvalLimits",
    "EvalParams",
    "EvalResult",
]
