"""A model file that always says the same: text made up by a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from closed_form import CHAT_TEMPLATE, Vocabulary, write_gguf
from closed_form.ngram import NEVER, NGram
from closed_form.vocabulary import LONE_BYTES

THINKS = CHAT_TEMPLATE + "{# <think> #}"
"""the template of a model that thinks"""


def write_scripted(path: Path, *pieces: str) -> Path:
    """Write a model whose every answer is these pieces (at most 6, all different), a token each, as surely
    as float32 allows. Prompts are spelled with the usual letters."""
    vocabulary = Vocabulary()
    ids = [vocabulary.id(byte) for byte in LONE_BYTES][: len(pieces)]
    for id, piece in zip(ids, pieces, strict=True):
        vocabulary = vocabulary.renamed(id, piece.encode())
    width = len(vocabulary)
    recent = np.zeros((width, width, width))
    before = vocabulary.id(b"\n")  # with which a prompt ends
    for id in [*ids, vocabulary.eos]:
        recent[before, :, id] = -NEVER
        before = id
    bias = np.arange(width) / 512
    return write_gguf(NGram(vocabulary, recent, np.zeros_like(recent), bias), path, chat_template=THINKS)
