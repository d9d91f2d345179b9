"""The prefix cache: a radix tree whose letters are whole pages of tokens. Chip-independent.

An edge holds a run of page keys (the tokens of a page as bytes) and the pages that hold their keys
and values. A match is the longest run of whole pages; of a page that matches in part, the request
recomputes all tokens, because a page has one owner. `shared_bytes` tells how much that was.
A locked path cannot be evicted; unlocked leaves leave in LRU order, from their tail.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from .page_pool import Page, PagePool


class Node:
    """A run of pages below ``parent``. ``locks`` counts the requests using it or a descendant."""

    __slots__ = (
        "children", "first_keys", "is_queued", "keys", "last_used", "locks", "namespace", "pages",
        "parent",
    )  # fmt: skip

    def __init__(
        self, namespace: str, parent: Node | None, keys: list[bytes], pages: list[Page]
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.keys = keys
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.first_keys: list[bytes] = []
        """The keys of `children`, sorted: the closest to any other key are its neighbours."""
        self.locks = 0
        self.last_used = 0
        self.is_queued = False

    def adopt(self, child: Node) -> None:
        """File a child under its first key, in the place of one that has the same."""
        key = child.keys[0]
        if key not in self.children:
            insort(self.first_keys, key)
        self.children[key] = child

    def drop(self, child: Node) -> None:
        """Forget a child."""
        key = child.keys[0]
        del self.children[key]
        del self.first_keys[bisect_left(self.first_keys, key)]


class RadixCache:
    """Prefixes that some request has computed, per namespace (a tenant's salt, an adapter's hash).

    >>> pool = PagePool(8)
    >>> cache = RadixCache(pool)
    >>> root, _ = cache.acquire([])
    >>> node, pages = cache.insert(root, [b"ab", b"cd"], pool.allocate(2))
    >>> cache.match([b"ab", b"xx"]) == pages[:1]
    True
    >>> cache.unlock(node)
    >>> cache.evict(2)
    2
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._roots: dict[str, Node] = {}
        # Roots that were flushed while requests used them: out of reach, until nothing is left.
        self._flushed: set[Node] = set()
        self._clock = itertools.count(1)
        self._order = itertools.count()
        # Leaves to evict, oldest first; entries may be outdated and are checked when popped.
        self._queue: list[tuple[int, int, Node]] = []
        self.num_evictable = 0

    def match(self, keys: Sequence[bytes], namespace: str = "") -> list[Page]:
        """The pages of the longest cached prefix of ``keys``."""
        root = self._roots.get(namespace)
        return [] if root is None else self._descend(root, keys)[1]

    def acquire(self, keys: Sequence[bytes], namespace: str = "") -> tuple[Node, list[Page]]:
        """Lock the longest cached prefix of ``keys``: the node where it ends, and its pages."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(namespace, None, [], [])
        node, pages = self._descend(root, keys)
        self._lock(node)
        return node, pages

    def insert(
        self, node: Node, keys: Sequence[bytes], pages: Sequence[Page]
    ) -> tuple[Node, list[Page]]:
        """Publish held ``pages`` below ``node``; the caller's lock on it moves to the new end.

        Where another request published the same keys meanwhile, its pages are kept and the caller's
        are released. Returns the new end and the pages that the tree holds for ``keys``.
        """
        end, kept = self._descend(node, keys)
        done = len(kept)
        self._pool.release(pages[:done])
        if done < len(keys):
            self._pool.publish(pages[done:])
            end = self._append(node, end, list(keys[done:]), list(pages[done:]))
        self._lock(end, below=node)
        return end, [*kept, *pages[done:]]

    def unlock(self, node: Node) -> None:
        """Give one lock of the path back."""
        step: Node | None = node
        while step is not None:
            if step.locks < 1:
                raise AssertionError("radix cache: unlocked a path that is not locked")
            step.locks -= 1
            if step.locks == 0:
                self.num_evictable += len(step.pages)
                self._offer(step)
            step = step.parent

    def evict(self, count: int) -> int:
        """Free up to ``count`` unlocked pages, least recently used first; how many it was."""
        freed = 0
        while freed < count and self._queue:
            used, _, leaf = heapq.heappop(self._queue)
            leaf.is_queued = False
            if leaf.locks or leaf.children:
                continue
            if leaf.last_used != used:
                self._offer(leaf)
                continue
            freed += self._trim(leaf, count - freed)
        return freed

    def flush(self) -> int:
        """Forget every prefix: nothing cached so far is matched again. How many pages are free now.

        Pages that requests are using leave when these end, as the least recently used.
        """
        freed = self.evict(self.num_evictable)
        self._flushed.update(self._roots.values())
        self._roots = {}
        return freed

    def shared_bytes(self, node: Node, key: bytes) -> int:
        """How many leading bytes ``key`` has in common with a page that follows ``node``."""
        place = bisect_left(node.first_keys, key)
        near = node.first_keys[max(0, place - 1) : place + 1]
        return max((_shared_bytes(key, other) for other in near), default=0)

    def pages(self) -> list[Page]:
        """Every page in the tree."""
        return [page for node in self._nodes() for page in node.pages]

    def check(self) -> None:
        """Raise AssertionError when counters and tree disagree."""
        unlocked = [node for node in self._nodes() if not node.locks]
        evictable = sum(len(node.pages) for node in unlocked)
        if evictable != self.num_evictable:
            raise AssertionError(f"radix cache: counted {self.num_evictable}, found {evictable}")
        for node in self._nodes():
            if node.locks < sum(child.locks for child in node.children.values()):
                raise AssertionError("radix cache: a child is locked more often than its parent")
            if not node.locks and not node.children and node.parent and not node.is_queued:
                raise AssertionError("radix cache: an unlocked leaf can never be evicted")
            if any(key != child.keys[0] for key, child in node.children.items()):
                raise AssertionError("radix cache: a child is filed under a wrong key")
            if node.first_keys != sorted(node.children):
                raise AssertionError("radix cache: the sorted keys are not those of the children")

    def _lock(self, node: Node, below: Node | None = None) -> None:
        """Protect the path to ``node`` from the root, or from ``below``, which is locked already.

        A lock that moves down costs what it moves: where many requests say the same, each of their
        pages is a node, and the way to the root as long as the answer.
        """
        step: Node | None = node
        while step is not None and step is not below:
            if step.locks == 0:
                self.num_evictable -= len(step.pages)
            step.locks += 1
            step = step.parent

    def _descend(self, node: Node, keys: Sequence[bytes]) -> tuple[Node, list[Page]]:
        now = next(self._clock)
        pages: list[Page] = []
        node.last_used = now
        while len(pages) < len(keys) and (child := node.children.get(keys[len(pages)])) is not None:
            shared = _shared_length(child.keys, keys, len(pages))
            node = child if shared == len(child.keys) else self._split(child, shared)
            node.last_used = now
            pages.extend(node.pages)
        return node, pages

    def _split(self, node: Node, at: int) -> Node:
        """Cut a run in two; ``node`` stays the lower part, so locks held on it stay right."""
        assert node.parent is not None
        upper = Node(node.namespace, node.parent, node.keys[:at], node.pages[:at])
        upper.locks, upper.last_used = node.locks, node.last_used
        node.parent.adopt(upper)
        node.parent, node.keys, node.pages = upper, node.keys[at:], node.pages[at:]
        upper.adopt(node)
        return upper

    def _append(self, start: Node, end: Node, keys: list[bytes], pages: list[Page]) -> Node:
        if end is start and end.parent is not None and not end.children and end.locks == 1:
            # Only the caller uses this leaf: a growing request stays one node.
            end.keys.extend(keys)
            end.pages.extend(pages)
            return end
        child = Node(end.namespace, end, keys, pages)
        child.last_used = end.last_used
        end.adopt(child)
        self.num_evictable += len(pages)
        return child

    def _offer(self, node: Node) -> None:
        """Queue an unlocked leaf for eviction; drop a root that nothing needs any more."""
        if node.locks or node.children:
            return
        if node.parent is None:
            self._flushed.discard(node)
            if self._roots.get(node.namespace) is node:
                del self._roots[node.namespace]
        elif not node.is_queued:
            node.is_queued = True
            heapq.heappush(self._queue, (node.last_used, next(self._order), node))

    def _trim(self, leaf: Node, count: int) -> int:
        """Evict from the tail of a leaf; the whole leaf goes when nothing of it is left."""
        gone = leaf.pages[-count:]
        keep = len(leaf.pages) - len(gone)
        self._pool.evict(gone)
        self.num_evictable -= len(gone)
        if keep:
            del leaf.keys[keep:], leaf.pages[keep:]
            self._offer(leaf)
            return len(gone)
        parent = leaf.parent
        assert parent is not None
        parent.drop(leaf)
        self._offer(parent)
        return len(gone)

    def _nodes(self) -> Iterator[Node]:
        stack = [*self._roots.values(), *self._flushed]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


def _shared_bytes(mine: bytes, theirs: bytes) -> int:
    low, high = 0, min(len(mine), len(theirs))
    while low < high:  # binary search: comparing slices is much faster than a loop over bytes
        middle = (low + high + 1) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shared_length(run: Sequence[bytes], keys: Sequence[bytes], start: int) -> int:
    count = 0
    for mine, theirs in zip(run, itertools.islice(keys, start, None), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
