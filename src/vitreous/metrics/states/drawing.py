"""States drawn beside the model: threads draw the next pictures while the model looks at the last ones."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.metrics.curves import Array
from vitreous.metrics.states.answers import Common
from vitreous.metrics.states.engine import Engine
from vitreous.metrics.states.need import Drawn
from vitreous.metrics.states.writers import Chunk
from vitreous.models import View
from vitreous.passes.random import Draws

__all__ = ["Drawing"]

_AHEAD = 4  # pictures in the making for each thread: what is drawn and not yet seen takes memory


class Drawing:
    """Hands pictures and maps to threads, and what they drew to the engine, in the order in which it was asked for."""

    def __init__(self, view: View, engine: Engine, common: Common, seed: int) -> None:
        self.view, self.engine, self.common, self.seed = view, engine, common, seed
        self.threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[Any], Tensor, Array, Array]] = deque()

    def queue(
        self, need: Drawn, chunk: Chunk, maps: Array | None, images: Array, slots: Array, facts: Array | None = None
    ) -> Array:
        """Have the states of some images drawn; return their numbers ``[B, count]``, which are there once all is done.

        ``maps`` ``[n, H, W]`` belong to ``images`` ``[n]`` of the chunk, ``slots`` ``[n, count]`` to their states.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "vitreous-draw")
        facts = np.full((len(chunk.inputs), need.count), np.nan) if facts is None else facts
        keys = Draws.of_images(self.seed, "drawn", chunk.inputs).keys.tolist()
        for row, image in enumerate(images.tolist()):
            picture = np.asarray(self.view.preprocess.picture(chunk.inputs[image]))
            drawn = self._pool.submit(need.draw, picture, None if maps is None else maps[row], keys[image] % 2**63)
            self._waiting.append((drawn, chunk.scored[image], slots[row], facts[image]))
            self._look(_AHEAD * self.threads)
        return facts

    def finish(self) -> None:
        """Wait for what is still being drawn."""
        self._look(0)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _look(self, left: int) -> None:
        """Show the engine what was drawn, the oldest first, until only so many are waiting."""
        while len(self._waiting) > left:
            drawn, scored, slots, facts = self._waiting.popleft()
            try:
                pictures, numbers = drawn.result()
            except BaseException:
                for future, *_ in self._waiting:
                    future.cancel()
                raise
            facts[:] = numbers
            inputs = torch.stack([self.view.preprocess.tensor(Image.fromarray(each)) for each in pictures])

            def write(out: Tensor, start: int, stop: int, inputs: Tensor = inputs) -> None:
                out.copy_(inputs[start:stop])

            self.engine.images(write, self.common.geometry.pixels, scored, slots)
