"""Where behaviours are: whoever searches for the field's word finds the module by its path."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "weakincentives"

# what somebody looks for, the word of the field for it, the module, and a name that it defines
ROOMS = (
    ("exponential backoff with jitter", "retry", "adapters/retry.py", "RetryPolicy"),
    ("a request that is abandoned in time", "timeout", "adapters/loop/timeout.py", "TimedRequest"),
    ("the prices of models", "prices", "adapters/prices.py", "list_price"),
    ("older turns made shorter", "compaction", "adapters/loop/compaction.py", "Compaction"),
    ("running a tool call", "executor", "adapters/loop/executor.py", "ToolExecutor"),
    ("read before write", "policies", "adapters/policies.py", "ReadBeforeWrite"),
    ("cancelling a request", "cancellation", "adapters/cancellation.py", "CancellationToken"),
    (
        "a model that plays a script",
        "scripted",
        "adapters/recording/scripted.py",
        "ScriptedAdapter",
    ),
    ("server-sent events", "sse", "adapters/http/sse.py", "event_data"),
    ("secrets that are masked", "redaction", "redaction.py", "redact"),
    ("finding the text to edit", "match", "contrib/tools/editing/match.py", "find_matches"),
    (
        *("characters that look alike", "confusables"),
        *("contrib/tools/editing/confusables.py", "fold_confusables"),
    ),
    ("Jupyter notebooks", "notebooks", "contrib/tools/handlers/notebooks.py", "parse_notebook"),
    ("three-way merge", "merge", "contrib/review/merge.py", "merge_content"),
    ("conflicts with a person's edits", "conflict", "contrib/review/conflicts.py", "Conflict"),
    ("review hunk by hunk", "hunks", "contrib/review/hunks.py", "select_hunks"),
    ("committing with git", "commit", "contrib/review/commit.py", "commit_changes"),
    ("a map of the code", "map", "contrib/digest/repository_map.py", "RepositoryMap"),
    ("warm workers", "pool", "contrib/evaluation/worker/pool.py", "WorkerPool"),
    ("glob patterns", "glob", "filesystem/glob.py", "glob_match"),
    ("searching content", "grep", "filesystem/grep.py", "compile_regex"),
    ("ignore files", "ignore", "filesystem/ignore.py", "IgnoreRules"),
    ("quotas", "limits", "filesystem/limits.py", "Quota"),
    ("paths that escape", "paths", "filesystem/paths.py", "PathEscapeError"),
    ("line diff", "diff", "filesystem/diff/myers.py", "changed_blocks"),
    ("detecting renames", "renames", "filesystem/diff/renames.py", "detect_renames"),
    ("zip bombs", "zip", "filesystem/archive/zip_reader.py", "ZipReader"),
    ("copying a host directory in", "mounts", "filesystem/mounts/hydrate.py", "Hydration"),
    ("nested rollback points", "savepoints", "filesystem/savepoints.py", "Savepoint"),
    ("a path is exchanged with its new version", "slots", "history/slots.py", "swap"),
    ("rolling a change back", "rollback", "history/rollback.py", "Rollback"),
    ("recovery after a crash", "recovery", "history/recovery.py", "recover_change"),
    ("the append-only log", "log", "history/log.py", "RecordLog"),
    ("pack files", "pack", "gitstore/pack_writer.py", "PackWriter"),
    ("atomic replace", "atomic", "posix/atomic.py", "store_file"),
    ("watching for changes", "inotify", "posix/inotify.py", "Inotify"),
    ("system call filters", "seccomp", "sandbox/seccomp.py", "build_filter"),
    ("Landlock rules", "landlock", "sandbox/landlock.py", "LandlockSandbox"),
    ("namespaces", "bubblewrap", "sandbox/bubblewrap.py", "BubblewrapSandbox"),
    ("memory limits by control groups", "cgroup", "sandbox/cgroup.py", "ControlGroups"),
    ("killing descendants", "process_tree", "sandbox/process_tree.py", "kill_descendants"),
    ("what a process gives up", "child_process", "posix/child_process.py", "confine"),
    ("leftover containers", "prune", "sandbox/container/prune.py", "find_leftovers"),
    ("a person's answers", "answers", "cli/answers.py", "confirm"),
    ("continuing a run", "resume", "cli/run/resume.py", "EarlierRun"),
    ("which files matter most", "ranking", "contrib/digest/file_ranking.py", "rank_files"),
    ("the files as slices", "projection", "contrib/tools/file_projection.py", "ProjectionUpdater"),
    ("files made again", "reproducible", "filesystem/reproducible.py", "ReproducibleFiles"),
    ("allowed hosts", "proxy", "sandbox/proxy.py", "ProxyServer"),
    ("time limits", "deadlines", "runtime/deadlines.py", "Deadline"),
    ("token budgets", "budget", "runtime/budget.py", "BudgetTracker"),
    ("all or nothing", "transactions", "runtime/transactions.py", "Transaction"),
    ("pure reducers", "reducers", "runtime/session/reducers.py", "EventReducer"),
    ("spans", "tracing", "runtime/telemetry/tracing.py", "Span"),
    ("JSON Schema", "schema", "serde/schema.py", "json_schema"),
    ("prompt overrides", "overrides", "prompt/overrides.py", "LocalPromptOverridesStore"),
    ("what is installed", "doctor", "cli/doctor.py", "command"),
    ("undo of one step", "undo", "cli/timeline/undo.py", "undo"),
)


@pytest.mark.parametrize(
    ("behaviour", "word", "path", "name"), ROOMS, ids=[each[0] for each in ROOMS]
)
def test_a_behaviour_is_in_the_module_that_is_called_so(
    behaviour: str, word: str, path: str, name: str
):
    del behaviour
    assert word in path
    tree = ast.parse((PACKAGE / path).read_text())
    assert name in {each.name for each in ast.walk(tree) if isinstance(each, _DEFINITIONS)}


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
