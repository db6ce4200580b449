"""By which texts are found to be the same: a hash of the text with its letters in one form and its white space made
equal.
"""

import re
import unicodedata

_PIECE_CHARACTERS = 1 << 16
_SPACE = re.compile(r"\s")


def text_hash(text: str) -> int:
    """64 bits; two of a billion different texts are taken for the same with a chance of one in 40.

    A long text is hashed in pieces that begin at white space, where letters do not combine.
    """
    import xxhash

    digest, start, gap = xxhash.xxh3_64(), 0, ""
    while start < len(text):
        space = _SPACE.search(text, start + _PIECE_CHARACTERS)
        end = space.start() if space else len(text)
        words = unicodedata.normalize("NFC", text[start:end]).split()
        if words:
            digest.update((gap + " ".join(words)).encode())
            gap = " "
        start = end
    return int(digest.intdigest())
