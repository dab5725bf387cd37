"""A hand-made transformer saved as a GGUF file that llama.cpp runs like any Llama model."""

from __future__ import annotations

from pathlib import Path

import gguf

from .ngram import NGram
from .transformer import build
from .vocabulary import BOS, EOS, Vocabulary

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML, whose roles and markers this vocabulary can express"""

TENSORS = {
    "embedding": "token_embd",
    "attention_norm": "blk.0.attn_norm",
    "query": "blk.0.attn_q",
    "key": "blk.0.attn_k",
    "value": "blk.0.attn_v",
    "attention_output": "blk.0.attn_output",
    "mlp_norm": "blk.0.ffn_norm",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "output_norm": "output_norm",
    "output": "output",
}


def write_gguf(
    ngram: NGram,
    path: Path | str,
    *,
    context_length: int = 1024,
    chat_template: str | None = None,
    name: str = "closed-form n-gram",
) -> Path:
    """Write the model in float32 and return the path. `context_length` is what the file declares."""
    transformer = build(ngram)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(context_length)
    writer.add_vocab_size(transformer.vocabulary)
    writer.add_embedding_length(transformer.width)
    writer.add_block_count(transformer.layers)
    writer.add_feed_forward_length(transformer.hidden)
    writer.add_head_count(transformer.heads)
    writer.add_head_count_kv(transformer.kv_heads)
    writer.add_rope_dimension_count(transformer.head)
    writer.add_rope_freq_base(transformer.rope_base)
    writer.add_layer_norm_rms_eps(transformer.norm_epsilon)
    _add_tokenizer(writer, ngram.vocabulary)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for ours, theirs in TENSORS.items():
        writer.add_tensor(f"{theirs}.weight", transformer.weights[ours])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    """Byte-level BPE as GPT-2 has it. Bytes outside the vocabulary cannot be encoded."""
    padding = [f"[PAD{row}]" for row in range(vocabulary.padding)]
    types = (
        [gguf.TokenType.NORMAL] * len(vocabulary.pieces)
        + [gguf.TokenType.CONTROL] * len(vocabulary.controls)
        + [gguf.TokenType.UNUSED] * len(padding)
    )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*map(_spell, vocabulary.pieces), *vocabulary.controls, *padding])
    writer.add_token_types(types)
    writer.add_token_merges([f"{_spell(left)} {_spell(right)}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.marker(BOS))
    writer.add_eos_token_id(vocabulary.marker(EOS))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def _spell(piece: bytes) -> str:
    """GPT-2's way to write bytes in text: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return "".join(spelling[byte] for byte in piece)
