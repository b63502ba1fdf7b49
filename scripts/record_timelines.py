"""Record the timelines that the tests replay: one small session per dialect.

    python -m scripts.record_timelines [DIRECTORY]

Run it again only when a change of the tools' results is intended; read the difference that
`wink replay` prints first.
"""

import sys
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from weakincentives.adapters import Completion, ScriptedAdapter, ToolCall, UserMessage
from weakincentives.contrib.tools import (
    EditFileParams,
    FilesystemSection,
    GlobParams,
    GrepParams,
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.suite import create_dialect
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SUFFIX, SessionRecorder, export_history

RECORDED = Path(__file__).parent.parent / "tests" / "contrib" / "timelines"
_FILES = {
    "README.md": "# Prices\n\nAdds the tax to a price.\n",
    "prices/__init__.py": "",
    "prices/tax.py": "RATE = 0.19\n\n\ndef gross(net):\n    return net + RATE\n",
    "prices/old.py": "# not used any more\n",
    "crlf.txt": "first\r\nsecond\r\n",
}
_REQUESTS: tuple[tuple[Any, ...], ...] = (
    (LsParams(), GlobParams(pattern="**/*.py"), GrepParams(pattern="RATE")),
    (ReadFileParams(file_path="prices/tax.py"), ReadFileParams(file_path="missing.py")),
    (
        EditFileParams(
            file_path="prices/tax.py", old_string="net + RATE", new_string="net * (1 + RATE)"
        ),
    ),
    (EditFileParams(file_path="prices/tax.py", old_string="net - RATE", new_string="net"),),
    (
        ReadFileParams(file_path="crlf.txt"),
        EditFileParams(file_path="crlf.txt", old_string="second", new_string="third"),
    ),
    (WriteFileParams(file_path="tests/test_tax.py", content="def test():\n    pass\n"),),
    (RmParams(path="prices/old.py"), ReadFileParams(file_path="../outside")),
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def record(dialect: DialectName, path: Path) -> None:
    """Record one session in a dialect."""
    files, ticks = InMemoryFilesystem(), count()
    for name, content in _FILES.items():
        files.write(name, content)
    session = Session(session_id=UUID(int=sorted(DIALECTS).index(dialect) + 1), created_at=_START)
    section = FilesystemSection(filesystem=files, session=session, dialect=dialect)
    prompt = Prompt[None](ns="wink", key="recorded", name="recorded", sections=[section])
    model = ScriptedAdapter([*_script(dialect), "The tax is a factor now."])
    path.unlink(missing_ok=True)

    def now() -> datetime:
        return _START + timedelta(seconds=next(ticks))

    with TemporaryDirectory() as place:
        history = Path(place) / "history"
        with SessionRecorder(session, history, files, now=now):
            model.evaluate(prompt, session=session, messages=[UserMessage("Fix the tax.")])
        export_history(history, path)


def _script(dialect: DialectName) -> list[Completion]:
    table = create_dialect(dialect)
    steps: list[Completion] = []
    for requests in _REQUESTS:
        encoded = [call for call in map(table.encode, requests) if call is not None]
        calls = tuple(ToolCall(name, arguments) for name, arguments in encoded)
        if calls:
            steps.append(Completion(tool_calls=calls, stop_reason="tool_calls"))
    return steps


def main() -> None:
    """Record every dialect."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED
    directory.mkdir(parents=True, exist_ok=True)
    for dialect in DIALECTS:
        record(dialect, directory / f"{dialect}{SUFFIX}")


if __name__ == "__main__":
    main()
