"""How near a written answer comes to its reference: ROUGE and exact match, each between 0 and 1.

ROUGE is that of rouge-score, the program behind published figures, over words of our own: runs of letters, digits and
underscores in lower case. Its own words are of a to z alone, and would leave nothing of other scripts. Without stemming
"walks" and "walked" are two words; figures of programs that stem are a little higher.
Sources: Lin, ROUGE: a package for automatic evaluation of summaries (2004); Rajpurkar et al., arXiv:1606.05250,
section 6.1, for exact match.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_ROUGE = ("rouge1", "rouge2", "rougeL")
SCORES = (*_ROUGE, "exact_match")
_WORD = re.compile(r"\w+")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


class _Words:
    """What rouge-score takes for a tokenizer."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def mean_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean of each of SCORES over pairs of an answer and its reference. There is one pair or more."""
    from rouge_score.rouge_scorer import RougeScorer

    pairs = list(zip(answers, references, strict=True))
    scorer = RougeScorer(_ROUGE, tokenizer=_Words())
    scored = [scorer.score(reference, answer) for answer, reference in pairs]
    means = {name: sum(scores[name].fmeasure for scores in scored) / len(pairs) for name in _ROUGE}
    same = sum(normalised(answer) == normalised(reference) for answer, reference in pairs)
    return {**means, "exact_match": same / len(pairs)}


def normalised(text: str) -> str:
    """As SQuAD compares answers: lower case, without punctuation, English articles and spare white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())
