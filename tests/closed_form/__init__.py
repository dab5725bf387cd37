"""A language model whose distribution is known in closed form, as real model files.

`ngram.py` is the distribution, `transformer.py` turns its tables into weights by hand, and
`gguf_file.py` saves those. A test compares what a runtime samples from the file with what the
tables say, so exactness is checked against arithmetic and not against another forward pass.
"""

from .gguf_file import CHAT_TEMPLATE, write_gguf
from .ngram import NGram, Transform
from .transformer import Transformer, build
from .vocabulary import Vocabulary

__all__ = ["CHAT_TEMPLATE", "NGram", "Transform", "Transformer", "Vocabulary", "build", "write_gguf"]
