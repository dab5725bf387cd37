"""What a person at a terminal gives and sees; the commands of `edgespec.cli` are made of it."""
