"""Where an answer stands in its grammar: which tokens may follow, and which must.

The mask is a function of the tokens before it alone. Where the grammar forces the bytes that follow,
llguidance allows a single token: the one with which the tokenizer itself would begin to spell them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.backends.base import Tokenizer
from edgespec.backends.prefix import common_prefix
from edgespec.decoding.sampling import Mask
from edgespec.errors import UsageError
from edgespec.grammar.constraint import Constraint, llguidance

_MARK = "\x02"
"""a character that no token has together with others"""


MADE = 8
"""grammars that are kept: programs that call models send the same tools with every turn"""


class Grammars:
    """Makes matchers for the vocabulary of one tokenizer, which is read when the first is wanted (a
    second for 150,000 tokens)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Any = None
        self._made: dict[str, Any] = {}
        """llguidance's matchers, by source"""

    def matcher(self, constraint: Constraint, start: int) -> Matcher:
        """For answers that begin at place `start` of a context.

        Raises UsageError for a constraint that this vocabulary cannot meet, BackendError without llguidance.
        """
        package = llguidance()
        if self._vocabulary is None:
            vocabulary = _Vocabulary(self._tokenizer)
            self._vocabulary = package.LLTokenizer(vocabulary, eos_token=vocabulary.ends)
        matcher = self._made.get(constraint.source)
        if matcher is None:
            matcher = package.LLMatcher(
                self._vocabulary,
                constraint.source,
                log_level=0,
                limits=package.LLParserLimits(verbose_errors=False),
            )
            self._made = dict([*self._made.items(), (constraint.source, matcher)][-MADE:])
        if matcher.is_error():
            raise UsageError(
                f"{constraint.kind} is not usable with this model: {matcher.get_error().strip()}"
            )
        return Matcher(matcher.deep_copy(), start, self._tokenizer)


class _Vocabulary:
    """A tokenizer as llguidance wants to see it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UsageError if no token ends an answer."""
        self._tokenizer = tokenizer
        self.tokens = tokenizer.vocabulary()
        ids = range(len(self.tokens))
        self.ends = [id for id in ids if tokenizer.is_end(id)]
        if not self.ends:
            raise UsageError("this model has no token that ends an answer, so a grammar cannot end one")
        self.eos_token_id = self.ends[0]
        # They add nothing to a text; a grammar may name them, as in <|tool_call|>.
        control = (id for id in ids if self.tokens[id] and not tokenizer.piece(id))
        self.special_token_ids = sorted({*control, *self.ends})

    def __call__(self, text: str) -> list[int]:
        """How the model would be told `text` in the midst of another."""
        ids = self._tokenizer.encode(text, bos=False)
        if b"".join(map(self._tokenizer.piece, ids)) == text.encode():
            return ids
        # SentencePiece puts a space before a text, and then not before what follows the mark.
        mark = self._tokenizer.encode(_MARK, bos=False)
        return self._tokenizer.encode(_MARK + text, bos=False)[len(mark) :]


class Matcher:
    """One answer's way through its grammar, of which every beginning can be asked about: contexts may
    end in drafted tokens, and the next one may take them back. For one thread at a time."""

    def __init__(self, matcher: Any, start: int, tokenizer: Tokenizer) -> None:
        """matcher: llguidance's. start: as of `Grammars.matcher`."""
        self._matcher = matcher
        self._start = start
        self._tokenizer = tokenizer
        self._path: list[int] = []
        """the tokens consumed"""

    def allowed(self, context: Sequence[int]) -> Mask:
        """The tokens that may follow `context`; none, if the grammar does not allow that itself; all, within
        the prompt and behind the end."""
        n = self._tokenizer.n_vocab
        if len(context) < self._start or (len(context) > self._start and self._tokenizer.is_end(context[-1])):
            return np.ones(n, np.bool_)
        if not self._goto(context):
            return np.zeros(n, np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, bitorder="little", count=n).view(np.bool_)

    def forced(self, context: Sequence[int]) -> list[int]:
        """Tokens that must follow `context`, whatever the model thinks: those that spell what the grammar
        leaves no choice about. The last of such bytes may be missing: a token may hold more than them."""
        forced: list[int] = self._matcher.compute_ff_tokens() if self._goto(context) else []
        self._check()
        return forced

    def allows(self, context: Sequence[int]) -> bool:
        """Whether `context` is the beginning of something that the grammar allows."""
        return self._goto(context)

    def complete(self, context: Sequence[int]) -> bool:
        """Whether nothing but the end may follow `context`."""
        return self._goto(context) and bool(self._matcher.is_stopped())

    def _goto(self, context: Sequence[int]) -> bool:
        """Stand behind `context`; False if the grammar does not allow it."""
        path = context[self._start :]
        kept = common_prefix(self._path, path)
        if kept < len(self._path):
            self._matcher.rollback(len(self._path) - kept)
            del self._path[kept:]
        if rest := list(path[kept:]):
            self._path += rest[: self._matcher.try_consume_tokens(rest)]
        self._check()
        return len(self._path) == len(path)

    def _check(self) -> None:
        if self._matcher.is_error():
            if self._matcher.get_error().startswith("NoExtensionBias"):
                raise UsageError("what the grammar wants next cannot be spelled with this model's tokens")
            raise UsageError(
                f"the grammar is too complex to be followed here: {self._matcher.get_error()}; simplify it"
            )
