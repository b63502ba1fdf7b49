r"""Line diff with the Myers algorithm, bounded in time, patience anchors beyond it; and hunks.

A line ends at `\n` and nowhere else. Common prefixes and suffixes, and lines that occur on one
side only, never reach the search. Beyond the bound, lines that are unique on both sides divide
the texts, and the rest is matched window by window or replaced as a block. The result is always
correct; it is longer than necessary only where the shortest edit script would take too long.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from weakincentives.posix import check_time

_MAX_EDITS = 1_000  # differences up to which the shortest edit script is searched
_MAX_WORK = 1_500_000  # steps in all, about half a second
_WINDOW = 8  # differences looked ahead when time is short
_Pairs = list[tuple[int, int]]


class Block(NamedTuple):
    """Lines `start` to `stop` of the old text, replaced by `new_start` to `new_stop` of the new."""

    start: int
    stop: int
    new_start: int
    new_stop: int


def split_lines(data: bytes) -> list[bytes]:
    """Split into lines with their line ends; the last line may have none."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line + b"\n" for line in lines]
    if last:
        lines.append(last)
    return lines


def changed_blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Block]:
    """Return the differing blocks in order; the lines between them are equal."""
    numbers: dict[bytes, int] = {}
    first = [numbers.setdefault(line, len(numbers)) for line in old]
    second = [numbers.setdefault(line, len(numbers)) for line in new]
    matcher = _Matcher(first, second)
    matcher.run()
    return _slide(_blocks(matcher.only_old, matcher.only_new), first, second)


def hunks(
    old: Sequence[bytes], new: Sequence[bytes], blocks: Sequence[Block], context: int
) -> Iterator[bytes]:
    """Yield the hunks of differing blocks, with `context` lines around them."""
    for group in group_blocks(blocks, 2 * context):
        start = max(group[0].start - context, 0)
        new_start = group[0].new_start - (group[0].start - start)
        stop = min(group[-1].stop + context, len(old))
        new_stop = group[-1].new_stop + (stop - group[-1].stop)
        lines = [b"@@ -%b +%b @@\n" % (_range(start, stop), _range(new_start, new_stop))]
        at = start
        for block in group:
            lines += [_line(b" ", line) for line in old[at : block.start]]
            lines += [_line(b"-", line) for line in old[block.start : block.stop]]
            lines += [_line(b"+", line) for line in new[block.new_start : block.new_stop]]
            at = block.stop
        lines += [_line(b" ", line) for line in old[at:stop]]
        yield b"".join(lines)


def group_blocks(blocks: Sequence[Block], distance: int) -> Iterator[list[Block]]:
    """Yield the blocks in groups with at most `distance` equal lines between two of them."""
    group: list[Block] = []
    for block in blocks:
        if group and block.start - group[-1].stop > distance:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, stop: int) -> bytes:
    length = stop - start
    if length == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (length > 0), length)


