"""Lossless speculative decoding for language models on the machine you already own.

import edgespec

with edgespec.load("smollm2-135m") as runtime:
    print(runtime.generate("Once upon a time", max_tokens=50).text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgespec.errors import (
    BackendError,
    ContextFull,
    EdgespecError,
    HubError,
    IncompatiblePair,
    ModelError,
    NotEnoughMemory,
    OfflineError,
    UsageError,
)

if TYPE_CHECKING:
    from edgespec.chat.session import ChatSession
    from edgespec.decoding.asynchronous import AsyncGeneration
    from edgespec.decoding.generation import Generation
    from edgespec.decoding.rounds import Round, Stats
    from edgespec.decoding.stopping import Token
    from edgespec.loading import load
    from edgespec.runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "AsyncGeneration",
    "BackendError",
    "ChatSession",
    "ContextFull",
    "EdgespecError",
    "Generation",
    "HubError",
    "IncompatiblePair",
    "ModelError",
    "NotEnoughMemory",
    "OfflineError",
    "Round",
    "Runtime",
    "Stats",
    "Token",
    "UsageError",
    "load",
]

# Imported when first used: they bring in numpy, which `edgespec --help` can do without.
_HOMES = {
    "AsyncGeneration": "edgespec.decoding.asynchronous",
    "ChatSession": "edgespec.chat.session",
    "Generation": "edgespec.decoding.generation",
    "Round": "edgespec.decoding.rounds",
    "Runtime": "edgespec.runtime",
    "Stats": "edgespec.decoding.rounds",
    "Token": "edgespec.decoding.stopping",
    "load": "edgespec.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
