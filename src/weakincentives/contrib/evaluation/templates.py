"""Templates of declared writes: `{name}` stands for the value of a variable, and nothing else.

There are no attributes, indexes, conversions or format specifications, so a template cannot
reach anything but the variables. `{{name}}` is a literal `{name}`. Other braces, such as those of
JSON or CSS, stay as they are.
"""

import json
import re
from collections.abc import Mapping

from weakincentives.errors import ToolValidationError

_WORDS = {"true": "True", "false": "False", "null": "None"}
_FIELD = re.compile(r"\{\{([^{}]*)\}\}|\{([^\W\d]\w*)(\s*[.\[!:][^{}]*)?\}")


def expand_template(template: str, variables: Mapping[str, str], limit: int) -> str:
    """Return the text with every `{name}` replaced.

    Args:
        template: The content of a declared write.
        variables: The variables as JSON text. A string stands for itself; lists and objects are
            inserted as JSON, other values as Python prints them.
        limit: Characters that the values may have together.

    Raises:
        ToolValidationError: A name is unknown, more than a name is in the braces, or the values
            are too long.
    """
    room = limit

    def replace(match: re.Match[str]) -> str:
        nonlocal room
        literal, name, rest = match.groups()
        if literal is not None:
            return f"{{{literal}}}"
        if rest:
            raise ToolValidationError(
                f"A template can have names only: {match[0]!r}; assign the value to a variable"
                f" in the code and write {{variable}}, or write {{{match[0]}}} for literal text"
            )
        if name not in variables:
            raise ToolValidationError(_unknown_name(name, variables))
        text = _render(variables[name])
        room -= len(text)
        if room < 0:
            raise ToolValidationError(
                f"The values in a template have more than {limit:,} characters; write less text"
            )
        return text

    return _FIELD.sub(replace, template)


def _render(encoded: str) -> str:
    # only a string is decoded: a list may be nested more deeply than the decoder can go
    return json.loads(encoded) if encoded[:1] == '"' else _WORDS.get(encoded, encoded)


def _unknown_name(name: str, variables: Mapping[str, str]) -> str:
    known = ", ".join(sorted(variables)) or "none"
    return (
        f"The template uses {{{name}}}, but the code left no variable {name!r} that JSON can"
        f" represent (variables: {known}); assign it in the code, or write {{{{{name}}}}} for"
        " literal text"
    )
