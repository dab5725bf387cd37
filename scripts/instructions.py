"""Counts the instructions that the native kernels take per weight, and estimates a Raspberry Pi 5 from them.

    scripts/instructions.py build/x86_64/native_check
    scripts/instructions.py build/aarch64/native_check --model MODEL.gguf

`scripts/test --emulate` builds the programs. Instructions for Arm are counted in an emulator, those for x86
by single steps. Nothing is timed: what is said of seconds is an estimate.
"""

from __future__ import annotations

import argparse
import subprocess
from functools import cache
from pathlib import Path

import gguf

TOKENS = (1, 2, 4, 8, 16)
INPUTS = 512
X86_PATHS = ("avx512vnni", "avxvnni", "avx2")
ARM_CPUS = {"neon": "cortex-a72", "dotprod": "cortex-a76", "i8mm": "max"}
EMULATOR = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
COUNT = ["-singlestep", "-d", "exec,nochain", "-D", "/dev/stdout"]

CORES, CLOCK, BANDWIDTH = 4, 2.4e9, 10e9
IPC = 2.0
"""Cortex-A76: two vector pipes, and nearly all of the inner loop is vector instructions. Loads, addresses and
prefetches go beside, so this is on the safe side; waiting for a chain of sums may take from it."""


@cache
def is_arm(program: str) -> bool:
    return Path(program).read_bytes()[18:20] == b"\xb7\0"  # the ELF header's machine


def total(program: str, path: str, type_: str, tokens: int, outputs: int) -> int:
    """Instructions of a multiplication; for Arm, of the whole program."""
    work = [path, type_, str(tokens), str(outputs), str(INPUTS)]
    if not is_arm(program):
        return int(subprocess.check_output([program, "--count", *work]))
    command = [*EMULATOR, "-cpu", ARM_CPUS[path], *COUNT, program, "--work", *work]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        count = sum(line.startswith(b"Trace") for line in process.stdout)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return count


@cache
def per_weight(program: str, path: str, type_: str, tokens: int) -> float:
    """What a further tile of 16 rows takes, per weight of it."""
    more, less = (total(program, path, type_, tokens, outputs) for outputs in (32, 16))
    return (more - less) / (16 * INPUTS)


def matrices(model: str) -> dict[str, tuple[int, int]]:
    """Type → weights and bytes of the matrices that a pass multiplies with. The embedding is one as output
    head alone."""
    reader = gguf.GGUFReader(model)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    found: dict[str, tuple[int, int]] = {}
    for tensor in reader.tensors:
        if len(tensor.shape) != 2 or (tensor.name == "token_embd.weight" and not tied):
            continue
        weights, size = found.get(tensor.tensor_type.name, (0, 0))
        found[tensor.tensor_type.name] = weights + int(tensor.n_elements), size + int(tensor.n_bytes)
    return found


def paths(program: str) -> list[str]:
    """Those that can be counted here: an emulator has all, a processor its own."""
    if is_arm(program):
        return list(ARM_CPUS)
    work = ["Q4_0", "1", "16", str(INPUTS)]
    return [path for path in X86_PATHS if subprocess.run([program, "--work", path, *work]).returncode == 0]


def print_counts(program: str, types: list[str]) -> None:
    print("Instructions per weight, by the number of tokens\n")
    print("| path | type |" + "".join(f" {n} |" for n in TOKENS))
    print("|---|---|" + "---|" * len(TOKENS))
    for path in paths(program):
        for type_ in types:
            row = "".join(f" {per_weight(program, path, type_, n):.2f} |" for n in TOKENS)
            print(f"| {path} | {type_} |{row}", flush=True)


def print_estimate(program: str, model: str) -> None:
    found = matrices(model)
    print(
        f"\nESTIMATE, not measured: the matrices of {Path(model).name} on a Raspberry Pi 5,"
        f"\n{CORES} cores at {CLOCK / 1e9} GHz with {IPC} instructions per cycle, {BANDWIDTH / 1e9:.0f} GB/s."
        "\nA pass takes the longer of reading and computing where they overlap, and at worst their sum.\n"
    )
    print("| n | read, ms | compute, ms | T(n), ms | at worst |\n|---|---|---|---|---|")
    read = sum(size for _, size in found.values()) / BANDWIDTH
    for n in TOKENS:
        work = sum(
            weights * per_weight(program, "dotprod", type_, n) for type_, (weights, _) in found.items()
        )
        compute = work / (CORES * CLOCK * IPC)
        cells = (read, compute, max(read, compute), read + compute)
        print(f"| {n} |" + "".join(f" {1e3 * seconds:.0f} |" for seconds in cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="tests/kernels/native_check.cpp, built for this processor or for Arm")
    parser.add_argument("--types", default="Q4_0,Q4_K,Q6_K,Q8_0", help="ggml's names (%(default)s)")
    parser.add_argument("--model", help="a GGUF file to estimate the time of a pass for")
    arguments = parser.parse_args()
    if arguments.model and not is_arm(arguments.program):
        parser.error("--model needs a program that is built for Arm")
    print_counts(arguments.program, arguments.types.split(","))
    if arguments.model:
        print_estimate(arguments.program, arguments.model)


if __name__ == "__main__":
    main()
