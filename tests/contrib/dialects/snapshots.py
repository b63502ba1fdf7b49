"""What models are told about the tools of each dialect, kept as files to look at.

`python3 -m tests.contrib.dialects.snapshots` writes them anew; read the difference.
"""

import json
from pathlib import Path
from typing import get_args

from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.sections.base import tool_guidance
from weakincentives.contrib.tools.suite import create_dialect, filesystem_tools

NAMES: tuple[DialectName, ...] = get_args(DialectName)
HERE = Path(__file__).parent / "transcripts"


def told(dialect: DialectName) -> str:
    """Return the guidance of a dialect, then each tool with its description and its schema."""
    parts = [tool_guidance(create_dialect(dialect), (), is_new=True)]
    for tool in filesystem_tools(dialect):
        schema = json.dumps(tool.schema, indent=1, ensure_ascii=False)
        parts += [f"=== {tool.name} ===", tool.description, schema]
    return "\n\n".join(parts) + "\n"


def place(dialect: DialectName) -> Path:
    """Return the file that keeps what is told in a dialect."""
    return HERE / f"{dialect}.txt"


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each in NAMES:
        place(each).write_text(told(each), encoding="utf-8")
