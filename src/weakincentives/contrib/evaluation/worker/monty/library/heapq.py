"""Heaps: the functions of `heapq`."""

from typing import Any


def heappush(heap: list[Any], item: Any) -> None:
    """Push an item onto the heap."""
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


def heappop(heap: list[Any]) -> Any:
    """Pop the smallest item off the heap."""
    last = heap.pop()
    if not heap:
        return last
    smallest = heap[0]
    heap[0] = last
    _sift_up(heap, 0)
    return smallest


def heapify(heap: list[Any]) -> None:
    """Turn a list into a heap, in place."""
    for position in reversed(range(len(heap) // 2)):
        _sift_up(heap, position)


def heapreplace(heap: list[Any], item: Any) -> Any:
    """Pop the smallest item, and push another."""
    smallest = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return smallest


def heappushpop(heap: list[Any], item: Any) -> Any:
    """Push an item, and pop the smallest."""
    if heap and heap[0] < item:
        return heapreplace(heap, item)
    return item


def nlargest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    """Return the n largest items, the largest first."""
    return sorted(iterable, key=key, reverse=True)[: max(n, 0)]


def nsmallest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    """Return the n smallest items, the smallest first."""
    return sorted(iterable, key=key)[: max(n, 0)]


def merge(*iterables: Any, key: Any = None, reverse: bool = False) -> Any:
    """Return the items of sorted inputs, sorted."""
    return iter(sorted([item for each in iterables for item in each], key=key, reverse=reverse))


def _sift_down(heap: list[Any], start: int, position: int) -> None:
    item = heap[position]
    while position > start:
        parent = (position - 1) // 2
        if not item < heap[parent]:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item


def _sift_up(heap: list[Any], position: int) -> None:
    end, start, item = len(heap), position, heap[position]
    child = 2 * position + 1
    while child < end:
        right = child + 1
        if right < end and not heap[child] < heap[right]:
            child = right
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _sift_down(heap, start, position)
