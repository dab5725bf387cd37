"""Model files that are no use but to show how the backend takes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from closed_form.gguf_file import _add_tokenizer
from pair import VOCABULARY


def write_mamba(path: Path, seed: int = 0) -> Path:
    """A recurrent model (Mamba, random weights) over the closed-form vocabulary."""
    width, inner, state, rank, conv = 32, 64, 8, 4, 4
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("recurrent")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(1024)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(1)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, VOCABULARY)
    tensors = {
        "token_embd.weight": 4 * random(len(VOCABULARY), width),
        "output_norm.weight": np.ones(width, np.float32),
        "output.weight": 4 * random(len(VOCABULARY), width),
        "blk.0.attn_norm.weight": np.ones(width, np.float32),
        "blk.0.ssm_in.weight": random(2 * inner, width),
        "blk.0.ssm_conv1d.weight": random(inner, conv),
        "blk.0.ssm_conv1d.bias": random(inner),
        "blk.0.ssm_x.weight": random(rank + 2 * state, inner),
        "blk.0.ssm_dt.weight": random(inner, rank),
        "blk.0.ssm_dt.bias": random(inner),
        "blk.0.ssm_a": -np.exp(random(inner, state)),
        "blk.0.ssm_d": random(inner),
        "blk.0.ssm_out.weight": random(width, inner),
    }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    _write(writer)
    return path


def write_encoder(path: Path, says_so: bool) -> Path:
    """A model that embeds texts (BERT, random weights), over the closed-form vocabulary. `says_so`: whether
    its header tells that tokens attend to those behind them."""
    width, context = 32, 64
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("encoder")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(context)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    if says_so:
        writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    _add_tokenizer(writer, VOCABULARY)
    tensors = {
        "token_embd.weight": random(len(VOCABULARY), width),
        "token_types.weight": random(2, width),
        "position_embd.weight": random(context, width),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        tensors |= {f"blk.0.{name}.weight": random(width, width), f"blk.0.{name}.bias": random(width)}
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        tensors |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    _write(writer)
    return path


def write_wide(path: Path, rows: int = 150_000) -> Path:
    """A model that is tiny but for its vocabulary, as wide as those of today's models."""
    width = 32
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("wide")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(4096)
    writer.add_vocab_size(rows)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(rows)])
    writer.add_token_types([gguf.TokenType.NORMAL] * rows)
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", random(width, width))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("token_embd.weight", random(rows, width))
    _write(writer)
    return path


def write_lora(path: Path, *, width: int = 128, seed: int = 0) -> Path:
    """An adapter for the attention output of the closed-form models, if `width` is theirs."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    a = rng.standard_normal((1, width)).astype(np.float32)
    b = rng.standard_normal((25, 1)).astype(np.float32) * 20
    writer.add_tensor("output.weight.lora_a", a)
    writer.add_tensor("output.weight.lora_b", b)
    _write(writer)
    return path


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
