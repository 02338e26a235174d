"""Decoding uploads in a process of its own, which may be killed: some files take a decoder minutes or all memory.

A progressive JPEG of a few hundred kilobytes can hold thousands of scans over the whole image, and a decoder keeps the
interpreter's lock all that time. The worker process imports neither torch nor the explorer's models, so that it starts
in a moment; it is started before it is needed, and started again after it had to be killed.
"""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import IO

from PIL import Image, UnidentifiedImageError

from vitreous.errors import ImageError
from vitreous.io.decoding import FORMATS, decode
from vitreous.web import Refused

MOST_BYTES = 20 * 2**20
MOST_PIXELS = 50_000_000
DEADLINE = 8.0  # seconds for one image; the slowest ordinary ones, of 50 million pixels, take about two
MOST_MEMORY = 3 * 2**30
"""Bytes of address space of the worker: an image of 50 million pixels is held as up to four copies of 200 MB."""
_REQUEST, _ANSWER = struct.Struct("<Q"), struct.Struct("<HII")
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from vitreous.web.decoder import serve
serve(int(sys.argv[2]))
"""


class Decoder:
    """One worker process; images are decoded one after the other."""

    def __init__(self) -> None:
        self._turn, self._guard = threading.Lock(), threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(Refused):  # it is tried again when there is something to decode
            self._start()

    def decode(self, data: bytes) -> Image.Image:
        """Return an image upright and in RGB, or say in one line why not; this takes ``DEADLINE`` seconds at most."""
        with self._turn:
            process = self._process or self._start()
            is_late = threading.Event()

            def expire() -> None:
                is_late.set()
                process.kill()

            timer = threading.Timer(DEADLINE, expire)
            timer.daemon = True
            timer.start()
            try:
                image = _exchange(process, data)
            except (OSError, EOFError):
                image = None
            finally:
                timer.cancel()
                timer.join()
            if image is None or is_late.is_set():
                self._replace(process)
            if image is not None:
                return image
        if is_late.is_set():
            raise Refused(422, f"the picture takes more than {DEADLINE:g} seconds to decode; save it in a simpler form")
        raise Refused(415, "the picture cannot be read: its decoder broke down")

    def close(self) -> None:
        """Kill the worker, also while it works."""
        with self._guard:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.kill()
            with self._turn:
                _end(process)

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Start another worker at once: the next image shall not wait for it."""
        _end(process)
        self._process = None
        self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        paths = json.dumps([path for path in sys.path if path])  # without the current folder, where anything may lie
        with self._guard:
            if self._is_closed:
                raise Refused(503, "the explorer is ending")
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _START, paths, str(MOST_MEMORY)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pipesize=2**20,  # an image of twelve million pixels is 36 MB
                    start_new_session=True,  # Ctrl-C is for the explorer, which ends it
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                )
            except OSError as error:
                raise Refused(503, f"pictures cannot be decoded now: {error.strerror}") from None
            return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what was not written yet has nowhere to go
            assert pipe is not None
            pipe.close()


def _exchange(process: subprocess.Popen[bytes], data: bytes) -> Image.Image:
    """Hand an image to the worker and read what it has made of it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_REQUEST.pack(len(data)))
    process.stdin.write(data)
    process.stdin.flush()
    status, first, second = _ANSWER.unpack(_read(process.stdout, _ANSWER.size))
    if status != 200:
        raise Refused(status, _read(process.stdout, first).decode())
    return Image.frombytes("RGB", (first, second), _read(process.stdout, 3 * first * second))


def _read(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    if stream.readinto(data) != size:  # type: ignore[attr-defined]
        raise EOFError
    return data


# -- the worker ------------------------------------------------------------------------------------------------


def serve(memory: int) -> None:
    """Decode what comes in on standard input until that ends; this is all that the worker does."""
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a C library prints must not come between the answers
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    _limit(memory)
    while len(head := source.read(_REQUEST.size)) == _REQUEST.size:
        (size,) = _REQUEST.unpack(head)
        if hasattr(signal, "alarm"):
            signal.alarm(int(DEADLINE) + 2)  # the end, if the explorer died meanwhile
        try:
            (width, height), content = _decoded(source.read(size))
            answer = _ANSWER.pack(200, width, height)
        except Refused as error:
            content = str(error).encode()
            answer = _ANSWER.pack(error.status, len(content), 0)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        answers.write(answer)
        answers.write(content)
        answers.flush()


def _limit(memory: int) -> None:
    """Bound the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _decoded(data: bytes) -> tuple[tuple[int, int], bytes]:
    """Read an image as the library reads a file; refuse what is too large before a pixel of it is decoded."""
    _check(data)
    try:
        image = decode(io.BytesIO(data), "the picture")
        return image.size, image.tobytes()
    except (ImageError, MemoryError) as error:
        if isinstance(error, MemoryError) or isinstance(error.__context__, MemoryError):
            raise Refused(413, "the picture needs more memory than there is for one; make it smaller") from None
        raise Refused(415, str(error)) from None


def _check(data: bytes) -> None:
    """Look at the header alone."""
    if not data:
        raise Refused(415, "the picture is empty (0 bytes)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
    except Image.DecompressionBombError:
        raise Refused(413, f"the picture has more than {MOST_PIXELS:,} pixels; make it smaller") from None
    except UnidentifiedImageError:
        raise Refused(415, "this is not a picture that can be read") from None
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise Refused(415, f"the picture cannot be read: {type(error).__name__}") from None
    if width * height > MOST_PIXELS:
        raise Refused(413, f"the picture has {width} x {height} pixels, over {MOST_PIXELS:,}; make it smaller")
