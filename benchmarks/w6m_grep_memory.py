"""W6m: grep the standard library in memory."""

from collections.abc import Callable, Iterator

from benchmarks.goals import faster_than_peers
from benchmarks.harness import Absent, Case, Contender, Workload, expect
from benchmarks.limits import find_bytes
from benchmarks.ours import OurMemory
from benchmarks.peers import memory_peers
from benchmarks.questions import QUESTIONS, answer_to, expect_hits, text_files
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

FASTER = (7, 5, 4)
NEEDLE = b"DeprecationWarning"


def cases(stage: Stage) -> Iterator[Case]:
    """A literal, an expression, and an expression that finds nothing and holds no literal."""
    corpus = stage.library()
    files = corpus.contents()
    texts = text_files(files)
    makers, absent = memory_peers()
    ours, *peers = [make() for make in (OurMemory, *makers)]
    for subject in (ours, *peers):
        subject.load(files)
    holding = [path for path, content in files.items() if NEEDLE in content]
    limit = Contender(
        "bytes.find",
        "limit",
        lambda: find_bytes(files, NEEDLE),
        lambda answer: expect(answer, holding, "files"),
    )
    for question, factor in zip(QUESTIONS, FASTER, strict=True):
        expected = answer_to(question, texts)

        def check(subject: Subject, answer: object, expected=expected) -> None:
            expect_hits(subject.hits(answer), expected, texts)

        def ask(subject: Subject, pattern: str = question.pattern) -> Callable[[], object]:
            return lambda: subject.grep(pattern)

        able = [peer for peer in peers if question.literal or not peer.literal_only]
        unable = tuple(
            Absent(peer.name, "cannot: literal text only") for peer in peers if peer not in able
        )
        contenders = (*race("ours", [ours], ask, check), limit, *race("peer", able, ask, check))
        name = f"grep {corpus.name}, {question.name}"
        yield Case(name, contenders, (faster_than_peers(factor),), absent + unable)


WORKLOAD = Workload("W6m", "grep the standard library, memory", cases)
