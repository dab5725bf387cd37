"""Offline bundles: a folder with a pair's models, the wheels that run them, and a script that installs and
starts them without a network. `bundle.make` is the way in."""
