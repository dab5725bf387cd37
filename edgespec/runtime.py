"""The embedding API: a loaded pair that answers prompts."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict, cast
from weakref import finalize

import numpy as np
from typing_extensions import Self, Unpack

from edgespec.backends.base import Backend
from edgespec.backends.caches import Caches, Kept
from edgespec.backends.fingerprint import identity
from edgespec.backends.llama_cpp import LlamaCppOptions
from edgespec.backends.loading import Settings, draft_file, open_backend
from edgespec.backends.saved_caches import Folder
from edgespec.chat.session import ChatSession
from edgespec.chat.templates import Message, chat_prompt
from edgespec.chat.thinking import knows_thoughts, opens_thoughts
from edgespec.control.policy import FixedDepth, Policy
from edgespec.decoding.asynchronous import AsyncGeneration
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.joint import Outcome
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.stopping import Token
from edgespec.device.power import MODES, threads_for
from edgespec.drafters.base import Drafter
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import ContextFull, UsageError
from edgespec.grammar.constraint import Constraint, grammar, json_schema, regex
from edgespec.grammar.thoughts import after_thoughts
from edgespec.hub.model_file import ModelFile, Pair
from edgespec.hub.onnx_folder import is_onnx
from edgespec.hub.resolve import best_installed_pair, resolve, resolve_pair
from edgespec.pairing import controlled, open_draft
from edgespec.planning import check_memory

log = logging.getLogger(__name__)

Depth: TypeAlias = int | Literal["auto"]
USUAL_DEPTH = 4
"""what backends are compared at where the depth changes from round to round"""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""plain text to continue; messages for the model's chat template; or token ids"""


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `Runtime.generate` that shape the distribution; see `SamplerSettings`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: Mapping[int, float]


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Runtime.generate`; see `Request`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    json_schema: Mapping[str, Any] | bool | None
    regex: str | None
    grammar: str | Constraint | None
    seed: int | None
    logprobs: int | None
    on_prompt: Callable[[int, int], None]
    on_round: Callable[[Round], None]
    on_token: Callable[[Token], None]


def load(
    pair: str | Path | None = None,
    *,
    draft: str | Path | None = None,
    depth: Depth = "auto",
    backend: str = "llama.cpp",
    draft_backend: str | None = None,
    provider: str | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    kv_type: str | None = None,
    repack: bool = True,
    mmap: bool = True,
    gpu_layers: int | None = None,
    lora: Sequence[str | Path] = (),
    chat_template: str | None = None,
    strict: bool = False,
    memory_check: bool = True,
    power: str = "performance",
    parallel: int = 1,
    cache_memory: int = 0,
    cache_dir: str | Path | None = None,
    cache_disk: int = 1 << 30,
) -> Runtime:
    """Load a target with its drafter.

    pair: a catalog name ("qwen2.5-coder"), a path (of a GGUF file or of a folder with an ONNX model),
        "hf:owner/repo/file.gguf", "ollama:name" or "lmstudio:publisher/repo"; None: the best catalog
        pair on disk.
    draft: a model named likewise, "ngram" (prompt lookup), "rules" (only what a grammar forces, which the
        others begin with, too) or "none" (plain decoding); no depth goes with the last two but "auto" and
        0. None: the pair's own draft, or prompt lookup for a lone model.
    depth: tokens drafted per round; 0 is plain decoding. "auto" decides every round anew whether to
        draft, with the draft model or by lookup, and how deep, from measured costs and acceptance; with
        models that are new here it measures for some seconds first.
    backend, draft_backend: "llama.cpp", "onnx" (a GGUF model must have been converted) or "auto" (the
        faster one, measured once); the draft's is the target's unless given, and "onnx" for an ONNX model.
    provider: what ONNX Runtime computes on: "cpu" (the default), "auto", "cuda", …
    n_ctx: tokens of context; None: 4096, or what the model was trained for if that is less.
    threads, kv_type, repack, mmap, gpu_layers, lora: see `LlamaCppOptions`; the ONNX
        backend refuses what it cannot honour. kv_type None: f16, and f32 in ONNX.
    chat_template: Jinja source to use instead of the model's.
    strict: demand output bitwise equal to plain decoding; refused on backends that cannot give it.
    memory_check: refuse what cannot stay in memory, before anything is allocated (see docs/devices.md).
    power: "performance" takes a thread per big core, "balanced" half of them; "saver" takes one thread, and
        looks up where the pair would draft with a model.
    parallel: generations that may be under way at once, each in a thread of its own, taking turns on the
        models round by round, or all in one thread, sharing passes (`Runtime.step`); each has a KV cache of
        n_ctx tokens.
    cache_memory: bytes for the KV caches of conversations besides the last `parallel` ones.
    cache_dir, cache_disk: a folder that only this user can read, and how many bytes of KV caches are saved
        there when the runtime is closed; the next one goes on from them. None: nothing is saved.

    Raises UsageError, ModelError (IncompatiblePair among them), NotEnoughMemory, BackendError. Nothing is
    downloaded.
    """
    numbers = {
        "depth": depth,
        "parallel": parallel,
        "cache_memory": cache_memory,
        "cache_disk": cache_disk,
    }
    for name, value in {**numbers, "n_ctx": n_ctx, "threads": threads, "gpu_layers": gpu_layers}.items():
        if name == "depth" and value == "auto":
            continue
        if not (isinstance(value, int) or (value is None and name not in numbers)):
            raise UsageError(f"{name} is {value!r}; it must be a whole number")
    if parallel < 1 or min(cache_memory, cache_disk) < 0:
        raise UsageError("parallel must be at least 1, and cache_memory and cache_disk 0 or more bytes")
    if provider is not None and backend == "llama.cpp" and draft_backend in (None, "llama.cpp"):
        raise UsageError("a provider is ONNX Runtime's; use it with --backend onnx, or leave it out")
    limit = LlamaCppOptions().max_rows - 1
    if depth != "auto" and not 0 <= depth <= limit:
        raise UsageError(f"depth is {depth}; it must be between 0 (plain decoding) and {limit}")
    if str(draft) in ("none", "rules") and depth not in ("auto", 0):
        why = "decodes plainly" if str(draft) == "none" else "drafts what a grammar forces"
        raise UsageError(
            f"--draft {draft} {why}, so --depth {depth} has no place; leave --depth out, or name a draft, "
            "such as --draft ngram"
        )
    _check_power(power, threads)
    named = _pair(str(pair) if pair is not None else None)
    wanted = named.draft if draft is None else str(draft)
    if power == "saver" and wanted not in _NO_MODEL:
        if draft is not None:
            raise UsageError("--power saver takes no draft model; leave --draft or --power out")
        wanted = "ngram"
    threads = threads if power == "performance" else threads_for(power)
    if wanted is None and depth == "auto":
        wanted = "ngram"
    settings = Settings(
        n_ctx=n_ctx,
        threads=threads,
        kv_type=kv_type,
        repack=repack,
        mmap=mmap,
        gpu_layers=gpu_layers,
        lora=tuple(map(Path, lora)),
        provider=provider,
        strict=strict,
        sequences=parallel,
    )
    file, runs_on = None, draft_backend
    if wanted not in _NO_MODEL:
        file = resolve(wanted) if isinstance(wanted, str) else wanted
    if depth == 0:  # it was named, so it must exist
        file = None
    if file is not None:
        file = draft_file(file, draft_backend, backend, settings)
        runs_on = draft_backend or ("onnx" if is_onnx(file.path) else backend)
    if memory_check:
        check_memory(named.target, backend, file, runs_on, settings, cache_memory)
    folder = None if cache_dir is None else Folder(Path(cache_dir), cache_disk, _bits(settings))
    kept = Kept(cache_memory, folder)
    with ExitStack() as opened:  # what is loaded is freed again unless the runtime takes it over
        target = open_backend(named.target, backend, settings, USUAL_DEPTH if depth == "auto" else depth)
        opened.callback(target.close)
        if wanted not in (None, "none") and not target.capabilities.rollback:
            reason = f"{target.name} cannot speculate: {target.capabilities.reason}"
            if draft is not None:  # asked for by name: refuse rather than ignore
                raise UsageError(f"{reason}; leave --draft out")
            log.warning("%s; it decodes plainly", reason)
            wanted = None
        if draft_backend is not None and wanted in _NO_MODEL:
            raise UsageError("--draft-backend is for a draft model, and there is none; leave it out")
        model = None
        if file is not None and wanted is not None:
            loaded = open_draft(file, target, runs_on or backend, settings, _advice(named, draft))
            opened.callback(loaded.close)
            model = Caches(loaded, parallel, kept)
        drafters: list[Drafter] = []
        policy: Policy = FixedDepth(0)
        save: Callable[[], None] = _nothing
        if wanted == "rules" and depth != 0:
            policy = FixedDepth(1)
        elif wanted not in (None, "none") and depth != 0:
            if depth == "auto":
                drafters, policy, save = controlled(target, named.target, model, file, settings)
            else:
                drafters, policy = (
                    [NGram() if model is None else DraftModel(model.backend, caches=model)],
                    FixedDepth(depth),
                )
        runtime = Runtime(named.name, target, drafters, policy, depth, chat_template, save, parallel, kept)
        opened.pop_all()
        return runtime


_NO_MODEL = (None, "none", "ngram", "rules")
"""drafts that are no models"""


def _bits(settings: Settings) -> str:
    """What a KV cache depends on besides its model."""
    return repr((settings.kv_type, settings.provider, [identity(path) for path in settings.lora]))


def _check_power(power: str, threads: int | None) -> None:
    if power not in MODES:
        raise UsageError(f"power is {power!r}; choose from {', '.join(MODES)}")
    if power != "performance" and threads is not None:
        raise UsageError(f"--power {power} says how many threads; leave it or --threads out")


def _nothing() -> None:
    pass


def _pair(name: str | None) -> Pair:
    if name is not None:
        return resolve_pair(name)
    best = best_installed_pair()
    if best is None:
        raise UsageError("no model is on this machine yet; fetch one: edgespec pull smollm2-135m")
    return best


def _advice(pair: Pair, asked: str | Path | None) -> str:
    """Which draft would fit instead."""
    if asked is not None and isinstance(pair.draft, ModelFile):
        return f"{pair.draft.title} fits (leave --draft out); so does --draft ngram"
    return "Use --draft ngram, which fits every target"


class Runtime:
    """A loaded pair. `parallel` generations at a time; `close()` or a with-block frees the models.

    Starting one more ends an unfinished one of the same thread; where all are other threads', UsageError is
    raised. `Generation.cancel` may be called from any thread. For asyncio there are `astream`, `agenerate`
    and `aclose()`, or an async with-block.
    """

    def __init__(
        self,
        name: str,
        target: Backend,
        drafters: Sequence[Drafter],
        policy: Policy,
        depth: Depth,
        chat_template: str | None = None,
        save: Callable[[], None] = _nothing,
        parallel: int = 1,
        kept: Kept | None = None,
    ) -> None:
        """Takes over `target` and `drafters`: closing the runtime closes them, after `save`. See `load`.

        Raises UsageError for a trimmed draft as target.
        """
        if target.capabilities.drafts_only:
            raise UsageError(f"{target.name} can only draft: its output head has some of the tokens only")
        self.name = name
        self.target = target
        self.drafters = tuple(drafters)
        self.policy = policy
        self.depth: Depth = depth if drafters else 0
        self._chat_template = chat_template
        self.parallel = parallel
        self._engine = Engine(target, drafters, policy, parallel, kept)
        self._pool = ThreadPoolExecutor(parallel, "edgespec")
        """answers asyncio's requests, so many at a time; its threads start with the first"""
        self._tokenizing = RLock()
        """held while the tokenizer is used, which another thread might close"""
        # A runtime that is dropped without close() must not keep gigabytes; a generation still in use
        # keeps the engine, and with it the models.
        self._free = finalize(self._engine, _close, target, self.drafters, save)
        self._free.atexit = False

    @property
    def kept(self) -> Kept:
        """The KV caches of earlier conversations."""
        return self._engine.caches.kept

    @property
    def drafter(self) -> Drafter | None:
        """The draft model, or what drafts where there is none."""
        return self.drafters[0] if self.drafters else None

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Start an answer; iterate over it for its tokens. Options as of `generate`."""
        return self._engine.generate(*self._asked(prompt, options))

    def step(self, answers: Sequence[Generation]) -> list[Outcome]:
        """A turn of each of this runtime's unfinished answers, in passes of the target that they share where
        it can; what came of each. Instead of iterating over them. See `Engine.step`."""
        return self._engine.step(answers)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """Answer `prompt` to the end; `text`, `tokens`, `finish_reason` and `stats` hold the result.

        prompt: text to continue, messages for the chat template, or token ids.
        max_tokens: None is until the model ends or the context is full.
        temperature (0 = greedy), top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, penalty_window, logit_bias: see `SamplerSettings`.
        stop: strings that end the output.
        json_schema, regex, grammar: the form of the output, one of the three: JSON of a schema (a
            dictionary), text that a regular expression matches, or text of a Lark or GBNF grammar (or what
            `edgespec.grammar.constraint.grammar` made of it). With finish_reason "stop" it has that form,
            unless a stop string ended it; otherwise it is cut off. What a model thinks aloud before is free.
        seed: the output depends on it alone, not on drafter or depth (near-ties aside, where the
            backend's logits depend on the number of tokens in a pass); without one it is random
            where temperature > 0.
        logprobs: report log-probabilities and this many alternatives per token.
        on_prompt(done, total), on_round(round), on_token(token): progress, called in the generating
            thread; they may cancel the generation and nothing else of the runtime's.

        Raises UsageError, ContextFull, BackendError.
        """
        return self.stream(prompt, **options).run()

    def generate_plain(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """As `generate`, without drafting: what speculation is compared with."""
        return self._engine.generate(*self._asked(prompt, options), FixedDepth(0)).run()

    def generate_as(self, other: Runtime, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """As `generate`, with another runtime's drafters and policy on this one's target: to compare drafts,
        with nothing else that differs. Both must have the same target."""
        asked = self._asked(prompt, options)
        return self._engine.generate(*asked, other.policy, other.drafters).run()

    def _asked(self, prompt: Prompt, options: Mapping[str, Any]) -> tuple[list[int], Request]:
        tokens, request = self.tokenize(prompt), _request(options)
        if (wanted := request.constraint) is not None:
            begun = opens_thoughts(tokens, self.target.tokenizer)
            if begun or (not isinstance(prompt, str) and knows_thoughts(self.chat_template)):
                request = replace(request, constraint=after_thoughts(wanted, begun))
        return tokens, request

    def astream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """An answer for asyncio: `async for` over it for its tokens. Options as of `generate`; callbacks
        are called in a thread of the runtime. `parallel` take turns, more wait.

        Errors of `generate` are raised when it is read.
        """
        return AsyncGeneration(lambda: self.stream(prompt, **options), self._pool)

    async def agenerate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGeneration:
        """As `generate`, for asyncio: cancelling the task cancels the generation."""
        async with self.astream(prompt, **options) as answer:
            async for _ in answer:
                pass
        return answer

    def chat(self, system: str | None = None) -> ChatSession:
        """A conversation that remembers its turns."""
        return ChatSession(self, system)

    def tokenize(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids a prompt stands for.

        tools: functions that the chat template tells the model of, as OpenAI's API describes them; for
        messages.
        """
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise UsageError(
                f"a prompt is text, a list of messages, or a list of token ids, not {type(prompt).__name__}"
            )
        if isinstance(prompt, str):
            with self._tokenizing:
                self._refuse_endless(prompt)
                return self.target.tokenizer.encode(prompt)
        if all(isinstance(part, Mapping) for part in prompt):
            messages = cast("Sequence[Message]", prompt)
            with self._tokenizing:
                self._refuse_endless(*(str(message.get("content")) for message in messages), *map(str, tools))
                return chat_prompt(self.target, messages, self._chat_template, tools)
        width = self.target.tokenizer.n_vocab
        for token in prompt:
            if not isinstance(token, int | np.integer) or not 0 <= token < width:
                raise UsageError(
                    f"{token!r} is no token id of {self.target.name}; those are 0 to {width - 1}"
                )
        return [int(token) for token in cast("Sequence[int]", prompt)]

    def _refuse_endless(self, *texts: str) -> None:
        """Tokenizing takes long on megabytes that cannot fit anyway: every token has a longest text."""
        n_ctx, size = self.target.n_ctx, sum(map(len, texts))
        if size > 32 * n_ctx:
            longest = max(map(len, self.target.tokenizer.vocabulary()))
            if size > longest * n_ctx:
                raise ContextFull(
                    f"the prompt has {size} characters, and the context of {n_ctx} tokens cannot hold them; "
                    "shorten the prompt or raise --ctx"
                )

    @property
    def chat_template(self) -> str | None:
        """The one that messages are written with."""
        return self.target.chat_template if self._chat_template is None else self._chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be answered."""
        return self.chat_template is not None

    def close(self) -> None:
        """End a running generation and free everything. Safe to call twice and from any thread."""
        self._engine.close()
        self._pool.shutdown()  # what waits there is refused
        with self._tokenizing:
            self._free()

    async def aclose(self) -> None:
        """As `close`, without holding up the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _close(target: Backend, drafters: Sequence[Drafter], save: Callable[[], None]) -> None:
    save()
    for drafter in drafters:
        drafter.close()
    target.close()


_SAMPLING = {f.name for f in fields(SamplerSettings)}
_FORMS: Mapping[str, Callable[[Any], Constraint]] = {
    "json_schema": json_schema,
    "regex": regex,
    "grammar": grammar,
}
_REQUEST = {f.name for f in fields(Request)} - {"sampling", "constraint"}


def _request(options: Mapping[str, Any]) -> Request:
    """Sort keyword options into sampler settings and the rest."""
    known = _SAMPLING | _REQUEST | _FORMS.keys()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
    sampling = SamplerSettings(**{k: v for k, v in options.items() if k in _SAMPLING})
    rest = {k: v for k, v in options.items() if k in _REQUEST}
    stop = rest.get("stop", ())
    rest["stop"] = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    return Request(sampling, constraint=form(options), **rest)


def form(options: Mapping[str, Any]) -> Constraint | None:
    """The form that the output must have by these options of `generate`, if any. Raises UsageError."""
    given = [name for name in _FORMS if options.get(name) is not None]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} are both given; an answer has one form, so leave one out"
        )
    if not given:
        return None
    value = options[given[0]]
    return value if isinstance(value, Constraint) else _FORMS[given[0]](value)
