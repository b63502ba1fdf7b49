"""The error hierarchy: WinkError, and the errors that several packages share.

Errors that the operating system has a name for are builtins. Our own derive from `WinkError`
*and* from a builtin, and are defined beside the code that raises them:

    WinkError
    ├── InvalidPathError (ValueError)          not a valid path              filesystem
    ├── PathEscapeError (PermissionError)      outside the workspace         filesystem
    ├── LimitExceededError (ValueError)        larger than allowed           filesystem
    ├── BinaryContentError (ValueError)        not text                      filesystem
    ├── InvalidGlobError (ValueError)          not a valid glob              filesystem
    ├── InvalidRegexError (ValueError)         not a regex for RE2           filesystem
    ├── ReadOnlyError (PermissionError)        writing is not allowed        filesystem
    ├── SavepointError (RuntimeError)          ended, or not rolled back     filesystem
    ├── ArchiveError (ValueError)              damaged or unsafe archive     filesystem
    ├── StaleContentError (OSError)            changed since it was read     filesystem
    ├── StaleDiffError (RuntimeError)          a side has changed            filesystem
    ├── ChangeConflictError (RuntimeError)     a path was not as expected    history
    ├── RecordError (ValueError)               damaged record of a change    history
    ├── BackendUnavailableError (RuntimeError) the workspace is gone         posix
    ├── TimeLimitError (TimeoutError)          took longer than allowed      posix
    ├── ObjectError (ValueError)               missing or damaged object     gitstore
    ├── PackError (ValueError)                 damaged pack                  gitstore
    │   └── TooLargeError                      too large for memory          gitstore
    ├── DeadlineExceededError (TimeoutError)   the deadline has passed       runtime
    ├── BudgetExceededError (RuntimeError)     used more than allowed        runtime
    ├── ReducerError (RuntimeError)            its slice is unchanged        runtime
    ├── TransactionEndedError (RuntimeError)   change after a rollback       runtime
    ├── UnknownTagError (KeyError)             no snapshot has the tag       runtime
    ├── SnapshotFormatError (ValueError)       not a stored session          runtime
    │   └── UnknownTypeError                   a type that is not registered runtime
    ├── DumpError (ValueError)                 missing or damaged dump       runtime
    ├── SandboxUnavailableError (RuntimeError) the sandbox itself failed     sandbox
    ├── SerdeError (ValueError)                does not match its type       serde
    ├── EditError (ValueError)                 no unique match to edit       contrib
    ├── PatchError (ValueError)                no unique place to patch      contrib
    ├── CopyError (ValueError)                 no working copy               contrib
    │   └── ApplyInterruptedError              an apply was interrupted      contrib
    ├── ConflictError (RuntimeError)           changed on both sides         contrib
    ├── EngineUnavailableError (RuntimeError)  code cannot be evaluated      contrib
    ├── McpServerError (ConnectionError)       an MCP server cannot be used  contrib
    ├── AdapterError (RuntimeError)            a run did not finish          adapters
    │   ├── ProviderError                      no response
    │   │   ├── ThrottledError, TransientError retried
    │   │   └── InvalidRequestError, AuthenticationError, ContextTooLongError
    │   ├── UnknownModelError (ValueError), MissingExtraError (ImportError)
    │   └── StepLimitError, OutputError, ModelRefusedError, RunCancelledError, ScriptError
    ├── ToolValidationError (ValueError)       invalid tool call             errors
    ├── PromptError (ValueError)               cannot be rendered            errors
    └── SnapshotError (RuntimeError)           cannot be created or used     errors
        └── SnapshotRestoreError               nothing was restored          errors
            ├── StaleRestoreError              because of later changes      errors
            └── UnfinishedRestoreError         neither done nor rolled back  errors
"""

from collections.abc import Sequence

__all__ = [
    "SnapshotError",
    "SnapshotRestoreError",
    "StaleRestoreError",
    "ToolValidationError",
    "UnfinishedRestoreError",
    "WinkError",
]


class WinkError(Exception):
    """The base class of all errors that this package defines."""


class ToolValidationError(WinkError, ValueError):
    """A model called a tool with invalid arguments."""


class SnapshotError(WinkError, RuntimeError):
    """A snapshot could not be created or used."""


class SnapshotRestoreError(SnapshotError):
    """A snapshot could not be restored; the files are unchanged."""


class StaleRestoreError(SnapshotRestoreError):
    """Paths are not in the state that an undo expects; the files are unchanged."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Name the paths."""
        self.paths: tuple[str, ...] = tuple(paths)
        super().__init__(f"Nothing was restored, because of later changes: {', '.join(self.paths)}")


class UnfinishedRestoreError(SnapshotRestoreError):
    """A restore failed half-way and could not be rolled back yet: the files are a mix."""


class PromptError(WinkError, ValueError):
    """The prompt cannot be built or rendered; the message says where and why."""
