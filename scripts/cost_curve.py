"""The verify cost T(n, L) of several models, interleaved in one run so that drift cancels.

python scripts/cost_curve.py NAME=BACKEND:PATH ... [--contexts 100,1000] [--sizes 1,2,3,4,6,8,12,16]

BACKEND is llama.cpp or onnx. Prints, per context, the median milliseconds of a pass of n tokens with
logits for all of them, and the resident memory of each model.
"""

import json
from pathlib import Path
from statistics import median
from time import perf_counter

import click

from edgespec.backends.base import Backend, Segment, Sequence
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.hub.sizes import human

VOCABULARY = 1000
"""token ids are drawn from the first ones"""


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True)
@click.option("--contexts", default="100,1000", show_default=True)
@click.option("--sizes", default="1,2,3,4,5,6,7,8,10,12,16", show_default=True)
@click.option("--repeats", default=7, show_default=True)
@click.option("--strict", is_flag=True, help="ONNX models: a pass never has one row alone.")
@click.option("--json", "as_json", is_flag=True)
def main(
    models: tuple[str, ...], contexts: str, sizes: str, repeats: int, strict: bool, as_json: bool
) -> None:
    ns = [int(n) for n in sizes.split(",")]
    lengths = [int(length) for length in contexts.split(",")]
    room = max(lengths) + max(ns) + 1
    backends: dict[str, Backend] = {}
    for model in models:
        name, _, where = model.partition("=")
        before, started = _resident(), perf_counter()
        backends[name] = _open(where, room, strict)
        seconds = perf_counter() - started
        click.echo(f"{name}: {human(_resident() - before)} resident, loaded in {seconds:.2f} s", err=True)
    times = {length: _measure(backends, length, ns, repeats) for length in lengths}
    if as_json:
        click.echo(json.dumps(times))
        return
    for length, curves in times.items():
        click.echo(f"\ncontext {length}, ms\n| model | {' | '.join(map(str, ns))} |\n|---|{'---|' * len(ns)}")
        for name, curve in curves.items():
            click.echo(f"| {name} | {' | '.join(f'{curve[n]:.1f}' for n in ns)} |")


def _open(where: str, room: int, strict: bool) -> Backend:
    backend, _, path = where.partition(":")
    if backend == "llama.cpp":
        return LlamaCpp(Path(path), LlamaCppOptions(n_ctx=room))
    return Onnx(Path(path), OnnxOptions(n_ctx=room, strict=strict))


def _measure(
    backends: dict[str, Backend], length: int, ns: list[int], repeats: int
) -> dict[str, dict[int, float]]:
    """name → n → median milliseconds."""
    sequences = {name: backend.open() for name, backend in backends.items()}
    for name, backend in backends.items():
        tokens = [i * 37 % VOCABULARY for i in range(length)]
        started = perf_counter()
        while tokens:
            backend.forward([Segment(sequences[name], tokens[: backend.max_batch], rows=0)])
            tokens = tokens[backend.max_batch :]
        click.echo(f"{name}: {length / (perf_counter() - started):.0f} tok/s of prompt", err=True)
    seconds: dict[str, dict[int, list[float]]] = {name: {n: [] for n in ns} for name in backends}
    for _ in range(repeats):
        for name, backend in backends.items():
            # The other models' weights are in the caches: one pass that does not count.
            _pass(backend, sequences[name], length, 1)
            for n in ns:
                seconds[name][n].append(_pass(backend, sequences[name], length, n))
    for name, backend in backends.items():
        backend.close(sequences[name])
    return {name: {n: 1000 * median(s) for n, s in by_n.items()} for name, by_n in seconds.items()}


def _pass(backend: Backend, sequence: Sequence, length: int, n: int) -> float:
    """Seconds for n tokens behind the first `length`."""
    tokens = [i * 41 % VOCABULARY for i in range(n)]
    started = perf_counter()
    backend.forward([Segment(sequence, tokens, rows=n)])
    seconds = perf_counter() - started
    backend.rollback(sequence, length)
    return seconds


def _resident() -> int:
    """Bytes of this process in memory, mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
