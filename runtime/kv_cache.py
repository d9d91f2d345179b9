"""The pages of a request over its life: match, allocate, grow, publish, release.

Joins the page pool (who owns a page) and the radix cache (which tokens it holds), so that the
scheduler never touches a page itself. Each method changes everything or nothing.

Where a model keeps states beside the pages, a request with pages has a slot of them too. A slot
holds the state after a request's last token alone, so no prefix is taken over: no cache then.
"""

from __future__ import annotations

from collections.abc import Iterable

from .page_pool import Page, PagePool
from .radix_cache import Node, RadixCache
from .request import Request


class KVCache:
    """Page accounting for requests. Waiting requests own neither pages nor locks."""

    def __init__(
        self, num_pages: int, page_size: int, *, prefix_cache: bool = True, state_slots: int = 0
    ) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.tree = RadixCache(self.pool)
        self.prefix_cache = prefix_cache
        self.slots = PagePool(state_slots) if state_slots else None
        """Who owns which slot, by the rules of pages; slot 0 is reserved."""

    @property
    def num_available(self) -> int:
        """Pages that can be had without preempting anyone."""
        return self.pool.num_free + self.tree.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

    def is_cached(self, request: Request) -> bool:
        """Whether a request takes part in the prefix cache."""
        return self.prefix_cache and request.uses_cache

    def matched_pages(self, request: Request) -> int:
        """How many pages of a waiting request the tree holds, as `attach` would find them."""
        return len(self.tree.match(self._usable_keys(request), request.namespace))

    def attach(self, request: Request, spare: int = 0) -> bool:
        """Give a waiting request pages for all its tokens, reusing the longest cached prefix.

        False and no change unless ``spare`` more pages would remain available. At least one token
        is left to compute, and a partly filled page is never shared.
        """
        node, cached = self.tree.acquire(self._usable_keys(request), request.namespace)
        fresh = self._allocate(self.pages_for(request.num_tokens) - len(cached), spare)
        if fresh is None:
            self.tree.unlock(node)
            return False
        if self.slots is not None:
            request.slot = self._slot(self.slots)
        request.node = node
        request.num_published = len(cached)
        request.num_computed = len(cached) * self.page_size
        if not request.num_preemptions:
            request.num_cached = request.num_computed
            request.num_matched = request.num_computed + self._matched_in_page(request, node)
        self._give(request, [*cached, *fresh])
        return True

    def grow(self, request: Request) -> bool:
        """Make sure that the next token of a running request has a slot; False: no page is left."""
        missing = self.pages_for(request.num_tokens) - len(request.pages)
        if missing <= 0:
            return True
        fresh = self._allocate(missing, 0)
        if fresh is None:
            return False
        self._give(request, fresh)
        return True

    def publish(self, request: Request) -> None:
        """Put the pages that a finished step has filled into the tree.

        Where another request was first, its pages replace ours.
        """
        full = request.num_computed // self.page_size
        start = request.num_published
        if full == start or not self.is_cached(request):
            return
        assert request.node is not None
        keys = request.page_keys(self.page_size, full, start)
        request.node, kept = self.tree.insert(request.node, keys, request.pages[start:full])
        request.replace_pages(start, kept)
        request.num_published = full

    def release(self, request: Request) -> None:
        """Take every page and lock away from a request; published pages stay in the tree."""
        self.pool.release(request.pages[request.num_published :])
        if request.node is not None:
            self.tree.unlock(request.node)
        if self.slots is not None and request.slot is not None:
            self.slots.release([request.slot])
        request.slot = None
        request.drop_pages()

    def flush(self) -> int:
        """Forget all prefixes; pages that no request uses are free at once: how many it was."""
        return self.tree.flush()

    def check(self, requests: Iterable[Request]) -> None:
        """Raise unless free, cached and held pages are a partition and all counters are right."""
        requests = list(requests)
        held = [page for request in requests for page in request.pages[request.num_published :]]
        self.pool.check(self.tree.pages(), held)
        if self.slots is not None:
            self.slots.check([], [r.slot for r in requests if r.slot is not None])
        self.tree.check()
        for request in requests:
            indices = [page.number for page in request.pages]
            if request.page_row[: len(indices)].tolist() != indices:
                raise AssertionError(f"request {request.id}: page row and pages differ")
            if request.num_slots != len(indices) * self.page_size:
                raise AssertionError(f"request {request.id}: its slots are not those of its pages")

    def _slot(self, slots: PagePool) -> Page:
        """There is one for every request that may run, and who starts is one of them."""
        found = slots.allocate(1)
        if found is None:
            raise AssertionError("kv cache: more requests run than there are slots of states")
        return found[0]

    def _give(self, request: Request, pages: list[Page]) -> None:
        request.add_pages(pages)
        request.num_slots = len(request.pages) * self.page_size

    def _usable_keys(self, request: Request) -> list[bytes]:
        if not self.is_cached(request):
            return []
        return request.page_keys(self.page_size, (request.num_tokens - 1) // self.page_size)

    def _matched_in_page(self, request: Request, node: Node) -> int:
        """Tokens of the first page to compute that some cached page begins with as well."""
        if not self.is_cached(request):
            return 0
        start = request.num_computed
        page = request.tokens[start : start + self.page_size].tobytes()
        return self.tree.shared_bytes(node, page) // request.tokens.itemsize

    def _allocate(self, count: int, spare: int) -> list[Page] | None:
        if count + spare > self.num_available:
            return None
        shortage = count - self.pool.num_free
        if shortage > 0:
            self.tree.evict(shortage)
        return self.pool.allocate(count)
