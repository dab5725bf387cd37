"""Who decides how deep to draft (policy.py)."""
