"""What the server has done, for Prometheus and for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.decoding.rounds import Round, Stats
from edgespec.decoding.stopping import FinishReason
from edgespec.device.thermal import read_thermal

_DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
_SHARING = (1, 2, 3, 4, 6, 8, 12, 16)
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class Metrics:
    """Counts; an `Observer` of turns. Its registry is its own, so several servers fit into a process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.last: Stats | None = None
        """of the answer that ended last"""
        self.totals = {
            "answers": 0, "prompt_tokens": 0, "cached_tokens": 0, "tokens": 0, "rounds": 0,
            "drafted": 0, "accepted": 0, "decode_seconds": 0.0, "draft_seconds": 0.0, "verify_seconds": 0.0,
        }  # fmt: skip
        self.requests = Counter(
            "edgespec_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self._answers = Counter(
            "edgespec_answers", "Answers generated.", ["finish_reason"], registry=registry
        )
        self._prompt = Counter("edgespec_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._cached = Counter("edgespec_cached_tokens", "Those not processed again.", registry=registry)
        self._tokens = Counter("edgespec_generated_tokens", "Tokens of answers.", registry=registry)
        self._drafted = Counter("edgespec_drafted_tokens", "Tokens drafted.", registry=registry)
        self._accepted = Counter("edgespec_accepted_tokens", "Drafted tokens accepted.", registry=registry)
        self._decode = Counter(
            "edgespec_decode_seconds", "Time from first to last tokens.", registry=registry
        )
        self._depth = Histogram(
            "edgespec_round_depth", "Tokens drafted in a round.", buckets=_DEPTHS, registry=registry
        )
        self._verify = Histogram(
            "edgespec_verify_seconds", "The target's passes.", buckets=_SECONDS, registry=registry
        )
        self._sharing = Histogram(
            "edgespec_pass_answers",
            "Answers that share a pass of the target.",
            buckets=_SHARING,
            registry=registry,
        )
        self._draft = Histogram(
            "edgespec_draft_seconds", "Drafting in a round.", buckets=_SECONDS, registry=registry
        )
        self._speed = Gauge(
            "edgespec_tokens_per_second", "Decode speed of the last answer.", registry=registry
        )
        celsius = Gauge(
            "edgespec_temperature_celsius", "The hottest zone; NaN if unknown.", registry=registry
        )
        celsius.set_function(_temperature)
        ProcessCollector(registry=registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge that is read when asked for."""
        Gauge(name, about, registry=self.registry).set_function(value)

    def round(self, finished: Round) -> None:
        self._depth.observe(len(finished.drafted))
        if finished.first:
            self._verify.observe(finished.verify.seconds)
            self._sharing.observe(1 + finished.others.generations)
        if finished.drafted:
            self._draft.observe(finished.draft_seconds)
            self._drafted.inc(len(finished.drafted))
            self._accepted.inc(finished.accepted)

    def answered(self, stats: Stats, reason: FinishReason | None) -> None:
        self._answers.labels(reason or "failed").inc()
        self._prompt.inc(stats.prompt_tokens)
        self._cached.inc(stats.cached_tokens)
        self._tokens.inc(stats.tokens)
        self._decode.inc(stats.decode_seconds)
        if stats.decode_tokens:
            self._speed.set(stats.tokens_per_second)
        self.last = stats
        self.totals["answers"] += 1
        for name in self.totals.keys() - {"answers"}:
            self.totals[name] += getattr(stats, name)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def summary(self) -> dict[str, Any]:
        """For /v1/edgespec/stats."""
        last = None if self.last is None else self.last.as_dict()
        return {"totals": dict(self.totals), "last_answer": last}


def _temperature() -> float:
    celsius = read_thermal().celsius
    return float("nan") if celsius is None else celsius


class Counted:
    """ASGI middleware that counts requests by path and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app = app
        self._requests = metrics.requests
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests.labels(path, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, noting)
