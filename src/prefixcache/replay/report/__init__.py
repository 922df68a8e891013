"""What a replay found out, for people (a table and sentences) and for programs (JSON)."""

from prefixcache.replay.report.document import as_document
from prefixcache.replay.report.sentences import sentences
from prefixcache.replay.report.table import as_table, title

__all__ = ["as_document", "as_table", "sentences", "title"]
