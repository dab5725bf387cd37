"""Write a closed-form model to a file: python -m tests.closed_form.make OUT.gguf --seed N"""

from __future__ import annotations

import argparse
from pathlib import Path

from .gguf_file import CHAT_TEMPLATE, write_gguf
from .ngram import NGram


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the GGUF file to write")
    parser.add_argument("--seed", type=int, default=0, help="which model (default 0)")
    parser.add_argument(
        "--near", type=int, metavar="SEED", help="resemble the model of this seed: a draft for it"
    )
    parser.add_argument("--mix", type=float, default=0.8, help="how much, as a correlation (default 0.8)")
    parser.add_argument(
        "--end", type=float, default=-1.0, help="bias of the tokens that end a text (default -1)"
    )
    parser.add_argument("--padding", type=int, default=0, metavar="ROWS", help="unused tokens to append")
    parser.add_argument("--rename", metavar="ID=TEXT", help="let one id stand for other text")
    parser.add_argument(
        "--context-length", type=int, default=1024, help="what the file declares (default 1024)"
    )
    parser.add_argument("--chat", action="store_true", help="include a chat template")
    options = parser.parse_args()

    near = None if options.near is None else NGram.random(options.near, end=options.end)
    ngram = NGram.random(options.seed, near=near, mix=options.mix, end=options.end)
    if options.rename:
        token, _, text = options.rename.partition("=")
        ngram = ngram.renamed(int(token), text.encode())
    ngram = ngram.padded(options.padding)
    template = CHAT_TEMPLATE if options.chat else None
    write_gguf(ngram, options.out, context_length=options.context_length, chat_template=template)


if __name__ == "__main__":
    main()
