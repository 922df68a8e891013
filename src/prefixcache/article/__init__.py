"""The article that this library answers to, claim by claim: what it says, a test of it, and the verdict."""

from __future__ import annotations

from prefixcache.article import chains, choice, claiming, story, structures, tries
from prefixcache.article.claim import CLAIMS, CONDITION, HOLDS, VERDICTS, WRONG, Claim, Finding, Measured
from prefixcache.article.story import told

__all__ = ["CLAIMS", "CONDITION", "HOLDS", "NUMBERS", "VERDICTS", "WRONG", "Claim", "Finding", "Measured", "told"]

NUMBERS = tuple(f"C{number}" for number in range(1, 35))  # of the list that the article was cut into
_SECTIONS = (structures, chains, tries, claiming, choice, story)  # importing them has registered their claims
