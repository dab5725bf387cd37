"""A GGUF file's tokenizer and chat template, without its weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgespec.backends.gguf_tokenizer import GGUFTokenizer
from edgespec.backends.llama_library import forget_messages, llama, recent_messages
from edgespec.convert.folder import remedy
from edgespec.errors import ModelError
from edgespec.hub.gguf_header import read_header
from edgespec.hub.gguf_info import check_tokens


class VocabularyModel:
    """Owns a vocabulary-only llama.cpp model; `tokenizer` lives as long as it does."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for a file that is missing, damaged or has no tokenizer, BackendError without
        llama.cpp."""
        self._c = llama()
        again = remedy(path.parent, "edgespec convert --force makes it again")
        if not path.is_file():
            raise ModelError(f"the tokenizer {path} is missing; {again}")
        try:
            check_tokens(read_header(path))
        except ModelError as error:
            raise ModelError(f"the tokenizer {path} is damaged; {again}") from error
        params = self._c.llama_model_default_params()
        params.vocab_only = True
        forget_messages()
        self._model: Any = self._c.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ModelError(f"{path} has no tokenizer llama.cpp can use: {recent_messages()}")
        self.tokenizer = GGUFTokenizer(self._model)
        template = self._c.llama_model_chat_template(self._model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None

    def close(self) -> None:
        """Free it. Safe to call twice."""
        if self._model:
            self.tokenizer.close()
            self._c.llama_model_free(self._model)
            self._model = None
