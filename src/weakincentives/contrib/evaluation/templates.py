"""Templates of declared writes: `{name}` stands for the value of a variable, and nothing else.

There are no attributes, indexes, conversions or format specifications, so a template cannot
reach anything but the variables. `{{name}}` is a literal `{name}`. Other braces, such as those of
JSON or CSS, stay as they are.
"""

import json
import re
from collections.abc import Mapping

from weakincentives.errors import ToolValidationError

_FIELD = re.compile(r"\{\{([^{}]*)\}\}|\{([^\W\d]\w*)(\s*[.\[!:][^{}]*)?\}")


def expand_template(template: str, variables: Mapping[str, str]) -> str:
    """Return the text with every `{name}` replaced.

    Args:
        template: The content of a declared write.
        variables: The variables as JSON text. A string stands for itself; lists and objects are
            inserted as JSON, other values as Python prints them.

    Raises:
        ToolValidationError: A name is unknown, or more than a name is in the braces.
    """

    def replace(match: re.Match[str]) -> str:
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
        return _render(variables[name])

    return _FIELD.sub(replace, template)


def _render(encoded: str) -> str:
    value = json.loads(encoded)
    if isinstance(value, str):
        return value
    return encoded if isinstance(value, list | dict) else str(value)


def _unknown_name(name: str, variables: Mapping[str, str]) -> str:
    known = ", ".join(sorted(variables)) or "none"
    return (
        f"The template uses {{{name}}}, but the code left no variable {name!r} that JSON can"
        f" represent (variables: {known}); assign it in the code, or write {{{{{name}}}}} for"
        " literal text"
    )
