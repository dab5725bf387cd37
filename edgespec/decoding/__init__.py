"""The algorithm. Imports no backend: see engine.py for the method on one screen."""
