"""The hand-made model files, run by llama.cpp, against the tables they were made from.

The tolerance is on log-probabilities. What is measured is 1e-5 for tokens a model generates and 3e-5
for the ones near 1e-13, where a logit of -30 costs digits.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from real_models import need_module

from .gguf_file import CHAT_TEMPLATE, write_gguf
from .ngram import MARGIN, NEVER, Floats, NGram
from .transformer import scores
from .vocabulary import Vocabulary

C = need_module("llama_cpp.llama_cpp")

TOLERANCE = 1e-4
TARGET = NGram.random(0)
F32, F16 = 0, 1  # ggml's type numbers


class Model:
    """As thin a layer over llama.cpp's C API as these tests can do with."""

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 512,
        kv: int = F16,
        extra_bufts: bool = True,
        flash: int = C.LLAMA_FLASH_ATTN_TYPE_AUTO,
        sequences: int = 1,
    ) -> None:
        model_params = C.llama_model_default_params()
        model_params.use_extra_bufts = extra_bufts
        self.model = C.llama_model_load_from_file(str(path).encode(), model_params)
        assert self.model
        self.vocab = C.llama_model_get_vocab(self.model)
        self.n_vocab = C.llama_vocab_n_tokens(self.vocab)
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = n_ctx, n_ctx, sequences
        params.type_k = params.type_v = kv
        params.flash_attn_type = flash
        params.n_threads = params.n_threads_batch = 1
        self.context = C.llama_init_from_model(self.model, params)
        assert self.context
        self.memory = C.llama_get_memory(self.context)
        self.batch = C.llama_batch_init(n_ctx, 0, 1)

    def feed(self, *parts: tuple[Sequence[int], int], sequence: int = 0) -> Floats:
        """One pass over (tokens, first position) of consecutive sequences; log p of every row."""
        batch, row = self.batch, 0
        for number, (tokens, start) in enumerate(parts):
            for offset, token in enumerate(tokens):
                batch.token[row], batch.pos[row] = int(token), start + offset
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence + number
                batch.logits[row] = 1
                row += 1
        batch.n_tokens = row
        assert C.llama_decode(self.context, batch) == 0
        logits = np.ctypeslib.as_array(C.llama_get_logits(self.context), shape=(row, self.n_vocab))
        wide = logits.astype(np.float64)
        log_p: Floats = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
        return log_p

    def keep(self, length: int) -> None:
        assert C.llama_memory_seq_rm(self.memory, 0, length, -1)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        data, ids = text.encode(), (C.llama_token * 256)()
        count = C.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, special)
        return list(ids[:count])

    def piece(self, token: int, *, special: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        length = C.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:length]

    def close(self) -> None:
        C.llama_batch_free(self.batch)
        C.llama_free(self.context)
        C.llama_model_free(self.model)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed-form") / "target.gguf"
    return write_gguf(TARGET, path, chat_template=CHAT_TEMPLATE, context_length=256)


@pytest.fixture
def model(file: Path) -> Iterator[Model]:
    opened = Model(file)
    yield opened
    opened.close()


def random_text(length: int, seed: int, ngram: NGram = TARGET) -> list[int]:
    """BOS and then any tokens at all, control tokens included."""
    rng = np.random.default_rng(seed)
    return [ngram.vocabulary.bos, *rng.integers(0, len(ngram.vocabulary), length - 1).tolist()]


def table(text: Sequence[int], ngram: NGram = TARGET, start: int = 0) -> Floats:
    """What the tables say after each token of `text` from index `start` on."""
    return np.array([ngram.log_p(text[: end + 1]) for end in range(start, len(text))])


def distance(log_p: Floats, log_q: Floats) -> float:
    """Total variation: 0 for equal distributions, 1 for disjoint ones."""
    return 0.5 * float(np.abs(np.exp(log_p) - np.exp(log_q)).sum())


# --- the tables ---


