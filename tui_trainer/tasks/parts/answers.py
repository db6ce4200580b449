"""How near a written answer comes to its reference: ROUGE and exact match, each between 0 and 1.

ROUGE here compares words as they stand: runs of letters, digits and underscores in lower case, without stemming, so
"walks" and "walked" are two words. Figures of programs that stem are a little higher. `rouge-score` compares words of
a to z alone, and takes a second for two texts of a thousand words: on English the figures here are equal to its own.
Sources: Lin, ROUGE: a package for automatic evaluation of summaries (2004); Rajpurkar et al., arXiv:1606.05250,
section 6.1, for exact match.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SCORES = ("rouge1", "rouge2", "rougeL", "exact_match")
_WORD = re.compile(r"\w+")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def mean_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean of each of SCORES over pairs of an answer and its reference. There is one pair or more."""
    scored = [_scores(answer, reference) for answer, reference in zip(answers, references, strict=True)]
    return {name: sum(scores[name] for scores in scored) / len(scored) for name in SCORES}


def _scores(answer: str, reference: str) -> Mapping[str, float]:
    mine, theirs = words_of(answer), words_of(reference)
    return {
        "rouge1": _rouge_n(mine, theirs, 1),
        "rouge2": _rouge_n(mine, theirs, 2),
        "rougeL": _f1(_longest_common(mine, theirs), len(mine), len(theirs)),
        "exact_match": float(normalised(answer) == normalised(reference)),
    }


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def normalised(text: str) -> str:
    """As SQuAD compares answers: lower case, without punctuation, English articles and spare white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _rouge_n(mine: Sequence[str], theirs: Sequence[str], n: int) -> float:
    """F1 of the runs of n words, each counted as often as it is in both."""
    runs = [Counter(zip(*(words[start:] for start in range(n)), strict=False)) for words in (mine, theirs)]
    return _f1((runs[0] & runs[1]).total(), runs[0].total(), runs[1].total())


def _longest_common(mine: Sequence[str], theirs: Iterable[str]) -> int:
    """Words of the longest common subsequence, with one bit of a whole number for each word of `mine`.

    Source: Hyyro, Bit-parallel LCS-length computation revisited (2004).
    """
    places: dict[str, int] = {}
    for place, word in enumerate(mine):
        places[word] = places.get(word, 0) | 1 << place
    everything = (1 << len(mine)) - 1
    open_places = everything
    for word in theirs:
        met = open_places & places.get(word, 0)
        open_places = (open_places + met | open_places - met) & everything
    return len(mine) - open_places.bit_count()


def _f1(common: int, mine: int, theirs: int) -> float:
    return 2 * common / (mine + theirs) if common else 0.0
