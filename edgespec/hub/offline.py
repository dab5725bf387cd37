"""Whether the user said not to use the network."""

from __future__ import annotations

import os

from huggingface_hub import constants


def offline() -> bool:
    """Whether EDGESPEC_OFFLINE or HF_HUB_OFFLINE is set, to 1, on, yes or true."""
    # The Hub's client reads its variables at import; programs may set them later.
    now = (os.environ.get(name, "").upper() for name in ("EDGESPEC_OFFLINE", "HF_HUB_OFFLINE"))
    return constants.HF_HUB_OFFLINE or any(value in ("1", "ON", "YES", "TRUE") for value in now)
