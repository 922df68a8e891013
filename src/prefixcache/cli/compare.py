"""`prefixcache compare`: what each design would have reused of a trace, what it loses and why."""

from __future__ import annotations


def compare() -> None:
    """Replay traffic through every design and show what each one reuses, loses, and why."""
