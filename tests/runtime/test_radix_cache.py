"""Page pool and radix tree against naive models: sets of pages, a dictionary of prefixes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)
from sglk.runtime.page_pool import Page, PageError, PagePool
from sglk.runtime.radix_cache import Node, RadixCache

Prefix = tuple[bytes, ...]

runs = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
keys = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=6).map(tuple)
namespaces = st.sampled_from(["", "salt"])


class Tree(RuleBasedStateMachine):
    """The model: every cached prefix with its page, and how often each is locked."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(24)
        self.tree = RadixCache(self.pool)
        self.cached: dict[tuple[str, Prefix], Page] = {}
        self.locked: list[tuple[str, Prefix]] = []

    def longest(self, namespace: str, wanted: Prefix) -> int:
        count = 0
        while count < len(wanted) and (namespace, wanted[: count + 1]) in self.cached:
            count += 1
        return count

    @rule(target=holders, wanted=keys, namespace=namespaces)
    def acquire(self, wanted: Prefix, namespace: str) -> tuple[Node, str, Prefix]:
        return self.locked_prefix(wanted, namespace)

    def locked_prefix(self, wanted: Prefix, namespace: str) -> tuple[Node, str, Prefix]:
        node, pages = self.tree.acquire(wanted, namespace)
        prefix = wanted[: self.longest(namespace, wanted)]
        assert pages == [self.cached[namespace, prefix[: i + 1]] for i in range(len(prefix))]
        self.locked.append((namespace, prefix))
        return node, namespace, prefix

    @precondition(lambda self: self.cached)
    @rule(target=holders, data=st.data(), more=keys)
    def acquire_known(self, data: st.DataObject, more: Prefix) -> tuple[Node, str, Prefix]:
        namespace, prefix = data.draw(st.sampled_from(sorted(self.cached)))
        return self.locked_prefix(prefix + more, namespace)

    @rule(target=holders, holder=consumes(holders), more=keys)
    def insert(self, holder: tuple[Node, str, Prefix], more: Prefix) -> tuple[Node, str, Prefix]:
        node, namespace, prefix = holder
        pages = self.pool.allocate(len(more))
        if pages is None:
            return holder
        node, kept = self.tree.insert(node, more, pages)
        for count, (own, page) in enumerate(zip(pages, kept, strict=True), 1):
            assert self.cached.setdefault((namespace, prefix + more[:count]), own) == page
        self.locked.remove((namespace, prefix))
        self.locked.append((namespace, prefix + more))
        return node, namespace, prefix + more

    @rule(holder=consumes(holders))
    def unlock(self, holder: tuple[Node, str, Prefix]) -> None:
        self.tree.unlock(holder[0])
        self.locked.remove(holder[1:])

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        evictable = self.tree.num_evictable
        assert self.tree.evict(count) == min(count, evictable)
        left = set(self.tree.pages())
        self.cached = {prefix: page for prefix, page in self.cached.items() if page in left}

    @rule(wanted=keys, namespace=namespaces)
    def match(self, wanted: Prefix, namespace: str) -> None:
        assert len(self.tree.match(wanted, namespace)) == self.longest(namespace, wanted)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.tree.check()
        self.pool.check(self.tree.pages(), [])
        assert dict(contents(self.tree)) == self.cached
        safe = {(n, p[:i]) for n, p in self.locked for i in range(1, len(p) + 1)}
        assert safe <= set(self.cached)
        assert self.tree.num_evictable == len(self.cached) - len(safe)


def contents(tree: RadixCache) -> Iterator[tuple[tuple[str, Prefix], Page]]:
    """Every prefix in the tree with the page of its last key."""
    for root in tree._roots.values():
        yield from _below(root, ())


def _below(node: Node, prefix: Prefix) -> Iterator[tuple[tuple[str, Prefix], Page]]:
    for count, page in enumerate(node.pages, 1):
        yield (node.namespace, prefix + tuple(node.keys[:count])), page
    for child in node.children.values():
        yield from _below(child, prefix + tuple(node.keys))


TestTree = Tree.TestCase
TestTree.settings = runs


