"""Sizes and counts in words."""

from __future__ import annotations


def human(n: float) -> str:
    """Bytes in decimal units, as disks and model pages count: 1117320768 → 1.12 GB."""
    for unit in ("B", "kB", "MB"):
        if n < 999.5:
            return f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.2f} GB"


def human_count(n: float) -> str:
    """A number of parameters: 1543714304 → 1.54 B."""
    for unit in ("", " k", " M"):
        if n < 999.5:
            return f"{n:.0f}{unit}"
        n /= 1000
    return f"{n:.2f} B"


def counted(n: int, what: str) -> str:
    """1 prompt, 2 prompts."""
    return f"{n} {what}{'s' * (n != 1)}"
