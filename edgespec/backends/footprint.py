"""What a model will occupy in memory, known before anything is allocated.

Weights are mapped from their file where the backend can: the system drops such pages when it needs memory,
but decoding reads all of them for every token, so what is `needed` to run at full speed includes them. What
it does not include is `spare`: pages that come into memory when a file is loaded and are not read again,
which the system drops at no cost.

Sizes of buffers follow from the graphs (a feed-forward block is what takes most), sizes of vocabularies were
measured; tests/device/test_plan.py holds both against processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.backends.onnx_files import read_converted
from edgespec.convert.folder import HEAD, MODEL, VOCABULARY
from edgespec.device.cores import instructions
from edgespec.hub.catalog import RemoteFile
from edgespec.hub.gguf_header import Header, Tensor
from edgespec.hub.gguf_info import read_info, read_parts

MIB = 1 << 20
BATCH = 512
"""tokens of the longest pass"""
ROWS = 34
"""rows of logits that the ONNX backend has room for"""
SHARE = {"f32": 2.0, "f16": 1.0, "q8_0": 34 / 64}
"""bytes of a KV cache relative to f16"""
TOKENIZER, TOKEN, MERGE = 5 * MIB, 230, 125
"""bytes of a tokenizer: fixed, by token, by merge of two tokens"""
RUNTIME = {"llama.cpp": 62 * MIB, "onnx": 104 * MIB}
"""the interpreter with edgespec and the libraries of a backend"""

_VECTORS = {
    "avx2": {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"},
    "asimddp": {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"},
}
"""types that llama.cpp rearranges, by an instruction that it takes; those of Arm are assumed, not measured"""


@dataclass(frozen=True)
class Sizes:
    """Of a model, as far as memory is concerned. Bytes."""

    weights: int
    """of the whole file"""
    read: int
    """weights that decoding reads for every token"""
    repacked: int
    """of these, what llama.cpp rearranges on this processor"""
    kv: int
    """keys and values of a token, at f16"""
    width: int
    feed_forward: int
    vocabulary: int
    merges: int
    context: int
    """tokens it was trained for"""


@dataclass(frozen=True)
class Footprint:
    """Bytes that a loaded model occupies with its context full."""

    weights: int
    """mapped, and read for every token"""
    copies: int
    """weights in private memory: rearranged, or read instead of mapped"""
    kv: int
    buffers: int
    """activations and logits"""
    tokenizer: int
    spare: int = 0
    """mapped and not read again"""

    @property
    def needed(self) -> int:
        """What must stay in memory for full speed."""
        return self.weights + self.copies + self.kv + self.buffers + self.tokenizer

    @property
    def peak(self) -> int:
        """What is in memory where there is plenty."""
        return self.needed + self.spare


def gguf_sizes(path: Path) -> Sizes:
    """Of a GGUF model. Raises ModelError as `read_info` does."""
    info = read_info(path)
    headers = read_parts(path)
    tensors = [tensor for header in headers for tensor in header.tensors]
    return Sizes(
        weights=sum(tensor.bytes for tensor in tensors),
        read=info.bytes_per_token,
        repacked=sum(tensor.bytes for tensor in tensors if _rearranged(tensor)),
        kv=info.kv_bytes_per_token or 0,
        context=info.context_length or BATCH,
        vocabulary=info.vocabulary or 0,
        **_hyperparameters(headers[0]),
    )


def llama_cpp(
    sizes: Sizes, n_ctx: int, kv_type: str = "f16", repack: bool = True, mmap: bool = True
) -> Footprint:
    """Of a model on llama.cpp. Its cache is there from the start."""
    n_ctx = -(-n_ctx // 256) * 256
    copies = sizes.repacked if repack else 0
    return Footprint(
        weights=max(0, sizes.read - copies) if mmap else 0,
        copies=copies if mmap else sizes.weights,
        kv=round(n_ctx * sizes.kv * SHARE[kv_type]),
        buffers=_activations(sizes, n_ctx) + 2 * min(BATCH, n_ctx) * n_ctx,
        tokenizer=_tokenizer(sizes),
        spare=sizes.weights - max(0, sizes.read - copies) if mmap else 0,
    )


def converted_sizes(folder: Path) -> Sizes:
    """Of a conversion. Raises ModelError for a damaged one, BackendError without the package onnx."""
    vocabulary = folder / VOCABULARY
    info = read_info(vocabulary)
    read = size = 0
    graph = read_converted(folder / MODEL).graph
    tables = {name for node in graph.node if node.op_type.startswith("Gather") for name in node.input}
    used = {name for node in graph.node if not node.op_type.startswith("Gather") for name in node.input}
    for tensor in graph.initializer:
        length = next((int(e.value) for e in tensor.external_data if e.key == "length"), 0)
        size += length
        if tensor.name.startswith("rope."):  # angles of all positions, of which a text needs its own
            continue
        read += length if tensor.name in used or tensor.name not in tables else 0
    return Sizes(
        weights=size,
        read=read,
        repacked=0,
        kv=info.kv_bytes_per_token or 0,
        context=info.context_length or BATCH,
        vocabulary=info.vocabulary or 0,
        **_hyperparameters(read_parts(vocabulary)[0]),
    )


def onnx(
    sizes: Sizes, n_ctx: int, kv_type: str = "f32", portable: bool = False, trimmed: int = 0
) -> Footprint:
    """Of a conversion on ONNX Runtime. Its cache grows with the text; of a table of embeddings only the rows
    of that text come into memory. portable: ONNX Runtime's own operators keep weights in an order of their
    own. trimmed: tokens of a trimmed head, whose logits have rows of their own."""
    return Footprint(
        weights=0 if portable else sizes.read,
        copies=sizes.read if portable else 0,
        kv=round((n_ctx + 1) * sizes.kv * SHARE[kv_type]),
        buffers=_activations(sizes, n_ctx) + 4 * ROWS * (sizes.vocabulary + trimmed),
        tokenizer=_tokenizer(sizes),
    )


def _activations(sizes: Sizes, n_ctx: int) -> int:
    return 4 * min(BATCH, n_ctx) * (3 * sizes.feed_forward + 4 * sizes.width)


def _tokenizer(sizes: Sizes) -> int:
    return TOKENIZER + sizes.vocabulary * TOKEN + sizes.merges * MERGE


def _rearranged(tensor: Tensor) -> bool:
    """Whether llama.cpp makes a copy for this processor: of matrices of such types in groups of 8 rows, and
    not of a table of embeddings."""
    matrix = len(tensor.shape) == 2 and tensor.shape[1] % 8 == 0
    return matrix and tensor.type in _types() and tensor.name != "token_embd.weight"


def _types() -> set[str]:
    return next((kinds for sign, kinds in _VECTORS.items() if sign in instructions()), set())


def _hyperparameters(header: Header) -> dict[str, int]:
    meta, name = header.metadata, header.metadata.get("general.architecture")
    wanted = {"width": f"{name}.embedding_length", "feed_forward": f"{name}.feed_forward_length"}
    found = {key: meta.get(place) for key, place in wanted.items()}
    numbers = {key: value if isinstance(value, int) else 0 for key, value in found.items()}
    return numbers | {"merges": len(meta.get("tokenizer.ggml.merges", ()))}


def estimated_sizes(file: RemoteFile) -> Sizes:
    """Of a file that is not on this machine, from the catalog: its weights as a whole count as read."""
    size, shape = file.size or 0, file.shape
    repacked = 0
    if "Q4_K" in file.name and shape["width"] % 256 == 0 and _types():
        repacked = round(0.56 * size)  # of the coder-1.5b on AVX2
    return Sizes(size, size, repacked, **shape)


def trimmed_ids(folder: Path) -> int:
    """Tokens of a trimmed draft's head; 0 if it is not trimmed."""
    head = folder / HEAD
    return head.stat().st_size // 4 if head.is_file() else 0
