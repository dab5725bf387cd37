"""Lossless speculative decoding for language models on the machine you already own.

import edgespec

with edgespec.load("smollm2-135m") as runtime:
    print(runtime.generate("Once upon a time", max_tokens=50).text)
"""

from edgespec.chat.session import ChatSession
from edgespec.decoding.engine import Generation
from edgespec.decoding.rounds import Round, Stats
from edgespec.decoding.stopping import Token
from edgespec.errors import (
    BackendError,
    ContextFull,
    EdgespecError,
    HubError,
    IncompatiblePair,
    ModelError,
    OfflineError,
    UsageError,
)
from edgespec.runtime import Runtime, load

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "ChatSession",
    "ContextFull",
    "EdgespecError",
    "Generation",
    "HubError",
    "IncompatiblePair",
    "ModelError",
    "OfflineError",
    "Round",
    "Runtime",
    "Stats",
    "Token",
    "UsageError",
    "load",
]
