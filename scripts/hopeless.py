"""Makes a draft of a GGUF file whose every proposal is wrong: what speculation must survive.

python scripts/hopeless.py DRAFT.gguf HOPELESS.gguf [--seed 0]

Vocabulary, sizes and types stay, so it costs what the original costs; the rows of every matrix are shuffled.
"""

import shutil
from pathlib import Path

import click
import numpy as np

from edgespec.errors import ModelError
from edgespec.hub.gguf_info import read_parts


@click.command(help=__doc__)
@click.argument("draft", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("hopeless", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True)
def main(draft: Path, hopeless: Path, seed: int) -> None:
    try:
        parts = read_parts(draft)
        if len(parts) > 1:
            raise click.UsageError(f"{draft.name} is one of several parts; take a model in one file")
        shutil.copyfile(draft, hopeless)  # refuses one file named twice
    except (ModelError, OSError) as error:
        raise click.ClickException(str(error)) from None
    random = np.random.default_rng(seed)
    for tensor in parts[0].tensors:
        if len(tensor.shape) == 2:
            shape = (tensor.shape[1], tensor.bytes // tensor.shape[1])
            rows = np.memmap(hopeless, np.uint8, "r+", tensor.offset, shape)
            rows[:] = random.permutation(rows)
    click.echo(f"{hopeless}: the rows of every matrix of {draft.name}, shuffled with seed {seed}")


if __name__ == "__main__":
    main()
