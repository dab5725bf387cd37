"""The llama.cpp backend: what a pass gives, what a cache holds, and how each fault is told."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from closed_form import write_gguf
from convert.tiny_models import Tiny, write_tiny
from pair import TARGET, VOCABULARY, load

from edgespec.backends.base import Segment
from edgespec.backends.base import Sequence as Cache
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.sampling import SamplerSettings
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, ContextFull, ModelError, UsageError

from .hand_made import write_encoder, write_lora, write_mamba, write_wide
from .texts import TOLERANCE, log_p, table, text

# --- passes ---


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 9])
def test_the_rows_given_are_those_of_the_last_tokens(target: LlamaCpp, cache: Cache, rows: int) -> None:
    tokens = text(9, rows)
    found = target.forward([Segment(cache, tokens, rows=rows)])
    assert found.shape == (rows, 25)
    assert found.dtype == np.float32
    assert cache.tokens == tokens
    if rows:
        assert np.abs(log_p(found) - table(tokens, rows)).max() < TOLERANCE


def test_sequences_of_different_lengths_share_a_pass_and_keep_apart(target: LlamaCpp) -> None:
    texts = [text(12, 1), text(30, 2), text(7, 3)]
    caches = [target.open() for _ in texts]
    old, new, rows = [5, 29, 0], [7, 1, 7], [3, 1, 7]
    for cache, tokens, n in zip(caches, texts, old, strict=True):
        if n:
            target.forward([Segment(cache, tokens[:n])])
    found = log_p(
        target.forward(
            [
                Segment(c, t[n : n + m], rows=r)
                for c, t, n, m, r in zip(caches, texts, old, new, rows, strict=True)
            ]
        )
    )
    expected = np.concatenate([table(t, r) for t, r in zip(texts, rows, strict=True)])
    assert np.abs(found - expected).max() < TOLERANCE
    assert [c.tokens for c in caches] == texts
    for cache in caches:
        target.close(cache)


def test_a_step_tells_what_was_fed_behind_what_and_how_long_it_took(target: LlamaCpp, cache: Cache) -> None:
    before = target.compute_seconds
    target.forward([Segment(cache, text(9, 0))])
    target.forward([Segment(cache, [1, 2])])
    assert (target.last_step.n, target.last_step.length) == (2, 9)
    assert 0 < target.last_step.seconds < target.compute_seconds - before


def test_a_pass_that_is_too_large_or_empty_is_refused_and_changes_nothing(
    target: LlamaCpp, cache: Cache
) -> None:
    for segment in (Segment(cache, []), Segment(cache, [0] * 513), Segment(cache, [0] * 40, rows=34)):
        with pytest.raises(UsageError, match="takes 1 to 512 tokens and 33 rows"):
            target.forward([segment])
    assert len(cache) == 0


def test_more_rows_than_tokens_are_refused(target: LlamaCpp, cache: Cache) -> None:
    with pytest.raises(UsageError, match="2 rows of logits of 1 tokens"):
        target.forward([Segment(cache, [1], rows=2)])


def test_a_token_that_does_not_exist_is_refused_and_the_cache_stays_as_it_was(
    target: LlamaCpp, cache: Cache
) -> None:
    tokens = text(9, 4)
    target.forward([Segment(cache, tokens)])
    with pytest.raises(BackendError, match="invalid token"):
        target.forward([Segment(cache, [1, 25])])
    assert cache.tokens == tokens
    found = target.forward([Segment(cache, [3])])
    assert np.abs(log_p(found) - table([*tokens, 3], 1)).max() < TOLERANCE


def test_a_full_context_is_told_and_the_tokens_before_stay_usable(own: LlamaCpp) -> None:
    cache = own.open()
    tokens = text(64, 5)
    own.forward([Segment(cache, tokens[:63])])
    with pytest.raises(ContextFull, match="65 tokens do not fit into the context of 64"):
        own.forward([Segment(cache, [1, 2])])
    found = own.forward([Segment(cache, tokens[63:])])
    assert np.abs(log_p(found) - table(tokens, 1)).max() < TOLERANCE


def test_each_sequence_has_the_whole_context_to_itself(own: LlamaCpp) -> None:
    caches = [own.open(), own.open()]
    texts = [text(64, 6), text(64, 7)]
    for cache, tokens in zip(caches, texts, strict=True):
        own.forward([Segment(cache, tokens, rows=0)])
    with pytest.raises(BackendError, match=r"all 2 sequences of target\.gguf are in use"):
        own.open()
    own.close(caches[0])
    assert len(own.open()) == 0
    own.rollback(caches[1], 63)
    found = own.forward([Segment(caches[1], [texts[1][63]])])
    assert np.abs(log_p(found) - table(texts[1], 1)).max() < TOLERANCE


@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("mmap", [True, False])
def test_kv_types_and_ways_to_read_the_file_give_the_model(
    model_files: Path, kv_type: str, mmap: bool
) -> None:
    backend = load(model_files / "target.gguf", kv_type=kv_type, mmap=mmap, repack=mmap)
    tokens = text(40, 8)
    found = backend.forward([Segment(backend.open(), tokens, rows=20)])
    assert np.abs(log_p(found) - table(tokens, 20)).max() < (1e-2 if kv_type == "q8_0" else TOLERANCE)
    backend.close()


# --- rolling back ---


def test_after_a_rollback_the_cache_is_that_of_the_shorter_text(target: LlamaCpp, cache: Cache) -> None:
    tokens = text(30, 9)
    target.forward([Segment(cache, tokens)])
    for length in (29, 20, 3, 1, 0):
        target.rollback(cache, length)
        assert cache.tokens == tokens[:length]
        other = text(5, length)[1:] if length else text(5, length)
        found = target.forward([Segment(cache, other, rows=4)])
        assert np.abs(log_p(found) - table([*tokens[:length], *other], 4)).max() < TOLERANCE
        target.rollback(cache, length)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_rollback_to_where_nothing_is_is_refused(target: LlamaCpp, cache: Cache, length: int) -> None:
    target.forward([Segment(cache, [21, 1, 2])])
    with pytest.raises(UsageError, match=f"cannot roll back to {length} tokens; the sequence has 3"):
        target.rollback(cache, length)
    assert cache.tokens == [21, 1, 2]


def test_a_rollback_that_llama_cpp_refuses_is_told_and_leaves_an_empty_cache(
    target: LlamaCpp, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = text(9, 10)
    target.forward([Segment(cache, tokens)])
    real = target._c.llama_memory_seq_rm

    def no_partial_removal(memory: object, sequence: int, start: int, end: int) -> bool:
        return bool(start <= 0 and real(memory, sequence, start, end))

    with monkeypatch.context() as patch:
        patch.setattr(target._c, "llama_memory_seq_rm", no_partial_removal)
        with pytest.raises(BackendError, match="could not roll back to token 4; its cache was reset"):
            target.rollback(cache, 4)
    assert cache.tokens == []
    found = target.forward([Segment(cache, tokens, rows=3)])
    assert np.abs(log_p(found) - table(tokens, 3)).max() < TOLERANCE


# --- recurrent models ---


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mamba(tmp_path_factory.mktemp("recurrent") / "mamba.gguf")


def test_a_recurrent_model_is_found_unable_to_roll_back_and_decodes_plainly(recurrent: Path) -> None:
    backend = load(recurrent, sequences=1)
    assert not backend.capabilities.rollback
    assert backend.capabilities.reason == "its recurrent state cannot go back to an earlier token"
    with pytest.raises(UsageError, match="cannot speculate: its recurrent state cannot go back"):
        Engine(backend, [NGram(2, 1)], FixedDepth(4))
    engine = Engine(backend, (), FixedDepth(4))
    prompt, settings = text(6, 1), SamplerSettings(logit_bias=dict.fromkeys(VOCABULARY.ends, -100.0))
    answer = engine.generate(prompt, Request(settings, max_tokens=30)).run()
    assert answer.stats.drafted == 0
    assert len(answer.tokens) == 30

    # The same by hand: every text fed anew to an empty cache.
    history = list(prompt)
    for token in answer.tokens:
        backend.rollback(engine.caches.sequences[0], 0)
        row = backend.forward([Segment(engine.caches.sequences[0], history)])[0].copy()
        row[list(VOCABULARY.ends)] -= 100
        assert token == row.argmax()
        history.append(token)

    for other in (prompt, [*prompt, 3, 4], history):  # what cannot be reused is computed anew
        again = engine.generate(other, Request(settings, max_tokens=5)).run()
        backend.rollback(engine.caches.sequences[0], 0)
        row = backend.forward([Segment(engine.caches.sequences[0], other)])[0].copy()
        row[list(VOCABULARY.ends)] -= 100
        assert again.tokens[0] == row.argmax()
    backend.close()


def test_ctrl_c_in_a_pass_of_a_model_that_cannot_go_back_stays_ctrl_c(
    recurrent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, tokens = load(recurrent, sequences=1), text(6, 1)
    sequence = backend.open()
    wanted = backend.forward([Segment(sequence, tokens)]).copy()
    backend.rollback(sequence, 0)
    backend.forward([Segment(sequence, tokens[:3])])

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend._c, "llama_get_logits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            backend.forward([Segment(sequence, tokens[3:])])
    assert sequence.tokens == []
    assert (backend.forward([Segment(sequence, tokens)]) == wanted).all()
    backend.close()


def test_a_recurrent_draft_is_refused_with_its_reason(recurrent: Path) -> None:
    backend = load(recurrent, sequences=1)
    with pytest.raises(ModelError, match=r"cannot be a draft model: its recurrent state .* --draft ngram"):
        DraftModel(backend)
    backend.close()


# --- memory ---


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_reading_a_prompt_reserves_no_logits_for_its_tokens(tmp_path: Path) -> None:
    """512 rows of 150,000 logits would be 307 MB, those of the whole context 2.5 GB."""
    path = write_wide(tmp_path / "wide.gguf")
    script = f"""
