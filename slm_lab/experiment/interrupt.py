"""Ctrl-C and SIGTERM: the first asks the run to stop at the next step, the second stops it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal(on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether a stop was asked for; `on_first` is called when it is.

    Outside the main thread signals cannot be caught: there, nothing ever asks for a stop.
    """
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        on_first()

    try:
        before = {number: signal.signal(number, ask) for number in SIGNALS}
    except ValueError:  # "signal only works in main thread"
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
