"""Model names, downloads and what is on disk.

Pulling is in `edgespec.hub.pull`, so that running a model does not load the network's libraries.
"""

from edgespec.hub.gguf_info import ModelInfo, read_info
from edgespec.hub.model_file import ModelFile, Pair
from edgespec.hub.resolve import best_installed_pair, resolve, resolve_pair

__all__ = ["ModelFile", "ModelInfo", "Pair", "best_installed_pair", "read_info", "resolve", "resolve_pair"]
