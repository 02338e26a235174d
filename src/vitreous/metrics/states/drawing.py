"""States drawn beside the model: threads draw the next pictures while the model looks at the last ones.

Threads do, and no processes are needed: Qhull, the evaluation of its triangles and the encoder of WebP let go of the
interpreter while they work. Another thread was never held up for more than 8 ms while one triangulated for 170 ms or
packed a picture for 115 ms (scipy 1.17, Pillow, 224 x 224 pixels).

What was drawn is shown to the model in the order in which it was asked for, whichever thread was first. At most
``_AHEAD`` pictures per thread are in the making or waiting. After an error, anyone's, nothing more is begun.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.metrics.curves import Array
from vitreous.metrics.states.answers import Common
from vitreous.metrics.states.engine import Engine
from vitreous.metrics.states.need import Drawn
from vitreous.metrics.states.writers import Chunk
from vitreous.models import View
from vitreous.passes.random import Draws

__all__ = ["Drawing"]

_AHEAD = 2  # what is drawn and not yet seen takes memory


class Drawing:
    """Hands pictures and maps to threads, and what they drew to the engine, in the order in which it was asked for."""

    def __init__(self, view: View, engine: Engine, common: Common, seed: int) -> None:
        self.view, self.engine, self.common, self.seed = view, engine, common, seed
        self.threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        self._stop: Callable[[], Any] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[tuple[Array, Array]], Drawn, Tensor, Array, Array]] = deque()

    def queue(
        self, need: Drawn, chunk: Chunk, maps: Array | None, images: Array, slots: Array, facts: Array | None = None
    ) -> Array:
        """Have the states of some images drawn; return their numbers ``[B, count]``, which are there once all is done.

        ``maps`` ``[n, H, W]`` belong to ``images`` ``[n]`` of the chunk, ``slots`` ``[n, count]`` to their states.
        """
        facts = np.full((len(chunk.inputs), need.count), np.nan) if facts is None else facts
        keys = Draws.of_images(self.seed, "drawn", chunk.inputs).keys.tolist()
        try:
            for row, image in enumerate(images.tolist()):
                picture = np.asarray(self.view.preprocess.picture(chunk.inputs[image]))
                own = None if maps is None else maps[row]
                drawn = self._threads().submit(need.draw, picture, own, keys[image] % 2**63)
                self._waiting.append((drawn, need, chunk.scored[image], slots[row], facts[image]))
                self._look(_AHEAD * self.threads)
        except BaseException:  # an interruption too
            self.close()
            raise
        return facts

    def finish(self) -> None:
        """Wait for what is still being drawn."""
        try:
            self._look(0)
        finally:
            self.close()

    def close(self) -> None:
        """Begin nothing more, and let the threads go."""
        self._waiting.clear()
        self._pool = None
        if self._stop is not None:
            self._stop()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "vitreous-draw")
            # also where an error elsewhere means that nobody finishes this
            self._stop = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool

    def _look(self, left: int) -> None:
        """Show the engine what was drawn, the oldest first, until only so many are waiting."""
        while len(self._waiting) > left:
            drawn, need, scored, slots, facts = self._waiting.popleft()
            pictures, numbers = drawn.result()
            expected = (need.count, *self.common.geometry.pixels, 3)
            if pictures.shape != expected or pictures.dtype != np.uint8 or len(numbers) != need.count:
                given = f"{pictures.dtype} {list(pictures.shape)} and {len(numbers)} numbers"
                raise VitreousError(f"states are drawn in uint8 {list(expected)}, one number each; got {given}")
            facts[:] = numbers
            inputs = torch.stack([self.view.preprocess.tensor(Image.fromarray(each)) for each in pictures])

            def write(out: Tensor, start: int, stop: int, inputs: Tensor = inputs) -> None:
                out.copy_(inputs[start:stop])

            self.engine.images(write, self.common.geometry.pixels, scored, slots)