def test_the_joint_distribution_is_the_product_of_its_conditionals() -> None:
    prompt = TARGET.vocabulary.ids(b"s", b"t")
    joint = TARGET.joint(prompt, 3)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-12)
    for continuation in list(joint)[::500]:
        steps = [TARGET.log_p([*prompt, *continuation[:i]])[token] for i, token in enumerate(continuation)]
        assert np.log(joint[continuation]) == pytest.approx(sum(steps), abs=1e-9)
        assert not TARGET.vocabulary.ends.intersection(continuation[:-1])
        assert len(continuation) == 3 or continuation[-1] in TARGET.vocabulary.ends


def test_a_transform_applies_to_every_step_and_sees_the_history() -> None:
    def no_repeats(log_p: Floats, history: Sequence[int]) -> Floats:
        p: Floats = np.exp(log_p / 0.5)
        p[list(history)] = 0
        p /= p.sum()
        return p

    joint = TARGET.joint(TARGET.vocabulary.ids(b"m"), 3, no_repeats, ends=())
    assert sum(joint.values()) == pytest.approx(1, abs=1e-12)
    assert all(len({*continuation, TARGET.vocabulary.id(b"m")}) == 4 for continuation in joint)


def test_a_text_shorter_than_the_context_is_padded_with_its_first_token() -> None:
    assert TARGET.context([7]) == (7, 7, 7)
    assert TARGET.context([7, 8]) == (8, 7, 7)
    assert TARGET.context([7, 8, 9, 10]) == (10, 9, 8)
    with pytest.raises(ValueError, match="at least one"):
        TARGET.log_p([])


def test_no_two_tokens_tie_in_any_context() -> None:
    for ngram in (TARGET, NGram.random(1, near=TARGET, mix=0.7).padded(6)):
        for x0 in range(len(ngram.vocabulary)):
            logits = ngram.recent[x0, :, None] + ngram.earlier + ngram.bias
            assert np.diff(np.sort(logits, axis=-1), axis=-1).min() >= MARGIN


def test_every_token_of_the_history_matters() -> None:
    rng = np.random.default_rng(5)
    changes: list[list[float]] = [[], [], []]
    for _ in range(500):
        text = rng.integers(0, len(TARGET.vocabulary), 5).tolist()
        for back in range(3):
            other = text.copy()
            other[-1 - back] = (other[-1 - back] + 1) % len(TARGET.vocabulary)
            changes[back].append(distance(TARGET.log_p(text), TARGET.log_p(other)))
    assert np.mean(changes, axis=1).min() > 0.5
    assert np.quantile(changes, 0.01, axis=1).min() > 0.1


def test_seeds_make_different_models_and_mix_brings_a_draft_near_its_target() -> None:
    text = random_text(400, 3)

    def overlap(other: NGram) -> float:
        return 1 - float(
            np.mean([distance(p, q) for p, q in zip(table(text), table(text, other), strict=True)])
        )

    overlaps = [overlap(NGram.random(1, near=TARGET, mix=mix)) for mix in (0, 0.5, 0.8, 0.95)]
    assert overlaps == sorted(overlaps)
    assert overlaps[0] < 0.3 < 0.5 < overlaps[2] < overlaps[3] < 0.9
    assert overlap(NGram.random(0)) == 1


def test_attention_has_one_winner() -> None:
    gap = scores(np.array(0)) - scores(np.arange(1, 8192))
    assert gap.min() == gap[0] > 80
    oldest_wins = -np.diff(scores(np.arange(4)))
    assert oldest_wins.min() > 80


# --- the file, run by llama.cpp ---


