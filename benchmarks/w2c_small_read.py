"""W2c: read a small file on the host."""

from collections.abc import Callable, Iterator

from benchmarks.goals import at_most
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.limits import read_file
from benchmarks.ours import OurHost
from benchmarks.peers import host_peers
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

PATH = "d0003/f000321.py"


def cases(stage: Stage) -> Iterator[Case]:
    """One file among a thousand, read again and again."""
    corpus = stage.tree(1_000)
    place = str(corpus.root / PATH)
    text = (corpus.root / PATH).read_text()

    def check(subject: Subject, answer: object) -> None:
        expect(subject.text(answer), text, "text")

    def ask(subject: Subject) -> Callable[[], object]:
        return lambda: subject.read(PATH)

    makers, absent = host_peers()
    peers = [stage.keep(make(corpus.root)) for make in makers]
    ours = race("ours", [stage.keep(OurHost(corpus.root))], ask, check, repeat=0)
    others = race("peer", peers, ask, check, repeat=0)
    limit = Contender(
        "open + read + close",
        "limit",
        lambda: read_file(place),
        lambda answer: expect(answer, text.encode(), "bytes"),
        repeat=0,
    )
    goals = (at_most(25e-6),)
    yield Case("small read", (*ours, limit, *others), goals, absent)


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth read costs what the first ones cost."""
    ours = stage.keep(OurHost(stage.tree(1_000).root))
    yield cost_per_call("read on the host", lambda: ours.read(PATH))


WORKLOAD = Workload("W2c", "small read, host", cases, facts)
