"""Languages that a tokenizer marks texts with: those of models that translate among many (NLLB, M2M100, mBART, PLBart).

Each text begins or ends with the token of its language. transformers takes English where none is said, for the target
as well. What a folder's tokenizer knows is read from its files, without torch.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.architectures import read_json
from tui_trainer.models.tokenizing.tokenizer import LARGEST_TOKENIZER, token_text

SOURCE, TARGET = "task.source_language", "task.target_language"
_NEAREST = 3
# The special tokens of each tokenizer that are languages; a group is the name where it is not the whole token.
# Source: FAIRSEQ_LANGUAGE_CODES in the tokenization files of transformers 5.23.
_MARKS: Mapping[str, re.Pattern[str]] = {
    "NllbTokenizer": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "MBartTokenizer": re.compile(r"([a-z]{2}_[A-Z]{2})"),
    "MBart50Tokenizer": re.compile(r"([a-z]{2}_[A-Z]{2})"),
    "M2M100Tokenizer": re.compile(r"__([a-z]{2,3})__"),
    "PLBartTokenizer": re.compile(r"__(\w+)__"),
}
# What `AutoTokenizer` takes where tokenizer_config.json names no class.
_OF_MODEL: Mapping[str, str] = {
    "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "nllb-moe": "NllbTokenizer",
    "plbart": "PLBartTokenizer",
}


@dataclass(frozen=True, slots=True)
class Languages:
    """`kind` is the tokenizer's class. `names` are () where its files do not list them."""

    kind: str
    names: tuple[str, ...]


def languages_of(folder: Path | None, config: Mapping[str, Any]) -> Languages | None:
    """Of a model with this config.json; None where its tokenizer marks no languages."""
    settings = (read_json(folder / "tokenizer_config.json") if folder else None) or {}
    told = settings.get("tokenizer_class") or config.get("tokenizer_class")
    kind = str(told or _OF_MODEL.get(str(config.get("model_type")), "")).removesuffix("Fast")
    pattern = _MARKS.get(kind)
    if pattern is None:
        return None
    found = (pattern.fullmatch(token) for token in _special_tokens(folder, settings)) if folder else ()
    return Languages(kind, tuple(dict.fromkeys(match[1] for match in found if match)))


def language_problems(config: Config, languages: Languages | None, *, has_target: bool) -> list[Problem]:
    """Languages that are not named, that the tokenizer does not know, or that nobody reads. `has_target`: whether the
    model writes texts as well."""
    task = config.task
    told = {SOURCE: task.source_language, TARGET: task.target_language}
    read = () if languages is None else (SOURCE, TARGET) if has_target else (SOURCE,)
    found = []
    for key, name in told.items():
        if languages is None or key not in read:
            what, hint = "the tokenizer marks no text with its language", 'set it to ""'
            if key == TARGET and not has_target:
                what = "the model writes no texts"
            else:
                hint += "; a model such as T5 is told what to do in task.source_prefix"
            found += [Problem(message=f"is set, and {what}", key=key, hint=hint)] if name else []
        elif not name:
            found.append(_missing(key, languages))
        elif languages.names and name not in languages.names:
            message = f"is {name!r}, which is none of the {len(languages.names)} languages of the tokenizer"
            hint = f"nearest: {', '.join(_nearest(name, languages.names))}"
            found.append(Problem(message=message, key=key, hint=hint))
    return found


def set_languages(config: Config, tokenizer: Any) -> None:
    """Let a tokenizer mark texts as the settings say, also where it is saved and loaded again.

    Raises ConfigError for a language that it has no token for: transformers would mark texts as unknown words.
    """
    if not hasattr(tokenizer, "set_src_lang_special_tokens"):
        return
    for key, attribute, name in (
        (SOURCE, "src_lang", config.task.source_language),
        (TARGET, "tgt_lang", config.task.target_language),
    ):
        if not name:
            continue
        try:
            setattr(tokenizer, attribute, name)
            set_tokens = tokenizer._switch_to_input_mode if key == SOURCE else tokenizer._switch_to_target_mode
            set_tokens()
            unknown = tokenizer.unk_token_id in (*tokenizer.prefix_tokens, *tokenizer.suffix_tokens)
        except KeyError:
            unknown = True
        if unknown:
            raise ConfigError(Problem(message=f"is {name!r}, for which the tokenizer has no token", key=key))
    tokenizer._switch_to_input_mode()


def language_words(config: Config) -> str:
    """`from eng_Latn to fra_Latn`; empty where no languages are named."""
    source, target = config.task.source_language, config.task.target_language
    return " ".join(words for words in (source and f"from {source}", target and f"to {target}") if words)


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """From all files that name some."""
    more = read_json(folder / "special_tokens_map.json") or {}
    for source in (settings, more):
        for key in ("extra_special_tokens", "additional_special_tokens"):
            named = source.get(key)
            yield from map(token_text, named.values() if isinstance(named, dict) else named or ())
    added = settings.get("added_tokens_decoder")
    yield from map(token_text, added.values() if isinstance(added, dict) else ())
    whole = read_json(folder / "tokenizer.json", LARGEST_TOKENIZER) or {}
    yield from map(token_text, whole.get("added_tokens") or ())


def _missing(key: str, languages: Languages) -> Problem:
    whose = "target" if key == TARGET else "source"
    message = f"is not set, and the tokenizer ({languages.kind}) marks each text with its language"
    if not languages.names:
        return Problem(message=message, key=key, hint=f"set it to the {whose} language, as the tokenizer names it")
    shown = ", ".join(languages.names[:_NEAREST])
    more = f", ... ({len(languages.names)} in all)" if len(languages.names) > _NEAREST else ""
    return Problem(message=message, key=key, hint=f"set it to the {whose} language, one of {shown}{more}")


def _nearest(name: str, known: tuple[str, ...]) -> list[str]:
    """Codes that begin alike come first: `de` is nearer to `deu_Latn` than to `ewe_Latn`."""
    plain = {code.lower(): code for code in known}
    wanted = name.lower().replace("-", "_")
    begins = [code for low, code in plain.items() if low[:2] == wanted[:2]]
    alike = [plain[low] for low in get_close_matches(wanted, plain, n=_NEAREST, cutoff=0.0)]
    return list(dict.fromkeys((*begins, *alike)))[:_NEAREST]