@pytest.mark.parametrize("flash", [C.LLAMA_FLASH_ATTN_TYPE_AUTO, C.LLAMA_FLASH_ATTN_TYPE_DISABLED])
@pytest.mark.parametrize("kv", [F16, F32])
@pytest.mark.parametrize(("n_ctx", "extra_bufts"), [(64, True), (64, False), (512, True), (1024, False)])
def test_the_file_has_the_distribution_of_the_tables(
    file: Path, n_ctx: int, extra_bufts: bool, kv: int, flash: int
) -> None:
    model = Model(file, n_ctx=n_ctx, extra_bufts=extra_bufts, kv=kv, flash=flash)
    text = random_text(min(n_ctx, 300), seed=n_ctx)
    expected = table(text)

    at_once = model.feed((text, 0))
    model.keep(0)
    one_by_one = np.concatenate([model.feed(([token], i)) for i, token in enumerate(text)])
    model.keep(0)
    cuts = [*range(0, len(text), 7), len(text)]
    by_sevens = np.concatenate([model.feed((text[a:b], a)) for a, b in pairwise(cuts)])
    model.close()

    for found in (at_once, one_by_one, by_sevens):
        assert np.abs(found - expected).max() < TOLERANCE


def test_a_full_context_of_1024_tokens_is_exact_to_the_last(file: Path) -> None:
    model = Model(file, n_ctx=1024)
    text = random_text(1024, seed=2)
    assert np.abs(model.feed((text, 0)) - table(text)).max() < TOLERANCE
    model.close()


def test_texts_that_start_without_bos_are_padded_as_stated(model: Model) -> None:
    for first in range(len(TARGET.vocabulary)):
        text = [first, 3, 14, 15]
        assert np.abs(model.feed((text, 0)) - table(text)).max() < TOLERANCE
        model.keep(0)


def test_other_tokens_after_a_rollback(model: Model) -> None:
    rng = np.random.default_rng(4)
    text = random_text(20, seed=6)
    model.feed((text, 0))
    for _ in range(200):
        kept = int(rng.integers(1, len(text) + 1)) if len(text) < 300 else 1
        model.keep(kept)
        more = rng.integers(0, len(TARGET.vocabulary), int(rng.integers(1, 13))).tolist()
        text = [*text[:kept], *more]
        assert np.abs(model.feed((more, kept)) - table(text, start=kept)).max() < TOLERANCE


@pytest.mark.parametrize("off_by", [-1, 1, 2, 4])
def test_a_wrong_rollback_is_grossly_visible(model: Model, off_by: int) -> None:
    """Four drafted tokens are rejected, and the cache keeps `off_by` too many (4: no rollback)."""
    damage = []
    for seed in range(40):
        text = random_text(30, seed)
        model.keep(0)
        model.feed((text, 0))
        model.feed((random_text(5, seed + 100)[1:], len(text)))
        length = len(text) + off_by
        model.keep(length)
        corrected = seed % len(TARGET.vocabulary)
        found = model.feed(([corrected], length))[0]
        damage.append(distance(found, TARGET.log_p([*text, corrected])))
    assert np.median(damage) > 0.5
    assert np.quantile(damage, 0.1) > 0.2


@pytest.mark.parametrize("back", [1, 2])
def test_one_stale_cell_is_grossly_visible(model: Model, back: int) -> None:
    """The text is right and its positions are right, but one recent cell holds another token."""
    damage = []
    for seed in range(40):
        text = random_text(30, seed)
        stale = text.copy()
        stale[-1 - back] = (stale[-1 - back] + 1) % len(TARGET.vocabulary)
        model.keep(0)
        damage.append(distance(model.feed((stale, 0))[-1], TARGET.log_p(text)))
    assert np.median(damage) > 0.4
    assert np.quantile(damage, 0.1) > 0.2


def test_sequences_in_one_pass_keep_apart(file: Path) -> None:
    model = Model(file, sequences=2)
    texts = [random_text(50, seed=8), random_text(70, seed=9)]
    first = model.feed((texts[0][:20], 0), (texts[1][:60], 0))
    second = model.feed((texts[0][20:], 20), (texts[1][60:], 60))
    model.close()
    expected = [table(text) for text in texts]
    assert np.abs(first - np.concatenate([expected[0][:20], expected[1][:60]])).max() < TOLERANCE
    assert np.abs(second - np.concatenate([expected[0][20:], expected[1][60:]])).max() < TOLERANCE


