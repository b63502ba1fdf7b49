"""W6: grep the standard library on the host."""

from collections import Counter
from collections.abc import Callable, Iterator

from benchmarks.goals import within_limit
from benchmarks.harness import Absent, Case, Contender, Workload, expect
from benchmarks.limits import RG, find_bytes, ripgrep_count, walk_contents
from benchmarks.ours import OurHost
from benchmarks.peers import host_peers
from benchmarks.questions import QUESTIONS, Question, answer_to, expect_hits, text_files
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

LIMIT = "rg --count"
# The first is for a backend that lets `rg` search, the second for one with an engine of its own.
GOALS = (within_limit(1.6, LIMIT), within_limit(4.5, LIMIT))


def cases(stage: Stage) -> Iterator[Case]:
    """A literal, an expression, and an expression that finds nothing and holds no literal."""
    corpus = stage.library()
    texts = text_files(corpus.contents())
    makers, absent = host_peers()
    peers = [stage.keep(make(corpus.root)) for make in makers]
    ours = stage.keep(OurHost(corpus.root))
    for question in QUESTIONS:
        expected = answer_to(question, texts)

        def check(subject: Subject, answer: object, expected=expected) -> None:
            expect_hits(subject.hits(answer), expected, texts)

        def ask(subject: Subject, pattern: str = question.pattern) -> Callable[[], object]:
            return lambda: subject.grep(pattern)

        able = [peer for peer in peers if question.literal or not peer.literal_only]
        unable = tuple(
            Absent(peer.name, "cannot: literal text only") for peer in peers if peer not in able
        )
        counts = Counter(path for path, _ in expected)
        limit, missing = _limit(stage, question, counts, texts)
        contenders = (*race("ours", [ours], ask, check), limit, *race("peer", able, ask, check))
        name = f"grep {corpus.name}, {question.name}"
        yield Case(name, contenders, GOALS, absent + unable + missing)


def _limit(
    stage: Stage, question: Question, counts: Counter[str], texts: dict[str, bytes]
) -> tuple[Contender, tuple[Absent, ...]]:
    """`rg` where it is present; else reading every file and looking for bytes."""
    root = stage.library().root
    if RG is not None:

        def check(answer: object) -> None:
            found = {path: n for path, n in answer.items() if path in texts}  # pyright: ignore[reportAttributeAccessIssue] - a dict of counts
            expect(found, dict(counts), "lines in each file")

        run = lambda: ripgrep_count(root, question.pattern)  # noqa: E731 - two alternatives, one name
        return Contender(LIMIT, "limit", run, check, threads=True), ()
    needle = question.pattern.encode()
    bare = Contender(
        "read every file + bytes.find",
        "limit",
        lambda: find_bytes(dict(walk_contents(root)), needle),
        lambda _answer: None,
    )
    return bare, (Absent(LIMIT, "not on PATH: install ripgrep"),)


WORKLOAD = Workload("W6", "grep the standard library, host", cases)