from pathlib import Path
from edgespec.backends.base import Segment
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.prefix import align

def megabytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))

import llama_cpp.llama_cpp
reserved, resident = megabytes("VmSize"), megabytes("VmHWM")
backend = LlamaCpp(Path({str(path)!r}), LlamaCppOptions(n_ctx=4096, threads=2))
sequence = backend.open()
align(backend, sequence, [i % 1000 for i in range(2000)], 512, lambda *_: None)
rows = backend.forward([Segment(sequence, [7] * 512, rows=33)])
assert rows.shape == (33, 150_000)
print(megabytes("VmSize") - reserved, megabytes("VmHWM") - resident)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    reserved, resident = map(int, result.stdout.split())
    print(f"{reserved} MB reserved, {resident} MB resident")
    assert reserved < 300
    assert resident < 130


# --- loading ---


def test_files_that_are_no_models_are_told_apart(model_files: Path, tmp_path: Path) -> None:
    whole = (model_files / "target.gguf").read_bytes()
    for name, content, message in (
        ("text.gguf", b"hello, world", r"text.gguf is not a GGUF file \(it begins with b'hell'\)"),
        ("empty.gguf", b"", "empty.gguf is not a GGUF file"),
        ("magic.gguf", b"GGUF", "magic.gguf is not a GGUF model: it holds only 4 bytes"),
        ("header.gguf", whole[:2000], "header.gguf is damaged or cut short"),
        ("half.gguf", whole[: len(whole) // 2], "half.gguf is damaged or cut short"),
        ("end.gguf", whole[:-4], "end.gguf is damaged or cut short"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load(tmp_path / name)
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        load(tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        LlamaCpp(tmp_path)


def test_a_vocabulary_with_which_llama_cpp_would_abort_is_refused(tmp_path: Path) -> None:
    write_gguf(TARGET.renamed(VOCABULARY.id(b"m"), b"n"), tmp_path / "twice.gguf")
    with pytest.raises(ModelError, match=r"twice\.gguf is damaged: its token \d+, '[mn]', is there twice"):
        load(tmp_path / "twice.gguf")


@pytest.mark.parametrize("says_so", [True, False])
def test_a_model_that_embeds_texts_is_refused(tmp_path: Path, says_so: bool) -> None:
    file = write_encoder(tmp_path / "embeds.gguf", says_so)
    with pytest.raises(ModelError, match=r"embeds\.gguf is an encoder or an embedding model"):
        load(file, n_ctx=None, sequences=1)


def test_a_language_model_that_was_made_one_that_embeds_texts_is_refused(tmp_path: Path) -> None:
    """llama.cpp gives logits for it, though its tokens attend to those behind them."""
    file = write_tiny(tmp_path / "embeds.gguf", Tiny("llama", keys={"attention.causal": False}))
    with pytest.raises(ModelError, match=r"embeds\.gguf is an encoder or an embedding model"):
        load(file, n_ctx=None, sequences=1)


def test_a_model_without_a_tokenizer_with_which_llama_cpp_would_abort_is_refused(
    model_files: Path, tmp_path: Path
) -> None:
    data = (model_files / "target.gguf").read_bytes()
    name, none = (len(n).to_bytes(8, "little") + n for n in (b"gpt2", b"none"))
    assert data.count(name) == 1
    (tmp_path / "none.gguf").write_bytes(data.replace(name, none))
    with pytest.raises(ModelError, match=r"none\.gguf carries no tokenizer"):
        load(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "0 threads were asked for; it takes 1 to 512"),
        ({"kv_type": "q4"}, "KV type 'q4' is unknown; choose from f16, q8_0, f32"),
        ({"n_ctx": 0}, "a context of 0 tokens was asked for; target.gguf takes 1 to 1024"),
        ({"n_ctx": 1025}, "a context of 1025 tokens was asked for; target.gguf takes 1 to 1024"),
        ({"sequences": 0}, "0 sequences were asked for"),
        ({"sequences": 40}, "40 sequences were asked for, with 33 rows"),
        ({"gpu_layers": 5}, "5 GPU layers were asked for, but this build of llama.cpp has no GPU support"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(
    model_files: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(model_files / "target.gguf", **options)


def test_the_context_defaults_to_what_the_model_was_trained_for(model_files: Path) -> None:
    backend = load(model_files / "target.gguf", n_ctx=None, sequences=1)
    assert backend.n_ctx == 1024
    backend.close()


def test_a_model_is_no_adapter(model_files: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"LoRA adapter draft.gguf does not fit target.gguf: .+"):
        load(model_files / "target.gguf", lora=(model_files / "draft.gguf",))
    with pytest.raises(ModelError, match=r"missing\.gguf cannot be read"):
        load(model_files / "target.gguf", lora=(tmp_path / "missing.gguf",))


def test_an_adapter_for_another_width_is_refused(model_files: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not fit target\.gguf"):
        load(model_files / "target.gguf", lora=(write_lora(tmp_path / "lora.gguf", width=64),))


def test_an_adapter_changes_the_model_by_its_product(model_files: Path, tmp_path: Path) -> None:
    adapted = load(model_files / "target.gguf", lora=(write_lora(tmp_path / "lora.gguf"),))
    tokens = text(12, 16)
    found = log_p(adapted.forward([Segment(adapted.open(), tokens, rows=4)]))
    adapted.close()
    assert np.abs(found - table(tokens, 4)).max() > 0.1


def test_closing_twice_and_using_what_is_closed_is_safe(model_files: Path, tmp_path: Path) -> None:
    backend = load(model_files / "target.gguf")
    cache = backend.open()
    backend.forward([Segment(cache, text(9, 0), rows=0)])
    backend.close()
    backend.close()
    backend.close(cache)
    for use in (
        backend.open,
        lambda: backend.forward([Segment(cache, [1])]),
        lambda: backend.rollback(cache, 0),
        lambda: backend.save(cache, tmp_path / "cache"),
    ):
        with pytest.raises(BackendError, match=r"target\.gguf is closed"):
            use()
    for ask in (
        lambda: backend.tokenizer.encode("a"),
        lambda: backend.tokenizer.is_end(3),
        backend.tokenizer.vocabulary,
    ):
        with pytest.raises(UsageError, match="is closed; load it again"):
            ask()


def test_a_sequence_can_be_closed_twice(own: LlamaCpp) -> None:
    cache = own.open()
    own.close(cache)
    again = own.open()
    own.forward([Segment(again, [21, 1], rows=0)])
    own.close(cache)
    assert again.tokens == [21, 1]
    own.open()
    with pytest.raises(BackendError, match="in use"):
        own.open()


def test_llama_cpps_messages_stay_out_of_the_users_sight(
    model_files: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        load(model_files / "target.gguf").close()
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
