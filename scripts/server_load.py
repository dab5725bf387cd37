"""Puts a server under load: many clients, some of which leave in the middle of their answers.

    python scripts/server_load.py PAIR [--seconds 120] [--clients 32] [options of edgespec serve]
    python scripts/server_load.py PAIR --speed 1,2,4 [options of edgespec serve]

Starts `edgespec serve PAIR` with one thread and a short context, asks each prompt alone, then lets the
clients ask at random for the given time: whole and streamed, greedy. At the end it prints, and exits
with 1 unless:

- every finished answer is its prompt's own: what it was alone. On a backend whose logits depend on what
  shares a pass a near-tie may turn it; such answers are counted apart, and must leave their own where the
  token that they go on with was nearly as probable;
- nothing is left in the queue, and nothing is being answered;
- memory has not grown since the first quarter of the time by more than a few MB.

With --speed it measures instead how many tokens per second so many streams get in total.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import httpx

PROMPTS = [
    f"stay {word} my user" for word in ("yes", "my", "sister", "art", "assistant", "mate", "stray", "a")
]
TOKENS = 60
ALLOWED_GROWTH = 16 << 20
NEAR = 0.5
"""how much less probable (difference of logarithms) a near-tie's token may be: on llama.cpp those of a
4-bit model were seen to move by 0.36"""


class Place(NamedTuple):
    """A token of an answer, and what it might have been."""

    token: str
    likely: dict[str, float]
    """log-probabilities, the token's own among them; the end's text is empty"""


@dataclass
class Seen:
    """What the clients have met."""

    alone: dict[str, list[Place]]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def judge(self, prompt: str, text: str) -> None:
        alone = self.alone[prompt]
        if text == "".join(place.token for place in alone):
            self.counts["equal"] += 1
        elif turned(text, alone):
            self.counts["near-tie"] += 1
        else:
            self.wrong.append((prompt, text))


def turned(text: str, alone: Sequence[Place]) -> bool:
    """Whether a text leaves another answer at a near-tie."""
    begun = ""
    for token, likely in alone:
        near = [other for other in likely if other != token and likely[other] > likely[token] - NEAR]
        if any(text.startswith(begun + other) if other else text == begun for other in near):
            return True
        begun += token
        if not text.startswith(begun):
            return False
    return len(text) > len(begun)  # where the other ended it goes on, and how probable that was is not told


def body(prompt: str, **more: object) -> dict[str, object]:
    return {"prompt": prompt, "temperature": 0, "max_tokens": TOKENS, **more}


async def stream(client: httpx.AsyncClient, prompt: str, leave_after: int | None) -> str | None:
    """The text of a stream; None if it was refused, or left after so many events."""
    text, events = "", 0
    async with client.stream("POST", "/v1/completions", json=body(prompt, stream=True)) as response:
        if response.status_code != 200:
            return None
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return text
            if line.startswith("data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
                events += 1
            if events == leave_after:
                return None
    raise RuntimeError("a stream ended before its end")


async def one_client(url: str, until: float, seen: Seen, chance: random.Random) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        while monotonic() < until:
            prompt = chance.choice(PROMPTS)
            kind = chance.choice(["whole", "stream", "left", "hung up"])
            seen.counts[kind] += 1
            if kind == "whole":
                response = await client.post("/v1/completions", json=body(prompt))
                if response.status_code == 200:
                    seen.judge(prompt, response.json()["choices"][0]["text"])
                else:
                    seen.counts[str(response.status_code)] += 1
                    await asyncio.sleep(0.2)
            elif kind == "hung up":
                try:
                    await client.post("/v1/completions", json=body(prompt), timeout=chance.uniform(0.01, 1))
                except httpx.TimeoutException:
                    continue
            else:
                leave_after = chance.randrange(TOKENS // 2) if kind == "left" else None
                text = await stream(client, prompt, leave_after)
                if text is not None:
                    seen.judge(prompt, text)
                elif kind == "stream":
                    await asyncio.sleep(0.2)  # refused


async def memory(client: httpx.AsyncClient) -> float:
    """Bytes resident."""
    metrics = (await client.get("/metrics")).text
    found = re.search(r"^process_resident_memory_bytes (\S+)", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def load(url: str, seconds: float, clients: int) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        alone = {}
        for prompt in PROMPTS:
            response = await client.post("/v1/completions", json=body(prompt, logprobs=5))
            said = response.raise_for_status().json()["choices"][0]["logprobs"]
            alone[prompt] = list(map(Place, said["tokens"], said["top_logprobs"]))
        seen, until = Seen(alone), monotonic() + seconds
        tasks = [
            asyncio.create_task(one_client(url, until, seen, random.Random(seed))) for seed in range(clients)
        ]
        await asyncio.sleep(seconds / 4)
        warm = await memory(client)
        await asyncio.gather(*tasks)
        for _ in range(100):
            stats = (await client.get("/v1/edgespec/stats")).json()
            if not (stats["answering"] or stats["waiting"]):
                break
            await asyncio.sleep(0.1)
        grown = await memory(client) - warm
        print(dict(seen.counts))
        print(f"memory grew by {grown / 2**20:.1f} MB after the first quarter")
        print(f"stuck: {stats['answering']}, waiting: {stats['waiting']}, wrong answers: {seen.wrong[:3]}")
        idle = not (stats["answering"] or stats["waiting"])
        return idle and not seen.wrong and grown < ALLOWED_GROWTH and seen.counts["equal"] > 0


async def speed(url: str, streams: int, answers: int = 3) -> float:
    """Tokens per second, prompts included, of so many clients that stream one answer after the other."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:

        async def one(prompt: str) -> int:
            total = 0
            for _ in range(answers):
                response = await client.post("/v1/completions", json=body(prompt))
                total += response.raise_for_status().json()["usage"]["completion_tokens"]
            return total

        prompts = PROMPTS[:streams]
        await asyncio.gather(*map(one, prompts))  # warm
        started = monotonic()
        tokens = sum(await asyncio.gather(*map(one, prompts)))
        return tokens / (monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--speed", metavar="N,…")
    given, serving = parser.parse_known_args()
    command = [sys.executable, "-m", "edgespec", "serve", given.pair, "--port", "0"]
    options = ["--threads", "1", "--ctx", "512", *serving]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            ready = next(filter(None, (re.search(r"at (http://\S+)/v1", line) for line in server.stderr)))
            good = True
            if given.speed:
                for streams in map(int, given.speed.split(",")):
                    print(f"{streams} at once: {asyncio.run(speed(ready[1], streams)):.1f} tok/s", flush=True)
            else:
                good = asyncio.run(load(ready[1], given.seconds, given.clients))
        finally:
            server.terminate()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
