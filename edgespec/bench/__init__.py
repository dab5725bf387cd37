"""Measurements: what edgespec claims, checked on this machine."""
