"""Look at recorded sessions: a store of dumps and timelines, a web page, and a file to send.

`weakincentives.debug.server` has the web server, which needs the extra `debug`.
"""

from weakincentives.debug.export import export_page
from weakincentives.debug.recording import RecordedSession, RecordingError
from weakincentives.debug.store import SnapshotStore
from weakincentives.redaction import mask_secrets

__all__ = ["RecordedSession", "RecordingError", "SnapshotStore", "export_page", "mask_secrets"]
