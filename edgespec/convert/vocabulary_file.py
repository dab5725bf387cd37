"""A GGUF file without tensors: the header of a model, so that llama.cpp can be its tokenizer."""

from __future__ import annotations

import struct
from pathlib import Path

from edgespec.hub.gguf_header import Header


def write_vocabulary(header: Header, path: Path) -> None:
    """Copy the metadata entries of a GGUF file, byte for byte, into one that has no tensors."""
    spans = [span for key, span in header.spans.items() if not key.startswith("split.")]
    with header.path.open("rb") as source, path.open("wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", header.version, 0, len(spans)))
        for begin, end in spans:
            source.seek(begin)
            out.write(source.read(end - begin))
        out.write(bytes(-out.tell() % 4096))
