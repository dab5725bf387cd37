"""A lock for those who take turns."""

from __future__ import annotations

from collections import deque
from threading import Condition


class Turnstile:
    """A lock that is handed on in the order in which it was asked for: who lets it go and asks again is
    behind all who wait. (`threading.Lock` goes to whoever runs, mostly the one that had it.)"""

    def __init__(self) -> None:
        self._changed = Condition()
        self._line: deque[object] = deque()
        """the first is inside"""

    def __enter__(self) -> None:
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                self._changed.wait_for(lambda: self._line[0] is place)
            except BaseException:  # Ctrl-C
                self._line.remove(place)
                self._changed.notify_all()
                raise

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()
