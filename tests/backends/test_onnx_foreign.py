"""ONNX models made by others: both layouts give the tables' distribution, with their own tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from closed_form import CHAT_TEMPLATE, write_gguf
from hypothesis import given
from hypothesis import strategies as st
from pair import DRAFT, TARGET, VOCABULARY, load
from waiting import PATIENCE

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
onnx = pytest.importorskip("onnx")

from edgespec.backends.base import Segment  # noqa: E402
from edgespec.backends.hf_tokenizer import HFTokenizer  # noqa: E402
from edgespec.backends.onnx import Onnx, OnnxOptions  # noqa: E402
from edgespec.backends.onnx_buffers import FixedCache  # noqa: E402
from edgespec.errors import BackendError, ModelError, UsageError  # noqa: E402
from edgespec.loading import load as load_pair  # noqa: E402

from .foreign_models import write_genai, write_optimum  # noqa: E402
from .test_onnx import TOLERANCE, feed, log_p, table, text  # noqa: E402

LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "Optimum, merged": lambda folder: write_optimum(TARGET, folder),
    "Optimum": lambda folder: write_optimum(TARGET, folder, merged=False),
    "transformers.js": lambda folder: write_optimum(TARGET, folder, merged=False, keeps=True),
    "transformers.js, grouped": lambda folder: write_optimum(TARGET, folder, False, keeps=True, grouped=True),
    "genai": lambda folder: write_genai(TARGET, folder),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return LAYOUTS[request.param](tmp_path_factory.mktemp("foreign") / "model")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[Onnx]:
    backend: Onnx = load(folder, max_rows=64)
    yield backend
    backend.close()


def test_logits_are_the_tables(backend: Onnx) -> None:
    tokens = text(120)
    for size in (64, 1, 5):
        assert np.abs(log_p(feed(backend, tokens, size)) - table(tokens, 120)).max() < TOLERANCE


def test_long_passes_are_cut_so_that_logits_stay_small(
    backend: Onnx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend._model, "_piece", 7)
    sequence, tokens = backend.open(), text(40)
    rows = backend.forward([Segment(sequence, tokens, rows=10)])
    assert np.abs(log_p(rows) - table(tokens, 10)).max() < TOLERANCE
    backend.close(sequence)


def test_the_cache_can_be_cut_saved_and_shared_by_nobody(backend: Onnx, tmp_path: Path) -> None:
    a, b, tokens = backend.open(), backend.open(), text(50)
    backend.forward([Segment(a, text(40, seed=7)), Segment(b, text(9, seed=8))])
    backend.rollback(a, 1)
    backend.forward([Segment(a, tokens[1:30])])
    backend.save(a, tmp_path / "cache")
    backend.restore(b, tmp_path / "cache")
    for sequence in (a, b):
        rows = backend.forward([Segment(sequence, tokens[30:], rows=20)])
        assert np.abs(log_p(rows) - table(tokens, 20)).max() < TOLERANCE
        backend.close(sequence)


def in_place(backend: Onnx) -> bool:
    """Whether caches are written in place rather than copied in every step."""
    sequence = backend.open()
    fixed = isinstance(backend._open[sequence.id].cache, FixedCache)
    backend.close(sequence)
    return fixed


def test_where_attention_is_onnx_runtimes_own_the_cache_is_written_in_place(
    backend: Onnx, folder: Path
) -> None:
    graph = next(file for file in folder.rglob("*.onnx"))
    assert in_place(backend) == (b"GroupQueryAttention" in graph.read_bytes())


def test_a_cache_that_is_read_by_other_operators_too_grows(tmp_path: Path) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    model = onnx.load(folder / "decoder.onnx")
    model.graph.node.append(onnx.helper.make_node("Identity", ["past_0_k"], ["aside"]))
    onnx.save(model, folder / "decoder.onnx")
    backend: Onnx = load(folder, max_rows=64)
    tokens = text(50)
    assert not in_place(backend)
    assert np.abs(log_p(feed(backend, tokens, 7)) - table(tokens, 50)).max() < TOLERANCE
    backend.close()


def test_the_whole_context_can_be_filled(folder: Path) -> None:
    backend: Onnx = load(folder, n_ctx=16, strict=True)
    tokens = text(16)
    assert np.abs(log_p(feed(backend, tokens, 1)) - table(tokens, 16)).max() < TOLERANCE
    backend.close()


def test_the_cache_has_the_type_the_model_was_exported_with(folder: Path) -> None:
    load(folder, kv_type="f32").close()
    with pytest.raises(UsageError, match="exported with a cache of f32, not f16; leave --kv-type out"):
        load(folder, kv_type="f16")


def test_names_ends_and_template_are_found(backend: Onnx) -> None:
    assert backend.n_ctx == 512 and backend.chat_template == CHAT_TEMPLATE
    tokenizer = backend.tokenizer
    assert [t for t in range(len(VOCABULARY)) if tokenizer.is_end(t)] == sorted(VOCABULARY.ends)
    assert tokenizer.bos == VOCABULARY.bos and tokenizer.bos_text == "<|bos|>"
    assert tokenizer.markers() == list(VOCABULARY.controls)
    assert [tokenizer.piece(t) for t in range(len(VOCABULARY))] == [
        VOCABULARY.piece(t) for t in range(len(VOCABULARY))
    ]


def test_it_is_target_and_draft_of_pairs_with_gguf_models(model_files: Path, folder: Path) -> None:
    gguf, onnx_model = model_files / "target.gguf", folder
    prompts = ["stay ", "a "]
    with load_pair(gguf, depth=0, threads=1) as plain:
        wanted = [plain.generate(p, max_tokens=30).text for p in prompts]
    for target, draft, backend, draft_backend in (
        (onnx_model, model_files / "draft.gguf", "onnx", "llama.cpp"),
        (model_files / "draft.gguf", onnx_model, "llama.cpp", "onnx"),
        (onnx_model, "none", "auto", None),
    ):
        with load_pair(target, draft=draft, backend=backend, draft_backend=draft_backend, threads=1) as pair:
            found = [pair.generate(p, max_tokens=30).text for p in prompts]
            if target == onnx_model:
                assert found == wanted


def test_a_draft_that_names_no_context_of_its_own_drafts_for_a_longer_one(tmp_path: Path) -> None:
    target = write_gguf(TARGET, tmp_path / "target.gguf", context_length=4096)
    folder = write_optimum(TARGET, tmp_path / "draft")
    (folder / "config.json").unlink()
    with load_pair(target, draft=folder, depth=3, n_ctx=4096, threads=1) as pair:
        assert pair.target.n_ctx == 4096
        assert pair.drafters[0].backend.n_ctx == 2048  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    return HFTokenizer(write_genai(DRAFT, tmp_path_factory.mktemp("tokenizer") / "model"))


@given(st.text("aeimnrstuy \né€<|>_d", max_size=30), st.booleans())
def test_text_becomes_the_tokens_of_the_gguf_tokenizer(
    target: object, tokenizer: HFTokenizer, text: str, special: bool
) -> None:
    text = text.replace("<|>", "<|im_end|>")
    ours = tokenizer.encode(text, special=special)
    theirs = target.tokenizer.encode(text, special=special)  # type: ignore[attr-defined]
    if set("<|>_d") & set(text.replace("<|im_end|>", "")):
        return  # characters outside the vocabulary: each library drops them in its own way
    if special or "<|im_end|>" not in text:
        assert ours == theirs


def test_markers_in_plain_text_stay_text(tokenizer: HFTokenizer) -> None:
    assert VOCABULARY.marker("<|im_end|>") not in tokenizer.encode("a<|im_end|>a")
    assert VOCABULARY.marker("<|im_end|>") in tokenizer.encode("a<|im_end|>a", special=True)
    with pytest.raises(UsageError, match="not valid Unicode"):
        tokenizer.encode("\ud800")


def test_a_tokenizer_that_was_saved_to_cut_and_to_fill_up_texts_does_neither(
    tokenizer: HFTokenizer, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    folder = write_genai(DRAFT, tmp_path / "model")
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved.enable_truncation(4)
    saved.enable_padding(length=16)
    saved.save(str(folder / "tokenizer.json"))
    cut = HFTokenizer(folder)
    for said in ("a", "stay a minute " * 9):
        assert cut.encode(said) == tokenizer.encode(said)


def write_sentencepiece(folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models

    tokens = ["<unk>", "<0xC3>", "<0xA9>", "▁a", "▁", "b"]
    tokenizer = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_sentencepiece_tokens_are_bytes(tmp_path: Path) -> None:
    tokenizer = HFTokenizer(write_sentencepiece(tmp_path))
    assert [tokenizer.piece(t) for t in range(1, 6)] == [b"\xc3", b"\xa9", b" a", b" ", b"b"]
    assert tokenizer.bos is None and tokenizer.piece(99) == b""


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        HFTokenizer(tmp_path)
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="decoder of type WordPiece"):
        HFTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="damaged"):
        HFTokenizer(tmp_path)


def graph(folder: Path, inputs: list[str], output: str) -> Path:
    """A file whose graph has these inputs and one output, and does nothing of use."""
    helper, kinds = onnx.helper, onnx.TensorProto
    folder.mkdir(exist_ok=True)
    values = [helper.make_tensor_value_info(name, kinds.INT64, [1, "n"]) for name in inputs]
    nodes = [helper.make_node("Identity", [inputs[0]], [output])]
    out = helper.make_tensor_value_info(output, kinds.INT64, [1, "n"])
    model = helper.make_model(
        helper.make_graph(nodes, "g", values, [out]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.save(model, folder / "model.onnx")
    return folder


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        (["input_ids", "attention_mask"], "logits", "no inputs for a key-value cache"),
        (["input_ids", "attention_mask"], "last_hidden_state", "an encoder or an embedding model"),
        (["input_ids", "token_type_ids"], "logits", "it is an encoder"),
        (["pixel_values"], "logits", "it takes images"),
        (["input_ids", "encoder_hidden_states"], "logits", "encoder-decoder"),
        (["inputs_embeds"], "logits", "embeddings instead of tokens"),
        (["input_ids", "past_conv.0"], "logits", "a hybrid, whose past_conv.0"),
        (["x"], "y", "no input input_ids"),
    ],
)
def test_models_of_other_kinds_are_refused(
    tmp_path: Path, inputs: list[str], output: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Onnx(graph(tmp_path / "m", inputs, output), OnnxOptions(threads=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: setattr(model, "ir_version", 99), "needs a newer onnxruntime .*IR version: 99"),
        (lambda model: setattr(model.opset_import[0], "version", 99), "needs a newer onnxruntime .*Opset 99"),
        (lambda model: setattr(model.opset_import[0], "version", 1), "cannot be loaded: .*ReduceSum"),
        (lambda model: attention(model, op_type="New"), "needs a newer onnxruntime .*New.* not a registered"),
        (lambda model: attention(model, domain="org.example"), "No opset import for domain .org.example"),
    ],
    ids=["file format", "opset", "opset too old for its operators", "operator", "operators of others"],
)
def test_graphs_this_runtime_does_not_know_are_refused(
    tmp_path: Path, change: Callable[[object], None], message: str
) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    model = onnx.load(folder / "decoder.onnx")
    change(model)
    onnx.save(model, folder / "decoder.onnx")
    with pytest.raises(ModelError, match=message):
        Onnx(folder, OnnxOptions(threads=1))


def attention(model: onnx.ModelProto, **changes: str) -> None:
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    for name, value in changes.items():
        setattr(node, name, value)


@pytest.mark.parametrize("place", ["{}.data", "{}_data", "{}_data_1", "weights"])
def test_a_cache_is_not_restored_where_the_weights_beside_the_graph_are_others(
    tmp_path: Path, place: str
) -> None:
    folder = write_optimum(TARGET, tmp_path / "model", merged=False)
    [file] = folder.rglob("*.onnx")
    weights = place.format(file.name)
    onnx.save(onnx.load(file), file, save_as_external_data=True, location=weights)
    cache = tmp_path / "cache"
    with closing(load(folder)) as backend:
        backend.forward([Segment(sequence := backend.open(), text(50))])
        backend.save(sequence, cache)
        backend.restore(sequence, cache)
    content = bytearray((file.parent / weights).read_bytes())
    content[-2] ^= 1
    (file.parent / weights).write_bytes(content)
    with closing(load(folder)) as backend, pytest.raises(BackendError, match="another model"):
        backend.restore(backend.open(), cache)


def test_external_data_cut_short_or_missing_are_told(tmp_path: Path) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    model, data = onnx.load(folder / "decoder.onnx"), folder / "weights"
    onnx.save(model, folder / "decoder.onnx", save_as_external_data=True, location="weights")
    load(folder).close()
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1)
    with pytest.raises(ModelError, match="weights is cut short: it has"):
        Onnx(folder)
    data.unlink()
    with pytest.raises(ModelError, match=r"weights of decoder\.onnx, is missing"):
        Onnx(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": []}, "'model' is not a JSON object"),
        (
            {"model": {"decoder": {"filename": "decoder.onnx", "inputs": "x"}}},
            "'inputs' is not a JSON object",
        ),
        *(
            (
                {"model": {"decoder": {"filename": "decoder.onnx", "inputs": {"past_key_names": name}}}},
                f"'past_key_names' is {name!r} instead of a name with one %d",
            )
            for name in ("past", "past_%d_%s", 7)
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, config: object, message: str) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    (folder / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        Onnx(folder, OnnxOptions(threads=1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("genai_config.json", b'{"model": []}', "'model' is not a JSON object"),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja cannot be read"),
    ],
)
def test_a_tokenizer_with_files_that_make_no_sense_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        HFTokenizer(folder)


def test_folders_without_a_model_or_with_broken_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither an ONNX model nor a folder with one"):
        Onnx(tmp_path)
    folder = write_genai(TARGET, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Onnx(folder)
    (folder / "genai_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        Onnx(folder)
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "no.onnx"}}}))
    with pytest.raises(ModelError, match=r"no\.onnx cannot be read"):
        Onnx(folder)


WITHOUT_LLAMA_CPP = """
import sys

sys.modules["llama_cpp"] = None  # as where only the extra onnx is installed
import edgespec

try:
    edgespec.load(sys.argv[1])
except edgespec.UsageError as error:
    print(error)
with edgespec.load(sys.argv[1], backend="auto", draft="ngram", depth=2, threads=1) as runtime:
    print(runtime.generate("stay", max_tokens=3).finish_reason in ("length", "stop"))
"""


def test_they_run_where_llama_cpp_is_not_installed(tmp_path: Path) -> None:
    folder = write_genai(TARGET, tmp_path / "model")
    words = [sys.executable, "-c", WITHOUT_LLAMA_CPP, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "model is an ONNX model; run it with --backend onnx\nTrue\n", done.stderr
