"""A lock for those who take turns."""

from __future__ import annotations

from collections import deque
from threading import Condition, get_ident


class Turnstile:
    """A lock that is handed on in the order in which it was asked for: who lets it go and asks again is
    behind all who wait. (`threading.Lock` goes to whoever runs, mostly the one that had it.)"""

    def __init__(self) -> None:
        self._changed = Condition()
        self._line: deque[int] = deque()
        """threads; the first is inside"""

    def __enter__(self) -> None:
        thread = get_ident()
        with self._changed:
            self._line.append(thread)
            try:
                self._changed.wait_for(lambda: self._line[0] == thread)
            except BaseException:  # Ctrl-C
                self._line.remove(thread)
                self._changed.notify_all()
                raise

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()

    @property
    def mine(self) -> bool:
        """Whether this thread is inside, or stands in the line: it would wait for itself. May be asked in a
        signal handler that interrupts it."""
        with self._changed:
            return get_ident() in self._line
