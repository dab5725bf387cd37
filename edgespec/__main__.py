"""`python -m edgespec`: the command line."""

from edgespec.cli import main

main(prog_name="edgespec")
