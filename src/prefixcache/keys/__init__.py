"""What identifies a prefix: its tokens, its scope, the media under its tokens, and the chain over its blocks."""

from prefixcache.keys.chain import HASHES, ChainHash
from prefixcache.keys.extras import Extras, Media, read_extras
from prefixcache.keys.memo import ChainMemo
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, as_tokens, common_tokens, to_tuple

__all__ = [
    "HASHES",
    "TOKEN_BYTES",
    "ChainHash",
    "ChainMemo",
    "Extras",
    "Media",
    "Scope",
    "as_tokens",
    "common_tokens",
    "read_extras",
    "to_tuple",
]
