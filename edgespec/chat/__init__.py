"""Chat templates and sessions."""