def _line(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


class _Matcher:
    """Marks the lines that are only old or only new; the others pair up in order."""

    def __init__(self, old: list[int], new: list[int]) -> None:
        self._old = old
        self._new = new
        self._work = _MAX_WORK
        self.only_old = bytearray(b"\1") * len(old)
        self.only_new = bytearray(b"\1") * len(new)

    def run(self) -> None:
        stack = [Block(0, len(self._old), 0, len(self._new))]
        while stack:
            stack += self._match(self._trim(stack.pop()))

    def _trim(self, block: Block) -> Block:
        """Pair the common prefix and suffix; return the block between them."""
        start, stop, new_start, new_stop = block
        old, new = self._old, self._new
        while start < stop and new_start < new_stop and old[start] == new[new_start]:
            self._pair(start, new_start)
            start += 1
            new_start += 1
        while start < stop and new_start < new_stop and old[stop - 1] == new[new_stop - 1]:
            stop -= 1
            new_stop -= 1
            self._pair(stop, new_stop)
        return Block(start, stop, new_start, new_stop)

    def _match(self, block: Block) -> list[Block]:
        """Pair lines of a block; return the parts that are still to be matched."""
        common = set(self._old[block.start : block.stop])
        common.intersection_update(self._new[block.new_start : block.new_stop])
        if not common or self._work <= 0:
            return []
        at = [i for i in range(block.start, block.stop) if self._old[i] in common]
        new_at = [i for i in range(block.new_start, block.new_stop) if self._new[i] in common]
        self._work -= len(at) + len(new_at)
        search = _GreedySearch([self._old[i] for i in at], [self._new[i] for i in new_at])
        pairs, end = search.advance((0, 0), _affordable(self._work))
        anchors = _anchors(search.old, search.new) if end is not None else []
        if anchors:
            self._work -= search.work
            return self._divide(block, [(at[i], new_at[j]) for i, j in anchors])
        if end is not None:
            pairs += search.rest(end, self._work)
        self._work -= search.work
        for i, j in pairs:
            self._pair(at[i], new_at[j])
        return []

    def _divide(self, block: Block, anchors: _Pairs) -> list[Block]:
        """Pair the anchors; return the blocks between them."""
        for i, j in anchors:
            self._pair(i, j)
        edges = [(block.start - 1, block.new_start - 1), *anchors, (block.stop, block.new_stop)]
        return [
            Block(left[0] + 1, right[0], left[1] + 1, right[1])
            for left, right in pairwise(edges)
            if left[0] + 1 < right[0] and left[1] + 1 < right[1]
        ]

    def _pair(self, i: int, j: int) -> None:
        self.only_old[i] = self.only_new[j] = 0


class _GreedySearch:
    """Myers' greedy search for the shortest edit script, which can stop early."""

    def __init__(self, old: list[int], new: list[int]) -> None:
        self.old = old
        self.new = new
        self.work = 0

    def rest(self, point: tuple[int, int], work: int) -> _Pairs:
        """Return pairs from `point` on, window by window while there is work left."""
        pairs: _Pairs = []
        end: tuple[int, int] | None = point
        while end is not None and self.work < work:
            left = len(self.old) - end[0] + len(self.new) - end[1]
            window = min(_MAX_EDITS, max(_WINDOW, 2 * (work - self.work) // (left + 1)))
            more, end = self.advance(end, window)
            pairs += more
        return pairs

    def advance(self, point: tuple[int, int], limit: int) -> tuple[_Pairs, tuple[int, int] | None]:
        """Return the pairs of the best path from `point` with up to `limit` differences.

        Also return where that path ends, or None if it reaches the end of both texts.
        """
        base, new_base = point
        size, new_size = len(self.old) - base, len(self.new) - new_base
        reach = [0] * (2 * limit + 3)  # the furthest x on each diagonal; the middle is diagonal 0
        trace: list[list[int]] = []
        for edits in range(limit + 1):
            check_time("Diff")
            trace.append(reach[limit - edits : limit + edits + 3])
            if self._step(point, reach, edits):
                return self._back(trace, point, (size, new_size)), None
        _, x, y = max(_points(reach, limit, size, new_size))
        return self._back(trace, point, (x, y)), (base + x, new_base + y)

    def _step(self, point: tuple[int, int], reach: list[int], edits: int) -> bool:
        """Extend every diagonal as far as possible with `edits`; return whether one is complete."""
        old, new = self.old, self.new
        base, new_base = point
        size, new_size = len(old) - base, len(new) - new_base
        middle = len(reach) // 2
        work = 0
        for k in _diagonals(edits, size, new_size):
            down, right = reach[middle + k + 1], reach[middle + k - 1] + 1
            x = down if k == -edits or (k != edits and right <= down) else right
            start = x
            y = x - k
            while x < size and y < new_size and old[base + x] == new[new_base + y]:
                x += 1
                y += 1
            reach[middle + k] = x
            work += x - start + 1
            if x >= size and y >= new_size:
                return True
        self.work += work
        return False

    def _back(self, trace: list[list[int]], point: tuple[int, int], end: tuple[int, int]) -> _Pairs:
        """Backtrack from `end`; return the pairs of the path in order."""
        x, y = end
        pairs: _Pairs = []
        for edits in range(len(trace) - 1, -1, -1):
            reach = trace[edits]  # as it was before the step; diagonal k is at k + edits + 1
            k = x - y
            down, right = reach[k + edits + 2], reach[k + edits] + 1
            from_above = k == -edits or (k != edits and right <= down)
            start = 0 if edits == 0 else down if from_above else right
            while x > start:
                x -= 1
                y -= 1
                pairs.append((point[0] + x, point[1] + y))
            if from_above:
                y -= 1
            else:
                x -= 1
        pairs.reverse()
        return pairs


def _affordable(work: int) -> int:
    """Return how many differences the remaining work allows; n of them take n * n / 2 steps."""
    return min(_MAX_EDITS, max(_WINDOW, int((2 * max(work, 0)) ** 0.5)))


def _diagonals(edits: int, size: int, new_size: int) -> range:
    """Return the diagonals on which a path with `edits` can be inside the texts."""
    lowest = -edits + 2 * max(0, edits - new_size)
    return range(lowest, edits - 2 * max(0, edits - size) + 1, 2)


def _points(
    reach: list[int], edits: int, size: int, new_size: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the progress and the end point of each diagonal that is inside the texts."""
    for k in _diagonals(edits, size, new_size):
        x = reach[len(reach) // 2 + k]
        if x <= size and x - k <= new_size:
            yield 2 * x - k, x, x - k


def _anchors(old: list[int], new: list[int]) -> _Pairs:
    """Return the longest chain of pairs of lines that are unique on both sides."""
    once, new_once = Counter(old), Counter(new)
    where = {line: j for j, line in enumerate(new) if new_once[line] == 1}
    pairs = [(i, where[line]) for i, line in enumerate(old) if once[line] == 1 and line in where]
    tails: list[int] = []  # the smallest end of a chain of each length
    places: list[int] = []  # which pair that is
    before: list[int] = []
    for place, (_, j) in enumerate(pairs):
        length = bisect_left(tails, j)
        before.append(places[length - 1] if length else -1)
        tails[length : length + 1] = [j]
        places[length : length + 1] = [place]
    chain: _Pairs = []
    place = places[-1] if places else -1
    while place >= 0:
        chain.append(pairs[place])
        place = before[place]
    chain.reverse()
    return chain


def _blocks(only_old: bytearray, only_new: bytearray) -> list[Block]:
    blocks: list[Block] = []
    i = j = 0
    while i < len(only_old) or j < len(only_new):
        # the next differing line on either side; up to there the lines pair up
        step = min(_distance(only_old, i), _distance(only_new, j))
        i, j = i + step, j + step
        stop, new_stop = _end_of(only_old, i), _end_of(only_new, j)
        if stop > i or new_stop > j:
            blocks.append(Block(i, stop, j, new_stop))
        i, j = stop, new_stop
    return blocks


def _distance(flags: bytearray, at: int) -> int:
    found = flags.find(1, at)
    return (len(flags) if found < 0 else found) - at


def _end_of(flags: bytearray, at: int) -> int:
    found = flags.find(0, at)
    return len(flags) if found < 0 else found


def _slide(blocks: list[Block], old: list[int], new: list[int]) -> list[Block]:
    """Slide pure insertions and removals down as far as the text stays the same.

    A function added between two others is then shown from its first line to its last.
    """
    end = Block(len(old) + 1, len(old) + 1, len(new) + 1, len(new) + 1)
    slid: list[Block] = []
    for block, following in pairwise([*blocks, end]):
        step = 0
        if block.start == block.stop or block.new_start == block.new_stop:
            inserted = block.start == block.stop
            lines = new if inserted else old
            first, last = (block.new_start, block.new_stop) if inserted else block[:2]
            room = following.start - block.stop - 1  # a line between them stays
            while step < room and lines[first + step] == lines[last + step]:
                step += 1
        slid.append(Block(*(edge + step for edge in block)))
    return slid
