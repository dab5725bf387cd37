"""One exception tree. Every message says what is wrong and what to do next."""

from __future__ import annotations


class EdgespecError(Exception):
    """Base of everything edgespec raises on purpose; the CLI prints it as one line and exits 1."""


class UsageError(EdgespecError, ValueError):
    """An option, argument or combination of them that cannot be honoured; the CLI exits 2."""


class ModelError(EdgespecError):
    """A model file that is missing, damaged, of an unknown kind, or unfit for its role."""


class IncompatiblePair(ModelError):
    """Target and draft model do not share a vocabulary, so drafted ids would mean other text."""


class BackendError(EdgespecError):
    """The runtime underneath refused or failed: a load, a forward pass, a rollback."""


class NotEnoughMemory(EdgespecError):
    """What is to be loaded cannot stay in the memory there is; nothing was allocated."""


class ContextFull(EdgespecError):
    """The prompt does not fit into the context that was reserved for it."""


class HubError(EdgespecError):
    """A model could not be fetched or verified."""


class OfflineError(HubError):
    """The network would have been needed, and the user said not to use it."""