# --- the vocabulary and what the file declares ---


def test_text_survives_the_tokenizer(model: Model) -> None:
    vocabulary = TARGET.vocabulary
    for text in ("", "user stay\n", "érer €₩𩂬 a  aste", "\n\n as "):
        ids = model.encode(text)
        assert ids[0] == vocabulary.bos
        assert vocabulary.text(ids) == text.encode() == b"".join(map(model.piece, ids))
    assert model.encode("stare") == vocabulary.ids(b"st", b"a", b"r", b"e")
    assert model.encode("er a") == vocabulary.ids(b"er", b" a")


def test_pieces_and_ends_are_those_of_the_vocabulary(model: Model) -> None:
    vocabulary = TARGET.vocabulary
    assert model.n_vocab == len(vocabulary) == 25
    for token in range(len(vocabulary)):
        assert model.piece(token) == vocabulary.piece(token)
        assert C.llama_vocab_is_eog(model.vocab, token) == (token in vocabulary.ends)
    assert C.llama_vocab_bos(model.vocab) == vocabulary.bos
    assert C.llama_vocab_eos(model.vocab) == vocabulary.eos


def test_the_chat_template_can_be_encoded(model: Model) -> None:
    assert C.llama_model_chat_template(model.model, None).decode() == CHAT_TEMPLATE
    turn = "<|im_start|>assistant\nyes<|im_end|>\n"
    ids = model.encode(turn, special=True)
    assert b"".join(model.piece(token, special=True) for token in ids[1:]) == turn.encode()
    assert {TARGET.vocabulary.marker("<|im_start|>"), TARGET.vocabulary.marker("<|im_end|>")} < set(ids)


def test_the_declared_context_length_is_a_choice(model: Model, tmp_path: Path) -> None:
    assert C.llama_model_n_ctx_train(model.model) == 256
    fields = gguf.GGUFReader(write_gguf(TARGET, tmp_path / "short.gguf", context_length=48)).fields
    assert fields["llama.context_length"].contents() == 48
    assert "tokenizer.chat_template" not in fields


def test_a_padded_draft_is_exact_and_never_proposes_padding(tmp_path: Path) -> None:
    draft = NGram.random(1, near=TARGET, mix=0.8)
    padded = draft.padded(6)
    model = Model(write_gguf(padded, tmp_path / "padded.gguf"))
    text = random_text(200, seed=11)
    found = model.feed((text, 0))
    assert model.n_vocab == 31
    assert np.abs(found - table(text, padded)).max() < TOLERANCE
    assert np.abs(found[:, :25] - table(text, draft)).max() < TOLERANCE
    assert found[:, 25:].max() < NEVER + 10
    model.close()
    with pytest.raises(ValueError, match="at most 31 tokens"):
        write_gguf(draft.padded(7), tmp_path / "too-wide.gguf")


def test_a_renamed_token_changes_the_bytes_of_one_id_only(tmp_path: Path) -> None:
    renamed = TARGET.renamed(TARGET.vocabulary.id(b"m"), b"o")
    model = Model(write_gguf(renamed, tmp_path / "renamed.gguf"))
    pieces = [model.piece(token) for token in range(model.n_vocab)]
    model.close()
    differing = [token for token, piece in enumerate(pieces) if piece != TARGET.vocabulary.piece(token)]
    assert differing == [Vocabulary().id(b"m")]
    assert pieces[differing[0]] == b"o"


def test_the_script_writes_the_same_file_as_the_function(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    script = [sys.executable, "-m", "closed_form.make", str(tmp_path / "a.gguf"), "--seed", "1"]
    subprocess.run([*script, "--near", "0", "--mix", "0.7", "--chat"], cwd=tests, check=True)
    draft = NGram.random(1, near=TARGET, mix=0.7)
    write_gguf(draft, tmp_path / "b.gguf", chat_template=CHAT_TEMPLATE)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
