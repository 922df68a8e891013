"""What identifies a prefix: its tokens, its scope, the media under its tokens, and the chain over its blocks."""

from prefixcache.keys.chain import HASHES, ChainHash
from prefixcache.keys.extras import Extras, Media, common_extras, pack_extra_ids, read_media
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
    "common_extras",
    "common_tokens",
    "pack_extra_ids",
    "read_media",
    "to_tuple",
]
