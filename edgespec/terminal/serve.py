"""`edgespec serve`: a server in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgespec.errors import UsageError
from edgespec.terminal.notes import note


def serve(pair: str, loading: Mapping[str, Any], serving: Mapping[str, Any]) -> None:
    """Serve until interrupted. Raises UsageError when the server's libraries are not installed."""
    try:
        from edgespec.server.serve import Serving
        from edgespec.server.serve import serve as run
        from edgespec.server.turns import About
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("edgespec"):
            raise
        raise UsageError(
            f"the server needs {error.name}, which is not installed: pip install 'edgespec[server]'"
        ) from error

    def ready(address: str, about: About) -> None:
        drafted = f", drafted by {about.draft}" if about.draft else ""
        note(
            f"serving {about.pair} ({about.target}{drafted}) at {address}/v1; to chat, open {address}; "
            "Ctrl-C ends it"
        )

    run(pair, loading, Serving(**serving), ready)
