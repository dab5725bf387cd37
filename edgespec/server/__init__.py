"""An OpenAI-compatible HTTP server over one loaded pair."""
