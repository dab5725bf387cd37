"""Whether the user said not to use the network."""

from __future__ import annotations

import os

from huggingface_hub import constants


def offline() -> bool:
    """Whether EDGESPEC_OFFLINE is set to anything but 0, off, no or false; or HF_HUB_OFFLINE to 1, on, yes or
    true, as the client of the Hub has it."""
    # The Hub's client reads its variables at import; programs may set them later.
    ours, theirs = (os.environ.get(name, "").upper() for name in ("EDGESPEC_OFFLINE", "HF_HUB_OFFLINE"))
    asked = ours.strip() not in ("", "0", "OFF", "NO", "FALSE")
    return asked or constants.HF_HUB_OFFLINE or theirs in ("1", "ON", "YES", "TRUE")
