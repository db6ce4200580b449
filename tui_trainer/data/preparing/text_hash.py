"""By which texts are found to be the same: a hash of the text with its letters in one form and its white space made
equal.
"""

from __future__ import annotations

import unicodedata


def text_hash(text: str) -> int:
    """64 bits; two of a billion different texts are taken for the same with a chance of one in 40."""
    import xxhash

    return int(xxhash.xxh3_64_intdigest(" ".join(unicodedata.normalize("NFC", text).split()).encode()))
