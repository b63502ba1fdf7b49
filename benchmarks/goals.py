"""Goals in the words of the table: a multiple of the limit, of the peers, or a time."""

from collections.abc import Callable, Iterable

from benchmarks.harness import Goal, Outcome

NOT_JUDGED = "not judged: no figure to compare with"
UNFAIR = "not judged: it uses several threads, take --clock wall"


def within_limit(factor: float, limit: str = "") -> Goal:
    """Ours takes at most `factor` times the limit (the first one, or the one named)."""

    def judge(outcomes: list[Outcome]) -> tuple[bool | None, str]:
        mine = time_of(outcomes, "ours")
        bounds = [o for o in outcomes if o.role == "limit" and limit in o.name and o.comparable]
        if mine is None or not bounds or not (bound := bounds[0].median):
            return None, NOT_JUDGED
        if bounds[0].unfair or _is_unfair(outcomes):
            return None, UNFAIR
        return mine <= factor * bound, f"{mine / bound:.2f} x"

    return Goal(f"<= {factor:g} x {limit or 'limit'}", judge)


def faster_than_peers(factor: float) -> Goal:
    """Every peer takes at least `factor` times as long as ours."""

    def judge(outcomes: list[Outcome]) -> tuple[bool | None, str]:
        mine, peer = time_of(outcomes, "ours"), best_peer(outcomes)
        if mine is None or peer is None or peer.median is None:
            return None, NOT_JUDGED
        if peer.unfair or _is_unfair(outcomes):
            return None, UNFAIR
        more = "> " if peer.status == "unfinished" else ""
        return peer.median >= factor * mine, f"{more}{peer.median / mine:.1f} x"

    text = "faster than every peer" if factor == 1 else f">= {factor:g} x faster than every peer"
    return Goal(text, judge)


def faster_than(peer: str, factor: float) -> Goal:
    """The peers of that name take at least `factor` times as long as ours."""

    def judge(outcomes: list[Outcome]) -> tuple[bool | None, str]:
        named = [o for o in outcomes if o.role != "peer" or peer in o.name]
        return faster_than_peers(factor).judge(named)

    return Goal(f">= {factor:g} x faster than {peer}", judge)


def not_slower_than_peers(factor: float) -> Goal:
    """Ours takes at most `factor` times what the best peer takes."""

    def judge(outcomes: list[Outcome]) -> tuple[bool | None, str]:
        mine, peer = time_of(outcomes, "ours"), best_peer(outcomes)
        if mine is None or peer is None or not peer.median:
            return None, NOT_JUDGED
        if peer.unfair or _is_unfair(outcomes):
            return None, UNFAIR
        return mine <= factor * peer.median, f"{mine / peer.median:.2f} x"

    return Goal(f"<= {factor:g} x best peer", judge)


def at_most(seconds: float) -> Goal:
    """Ours takes at most this time, at every size that takes part."""

    def judge(outcomes: list[Outcome]) -> tuple[bool | None, str]:
        mine = [o.median for o in outcomes if o.role == "ours" and o.comparable]
        slowest = max((median for median in mine if median is not None), default=None)
        return (None, NOT_JUDGED) if slowest is None else (slowest <= seconds, show(slowest))

    return Goal(f"<= {show(seconds)}", judge)


def beats_limit(outcomes: Iterable[Outcome]) -> bool:
    """Whether ours took clearly less than what is said to be the least possible."""
    given = list(outcomes)
    mine, limit = time_of(given, "ours"), time_of(given, "limit")
    return mine is not None and limit is not None and mine < 0.9 * limit


def _is_unfair(outcomes: Iterable[Outcome]) -> bool:
    """Whether the clock added up threads of ours."""
    return any(o.unfair for o in outcomes if o.role == "ours")


def time_of(outcomes: Iterable[Outcome], role: str) -> float | None:
    """The median of the first contender in that role that answered."""
    return next((o.median for o in outcomes if o.role == role and o.comparable), None)


# The factors for the host were set against the peer that is a workspace for agents. The general
# libraries do less for each call; PyFilesystem2's glob is itself within five times the bare walk.
AGENTS = "deepagents"


def best_peer(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The fastest peer with a right answer, else the one that got furthest without an end."""
    peers = [o for o in outcomes if o.role == "peer" and o.comparable]
    key: Callable[[Outcome], tuple[bool, float]] = lambda o: (  # noqa: E731 - typed once, used once
        o.status != "ok",
        o.median or 0.0,
    )
    return min(peers, key=key, default=None)


def show(seconds: float | None) -> str:
    """Write a time with three figures and the unit that suits it."""
    if seconds is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds:.0f} s"
    return f"{seconds / 1e-9:.3g} ns"
