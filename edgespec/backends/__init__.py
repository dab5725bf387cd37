"""Runtimes that own models, one file each behind one protocol (base.py)."""
