"""The launches of every class of steps: prepared once, then one graph each.

A step is the programs "place_tokens" (puts in tokens that the step before chose, and moves inputs
on), "step", and, if they are there, "argmax" or "sample" on all its rows. Decode steps become a
graph at once, others when their class comes again and the device might wait for plain launches. The
device runs these while the host makes the graph. The first graph of a bucket is compared with plain
launches on the same inputs before it counts: a step writes the same keys and values however often
it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .... import knobs
from ....errors import DeviceError
from ...device import StepSizes
from .bound_program import BoundProgram, Launches
from .driver import Driver, Handle
from .memory import DeviceMemory
from .profile import LaunchTimer, TimedCall
from .reader import Reader
from .step_layout import IS_NEXT, LANDS, SLOT, TURN, StepLayout
from .step_sizes import padded
from .weights import REGION as WEIGHTS

STEP, ARGMAX, SAMPLE, PLACE = "step", "argmax", "sample", "place_tokens"
NO_ENDING = ""
INPUTS, IDS, LOGITS = ("inputs", ""), ("output", "ids"), ("output", "logits")
MAX_RECIPES = 160
"""Classes that are kept; the one that was not used for longest goes first."""
MAX_KNOWN_SIZES = 4096
COMPARED_ROWS = 8
MAX_DIFFERENCE = 2e-2
"""Relative, in L2: atomic additions may come in another order, a wrong address is far off."""
MODES = ("check", "trust", "off")
LAUNCH_SECONDS = 4e-6
"""Of the host, for a launch without a graph."""
MOST_RATE = 1e15
"""Tokens a second times bytes of weights: no device does an operation per byte and token faster."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Recipe:
    """One class of steps with one ending."""

    sizes: StepSizes
    ending: str
    layout: StepLayout
    launches: list[Handle]
    kept: list[Launches]
    """Keeps the arguments alive."""
    bucket: int
    inputs_address: int
    ids_address: int
    logits_address: int
    graph: Handle | None = None
    num_uses: int = 0
    last_use: int = 0


