"""Guidance, descriptions and schemas of each dialect, stored as approved text files.

`python3 -m tests.contrib.dialects.snapshots` rewrites them; read the diff.
"""

import json
from pathlib import Path
from typing import get_args

from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.sections.base import tool_guidance
from weakincentives.contrib.tools.suite import create_dialect, filesystem_tools

NAMES: tuple[DialectName, ...] = get_args(DialectName)
HERE = Path(__file__).parent / "transcripts"


def render_dialect(dialect: DialectName) -> str:
    """Return the guidance of a dialect, then each tool with its description and schema."""
    parts = [tool_guidance(create_dialect(dialect), (), is_new=True)]
    for tool in filesystem_tools(dialect):
        schema = json.dumps(tool.schema, indent=1, ensure_ascii=False)
        parts += [f"=== {tool.name} ===", tool.description, schema]
    return "\n\n".join(parts) + "\n"


def snapshot_path(dialect: DialectName) -> Path:
    """Return the file with the approved text of a dialect."""
    return HERE / f"{dialect}.txt"


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each in NAMES:
        snapshot_path(each).write_text(render_dialect(each), encoding="utf-8")
