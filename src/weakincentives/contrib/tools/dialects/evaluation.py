"""The tool of each dialect that evaluates Python code.

`wink` and `classic` have all parameters of the request. Other dialects have the name that the
vendor's models know, and the code alone; their code reads and writes files itself.
"""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.evaluation import EvalParams
from weakincentives.contrib.tools.context import ToolSpec, pass_through
from weakincentives.contrib.tools.dialects.shared import FieldMapping, mapped, params

CodeCall: type[Any] = params(code=(str, "The Python code."))


_PURPOSE = """\
Run Python code over the files of the workspace. Use it instead of calculating in your head: \
counts, sums, dates, comparisons, data in files.
The value of the last expression and everything printed are returned. Every call starts with \
fresh variables.
Read files with read_text(path). Write them with write_text(path, content, mode): "overwrite" (the \
default) creates or replaces, "create" fails if the file exists, "append" adds to its end.
If the code fails, nothing is written."""
_ALIASES = {"python_code": "code", "source": "code", "script": "code", "input": "code"}
_OTHER_NAMES = (
    "evaluate_python",
    "python",
    "code_interpreter",
    "code_execution",
    "execute_code",
    "run_python_code",
)
_EVALUATE = pass_through("evaluate_python", EvalParams, _PURPOSE, aliases={"python_code": "code"})


def _code_tool(name: str) -> tuple[ToolSpec[Any], ...]:
    spec = mapped(
        name,
        _PURPOSE,
        FieldMapping(CodeCall, EvalParams),
        aliases=_ALIASES,
        other_names=tuple(each for each in _OTHER_NAMES if each != name),
    )
    return (spec,)


EVALUATION_TOOL_SPECS: Mapping[str, tuple[ToolSpec[Any], ...]] = {
    "wink": (_EVALUATE,),
    "classic": (_EVALUATE,),
    "claude": _code_tool("code_execution"),
    "anthropic-editor": _code_tool("code_execution"),
    "openai": _code_tool("python"),
    "gemini": _code_tool("code_execution"),
    "mcp": _code_tool("evaluate_python"),
}
"""The tool of each dialect that evaluates Python code."""