class RecipeBook:
    """Recipes by class, and how they run."""

    def __init__(
        self,
        driver: Driver,
        stream: Handle,
        memory: DeviceMemory,
        programs: Mapping[str, BoundProgram],
        layouts: tuple[int, int, int],
        reader: Reader,
        landing: tuple[int, int],
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._memory = memory
        self._programs = programs
        self._layout_sizes = layouts
        """(page_size, num_pages, vocab_size)"""
        self._reader = reader
        self._landing = landing
        """Address and bytes of the pinned memory that tokens go to."""
        self._recipes: dict[tuple[StepSizes, str], Recipe] = {}
        self._by_sizes: dict[tuple[StepSizes, str], Recipe] = {}
        """The same by the sizes of steps before padding."""
        self._num_steps = 0
        self._layouts: dict[StepSizes, StepLayout] = {}
        self._generation = memory.generation
        self._checked: set[tuple[int, str]] = set()
        self._mode = _mode()
        self.timer: LaunchTimer | None = None
        """Set: launches are timed one by one."""

    def get(self, sizes: StepSizes, ending: str) -> Recipe:
        """The recipe for a step of these sizes."""
        if self._generation != self._memory.generation:
            self._forget()
        self._num_steps += 1
        recipe = self._by_sizes.get((sizes, ending))
        if recipe is None:
            recipe = self._find(padded(sizes), ending)
            if len(self._by_sizes) >= MAX_KNOWN_SIZES:
                self._by_sizes.clear()
            self._by_sizes[sizes, ending] = recipe
        recipe.last_use = self._num_steps
        return recipe

    def _find(self, sizes: StepSizes, ending: str) -> Recipe:
        """The recipe of a class."""
        recipe = self._recipes.get((sizes, ending))
        if recipe is None:
            if len(self._recipes) >= MAX_RECIPES:
                self._drop(min(self._recipes.values(), key=lambda r: r.last_use))
            recipe = self._recipes[sizes, ending] = self._make(sizes, ending)
        return recipe

    def _drop(self, recipe: Recipe) -> None:
        self._by_sizes.clear()
        self._layouts.pop(recipe.sizes, None)
        self._free(self._recipes.pop((recipe.sizes, recipe.ending)))

    def run(self, recipe: Recipe, num_rows: int) -> None:
        """Queue a recipe; the first `num_rows` rows count. Its inputs are on the device already."""
        recipe.num_uses += 1
        if self.timer is not None:
            self._time(recipe, self.timer)
            return
        if recipe.graph is not None:
            self._driver.launch_graph(recipe.graph, self._stream)
            return
        self._driver.launch(recipe.launches)
        if self._wants_graph(recipe):
            recipe.graph = self._capture(recipe)
            kind = (recipe.bucket, recipe.ending)
            if self._mode == "check" and num_rows and kind not in self._checked:
                try:
                    self._compare(recipe, num_rows)
                except BaseException:
                    self._free(recipe)
                    raise
                self._checked.add(kind)

    def _time(self, recipe: Recipe, timer: LaunchTimer) -> None:
        """Run a recipe's launches one by one, the step's own calls by their places."""
        timed: list[TimedCall] = []
        last = max(launches.num_places for launches in recipe.kept)
        for launches in recipe.kept:
            first = 0 if launches.entry == STEP else last
            numbers = [first + place for place in launches.places]
            timed += [TimedCall(n, *op) for n, op in zip(numbers, launches.ops, strict=True)]
            last += 0 if launches.entry == STEP else launches.num_places
        arena = ("arena", "")
        spare = (self._memory.address(arena), self._memory.num_bytes(arena))
        timer.run(recipe.launches, timed, recipe.bucket, spare)

    def close(self) -> None:
        """Free the graphs; safe to call twice."""
        self._forget()

    def _make(self, sizes: StepSizes, ending: str) -> Recipe:
        layout = self._layouts.get(sizes)
        if layout is None:
            layout = self._layouts[sizes] = StepLayout(sizes, *self._layout_sizes)
        symbols = sizes._asdict()
        names = [name for name in (PLACE, STEP, ending) if name in self._programs]
        kept: list[Launches] = []
        self._memory.ensure(INPUTS, 4 * layout.num_words_with_draws)
        for program in (self._programs[name] for name in names):
            for buffer, num_bytes in program.output_bytes(symbols).items():
                self._memory.ensure(("output", buffer), num_bytes)
        # What one program needs may move memory that another one has been given already.
        generation = -1
        while generation != self._memory.generation:
            generation = self._memory.generation
            inputs = self._inputs(layout)
            kept = [self._programs[name].prepare(symbols, inputs) for name in names]
        if self._generation != generation:
            self._forget()
        calls = [call for launches in kept for call in launches.calls]
        bucket = self._programs[STEP].bucket(sizes.tokens)
        addresses = [
            self._memory.address(name) if name in self._memory else 0
            for name in (INPUTS, IDS, LOGITS)
        ]
        return Recipe(sizes, ending, layout, calls, kept, bucket, *addresses)

    def _inputs(self, layout: StepLayout) -> dict[str, tuple[int, int]]:
        """Address and bytes of every input that a program of a step may ask for."""
        found = layout.inputs(self._memory.address(INPUTS)) | {"landing": self._landing}
        for name, region in (("logits", LOGITS), ("ids", IDS)):
            if region in self._memory:
                found[name] = (self._memory.address(region), self._memory.num_bytes(region))
        return found

    def _wants_graph(self, recipe: Recipe) -> bool:
        if self._mode == "off":
            return False
        return recipe.sizes.is_decode or (recipe.num_uses > 1 and self._may_wait(recipe))

    def _may_wait(self, recipe: Recipe) -> bool:
        """Whether the device might be done with a step of prompts before its launches are."""
        at_least = recipe.sizes.tokens * self._memory.num_bytes(WEIGHTS) / MOST_RATE
        return at_least < LAUNCH_SECONDS * len(recipe.launches)

    def _capture(self, recipe: Recipe) -> Handle:
        self._driver.begin_capture(self._stream)
        try:
            self._driver.launch(recipe.launches)
            return self._driver.end_capture(self._stream)
        except BaseException:
            self._driver.abandon_capture(self._stream)
            raise

    def _compare(self, recipe: Recipe, num_rows: int) -> None:
        """Replay on the inputs of the plain launches before; refuse the graph if results differ."""
        assert recipe.graph is not None
        plain = self._results(recipe, num_rows)
        self._turn_back(recipe)
        self._driver.launch_graph(recipe.graph, self._stream)
        replayed = self._results(recipe, num_rows)
        if np.array_equal(replayed, plain, equal_nan=True):
            return
        scale = max(float(np.linalg.norm(plain)), 1e-30)
        difference = float(np.linalg.norm(replayed - plain)) / scale
        _log.info("%s: graph of %s differs by %.2g", self._driver.where, recipe.sizes, difference)
        if not difference <= MAX_DIFFERENCE:
            raise DeviceError(
                f"{self._driver.where}: graph of {recipe.sizes}: expected the results of plain"
                f" launches, got a relative difference of {difference:.2g}"
                " (set SGLK_GRAPHS=off and report it)"
            )

    def _turn_back(self, recipe: Recipe) -> None:
        """Let the next launch be the last step again, not the one that follows it."""
        first, count = recipe.layout.places[TURN]
        address = recipe.inputs_address + 4 * first
        turn = self._reader.read(address, 4 * count).view(np.int32)
        turn[IS_NEXT], turn[SLOT] = 0, turn[LANDS]
        self._reader.write(address, turn.view(np.uint8))

    def _results(self, recipe: Recipe, num_rows: int) -> NDArray[np.float64]:
        """Some rows of the logits."""
        (logits,) = self._programs[STEP].output_bytes(recipe.sizes._asdict()).values()
        row_bytes = logits // max(1, recipe.sizes.rows)
        found = [
            self._reader.read(self._memory.address(LOGITS) + int(row) * row_bytes, row_bytes)
            for row in np.unique(np.linspace(0, num_rows - 1, COMPARED_ROWS).astype(int))
        ]
        return np.concatenate(found).view(np.float32).astype(np.float64)

    def _forget(self) -> None:
        """Addresses have changed: nothing prepared before may run again."""
        for recipe in self._recipes.values():
            self._free(recipe)
        self._recipes.clear()
        self._layouts.clear()
        self._by_sizes.clear()
        self._generation = self._memory.generation

    def _free(self, recipe: Recipe) -> None:
        if recipe.graph is not None:
            # The device may still run it.
            self._driver.synchronize(self._stream)
            self._driver.free_graph(recipe.graph)
            recipe.graph = None


def _mode() -> str:
    mode = knobs.get().graphs
    if mode not in MODES:
        raise DeviceError(f"SGLK_GRAPHS: expected one of {', '.join(MODES)}, got {mode!r}")
    return mode
