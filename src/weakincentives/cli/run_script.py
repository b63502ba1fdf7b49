"""Scripts: a model's part written down in a file, for runs without a key and a network.

A script is a JSON list of steps, or a file with one step in each line. A step is a text, a
call `{"name": ..., "arguments": {...}}`, a list of calls, or a `Completion` with its `text`,
`tool_calls` and `usage`. What `--record` has recorded is played back just so.
"""

import json
from pathlib import Path
from typing import Any, cast

from weakincentives.adapters import Completion, ScriptedAdapter, ScriptError, ScriptStep, ToolCall
from weakincentives.adapters.recordings import MAX_RECORDING_BYTES
from weakincentives.filesystem.regular import read_regular
from weakincentives.serde import SerdeError, convert


def scripted(path: Path) -> ScriptedAdapter:
    """Return what plays the script or the recording at `path`.

    A recording is played whatever is asked: the task may be another one.

    Raises:
        ScriptError: It is neither, or cannot be read.
    """
    try:
        # the person names the file, so a link to it will do
        data = read_regular(path, MAX_RECORDING_BYTES, follow_links=True)
        steps = _steps(data.decode())
    except OSError as error:
        raise ScriptError(f"The script cannot be read: {error.strerror}: {str(path)!r}") from error
    except ValueError as error:
        raise ScriptError(f"The script is not JSON: {error}: {str(path)!r}") from error
    if steps and isinstance(steps[0], dict) and "adapter" in steps[0]:
        return ScriptedAdapter.from_recording(path, strict=False)
    return ScriptedAdapter([_step(each, number, path) for number, each in enumerate(steps, 1)])


def _steps(text: str) -> list[Any]:
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return cast("list[Any]", whole) if isinstance(whole, list) else [whole]


def _step(step: Any, number: int, path: Path) -> ScriptStep:
    try:
        if isinstance(step, str):
            return step
        if isinstance(step, list):
            return [convert(each, ToolCall) for each in cast("list[object]", step)]
        if isinstance(step, dict) and "name" in step:
            return convert(cast("object", step), ToolCall)
        return convert(cast("object", step), Completion)
    except SerdeError as error:
        raise ScriptError(f"Step {number} of the script: {error}: {str(path)!r}") from error