class Pool(RuleBasedStateMachine):
    """Pages go round; a handle works in its own state and generation only."""

    held = Bundle("held")
    cached = Bundle("cached")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9)
        self.all_held: list[Page] = []
        self.all_cached: list[Page] = []
        self.gone: list[Page] = []

    @rule(target=held, count=st.integers(0, 9))
    def allocate(self, count: int) -> list[Page]:
        free = self.pool.num_free
        pages = self.pool.allocate(count)
        assert (pages is None) == (count > free)
        self.all_held += pages or []
        return pages or []

    @rule(pages=consumes(held))
    def release(self, pages: list[Page]) -> None:
        self.pool.release(pages)
        self.all_held = [page for page in self.all_held if page not in pages]
        self.gone += pages

    @rule(target=cached, pages=consumes(held))
    def publish(self, pages: list[Page]) -> list[Page]:
        self.pool.publish(pages)
        self.all_held = [page for page in self.all_held if page not in pages]
        self.all_cached += pages
        return pages

    @rule(pages=consumes(cached))
    def evict(self, pages: list[Page]) -> None:
        self.pool.evict(pages)
        self.all_cached = [page for page in self.all_cached if page not in pages]
        self.gone += pages

    @invariant()
    def pages_are_a_partition(self) -> None:
        self.pool.check(self.all_cached, self.all_held)
        assert self.pool.num_cached == len(self.all_cached)
        assert self.pool.num_held == len(self.all_held)

    @invariant()
    def stale_handles_are_refused(self) -> None:
        for page in self.gone[-3:]:
            for use in (self.pool.release, self.pool.publish, self.pool.evict):
                with pytest.raises(PageError, match=f"expected page {page.number}"):
                    use([page])


TestPool = Pool.TestCase
TestPool.settings = runs


def test_a_page_freed_twice_in_one_call_is_refused() -> None:
    pool = PagePool(4)
    pages = pool.allocate(1)
    assert pages is not None
    with pytest.raises(PageError, match="named twice"):
        pool.release([*pages, *pages])


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(PageError, match="one is reserved"):
        PagePool(1)


def test_the_least_recently_used_leaf_goes_first_and_from_its_tail() -> None:
    pool = PagePool(10)
    tree = RadixCache(pool)
    for run in ([b"a", b"b"], [b"a", b"c"], [b"d"]):
        node, _ = tree.acquire(run)
        pages = pool.allocate(len(run) - len(tree.match(run)))
        assert pages is not None
        node, _ = tree.insert(node, run[len(run) - len(pages) :], pages)
        tree.unlock(node)
    tree.match([b"a", b"b"])  # used last now
    for run, left in (([b"a", b"c"], 1), ([b"d"], 0), ([b"a", b"b"], 1), ([b"a"], 0)):
        assert tree.evict(1) == 1
        assert len(tree.match(run)) == left


def test_a_growing_request_stays_one_node() -> None:
    pool = PagePool(50)
    tree = RadixCache(pool)
    node, _ = tree.acquire([])
    for step in range(40):
        pages = pool.allocate(1)
        assert pages is not None
        node, _ = tree.insert(node, [bytes([step])], pages)
    assert len(node.pages) == 40


def test_unlocking_an_unlocked_path_is_our_bug() -> None:
    tree = RadixCache(PagePool(4))
    node, _ = tree.acquire([])
    tree.unlock(node)
    with pytest.raises(AssertionError, match="not locked"):
        tree.unlock(node)


def test_a_lock_that_moves_down_touches_only_the_nodes_it_moves_over() -> None:
    pool = PagePool(20)
    tree = RadixCache(pool)
    ends = [tree.acquire([])[0], tree.acquire([])[0]]
    for step in range(4):  # both say the same, so each page becomes a node
        for place, end in enumerate(ends):
            pages = pool.allocate(1)
            assert pages is not None
            ends[place], _ = tree.insert(end, [bytes([step])], pages)
    above = ends[0].parent
    assert above is not None
    del above.locks  # whoever walks on to the root trips over this
    pages = pool.allocate(2)
    assert pages is not None
    end, _ = tree.insert(ends[0], [b"x"], pages[:1])
    tree.insert(ends[1], [b"y"], pages[1:])
    assert (end.locks, ends[0].locks) == (1, 2)
