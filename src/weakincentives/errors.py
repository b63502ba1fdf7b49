"""The error hierarchy: WinkError, and the errors that several packages share.

Errors that the operating system has a name for are builtins. Our own derive from `WinkError`
*and* from a builtin, and are defined beside the code that raises them:

    WinkError
    ├── InvalidPathError (ValueError)       not a path               filesystem/paths.py
    ├── PathEscapeError (PermissionError)   leaves the workspace     filesystem/paths.py
    ├── LimitExceededError (ValueError)     larger than allowed      filesystem/limits.py
    ├── TimeLimitError (TimeoutError)       took longer than allowed filesystem/limits.py
    ├── BinaryContentError (ValueError)     not text                 filesystem/text.py
    ├── InvalidGlobError (ValueError)       not a glob               filesystem/patterns.py
    ├── InvalidRegexError (ValueError)      not a searchable regex   filesystem/search.py
    ├── ReadOnlyError (PermissionError)     write refused            filesystem/readable.py
    ├── BackendUnavailableError (RuntimeError) the workspace is gone filesystem/rooted.py
    ├── ArchiveError (ValueError)           not our zip              filesystem/archives/format.py
    ├── StaleDiffError (RuntimeError)       a side has changed       filesystem/diffs/changes.py
    ├── ObjectError (ValueError)            missing or damaged       filesystem/store/objects.py
    ├── PackError (ValueError)              damaged pack             filesystem/store/deltas.py
    ├── DeadlineExceededError (TimeoutError) the time is over        runtime/deadlines.py
    ├── BudgetExceededError (RuntimeError)  too much was used        runtime/budget.py
    ├── ReducerError (RuntimeError)         its slice is unchanged   runtime/session/reducers.py
    ├── UnknownTagError (KeyError)          no snapshot has the tag  runtime/session/session.py
    ├── SnapshotFormatError (ValueError)    not a stored session     runtime/session/snapshots.py
    ├── DumpError (ValueError)              no dump, or damaged      runtime/session/dumpformat.py
    ├── SandboxUnavailableError (RuntimeError) no result             sandbox/protocol.py
    ├── SerdeError (ValueError)             no such data             serde/problems.py
    ├── EditError (ValueError)              no clear place to edit   contrib/tools/edit/edits.py
    ├── PatchError (ValueError)             no clear place to patch  contrib/tools/patch/changes.py
    ├── CopyError (ValueError)              no working copy          contrib/review/records.py
    │   └── ApplyInterruptedError           half was applied         contrib/review/recovery.py
    ├── ConflictError (RuntimeError)        changed on both sides    contrib/review/conflicts.py
    ├── ToolValidationError (ValueError)    a wrong call             errors.py
    ├── AdapterError (RuntimeError)         a run did not end well   adapters/errors.py
    │   ├── ProviderError                   no answer                adapters/errors.py
    │   │   ├── ThrottledError, TransientError                       tried again
    │   │   └── InvalidRequestError, AuthenticationError, ContextTooLongError
    │   ├── UnknownModelError (ValueError), MissingExtraError (ImportError)  adapters/registry.py
    │   └── StepLimitError, OutputError, ModelRefusedError, RunCancelledError, ScriptError
    ├── SavepointError (RuntimeError)       ended, or not rolled back filesystem/savepoints.py
    └── SnapshotError (RuntimeError)        no snapshot              errors.py
        └── SnapshotRestoreError            nothing restored         errors.py
"""

__all__ = ["SnapshotError", "SnapshotRestoreError", "ToolValidationError", "WinkError"]


class WinkError(Exception):
    """An error that this package defines; catch it to catch them all."""


class ToolValidationError(WinkError, ValueError):
    """A model called a tool with arguments that the tool cannot accept."""


class SnapshotError(WinkError, RuntimeError):
    """A snapshot could not be made or used."""


class SnapshotRestoreError(SnapshotError):
    """A snapshot could not be restored; the files are as they were before."""


class PromptError(WinkError, ValueError):
    """The prompt cannot be made or rendered; the message says where and why."""
