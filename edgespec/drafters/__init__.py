"""What proposes tokens: one file each behind one protocol (base.py)."""
