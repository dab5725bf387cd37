"""Model names, downloads and what is on disk."""
