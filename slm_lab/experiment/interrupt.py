"""Ctrl-C and SIGTERM: the first asks the run to stop at the next step, the second stops it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slm_lab.errors import StoppedAtOnce

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Call it to learn whether a stop was asked for.

    `on_first` is called by the first call that finds it so, not by the signal's handler, which may come in the middle
    of a print.
    """

    def __init__(self, on_first: Callable[[], None]):
        self.number: int | None = None  # of the signal
        self._on_first: Callable[[], None] | None = on_first

    def __call__(self) -> bool:
        if self.number is not None and self._on_first is not None:
            say, self._on_first = self._on_first, None
            say()
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """As shells count: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.number or signal.SIGINT)


@contextmanager
def stop_on_signal(on_first: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """While it lasts, signals go to the request that it yields.

    Outside the main thread signals cannot be caught: there, nothing ever asks for a stop.
    """
    request = StopRequest(on_first)

    def ask(number: int, frame: object) -> None:
        if request.number is not None:
            raise StoppedAtOnce(128 + number)
        request.number = number

    try:
        before = {number: signal.signal(number, ask) for number in SIGNALS}
    except ValueError:  # "signal only works in main thread"
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Signals wait until the end. A process started inside never gets them: Ctrl-C goes to its parent's group too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
