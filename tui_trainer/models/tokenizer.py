"""What a model's tokenizer is, from its files. Counting tokens needs the `tokenizers` library, and no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import system_reason
from tui_trainer.models.config_json import bad_model, read_json
from tui_trainer.models.heads import ENCODERS
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from xxhash import xxh3_128

FAST_FILE = "tokenizer.json"
# Source: the names that the tokenizers of transformers 5.23 save and look for (`vocab_files_names`).
TOKENIZER_FILES = (
    FAST_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm", "target.spm",
    "tekken.json", "chat_template.jinja", "chat_template.json", "bpe.codes", "vocab-src.json", "vocab-tgt.json",
    "target_vocab.json", "prophetnet.tokenizer", "sentencepiece.model", "spm_char.model", "dict.txt",
    "entity_vocab.json", "normalizer.json", "emoji.json", "word_shape.json", "word_pronunciation.json",
    "byte_maps.json",
)  # fmt: skip
# Beside the default template, a file for each other one.
TEMPLATE_FOLDER = "additional_chat_templates"
# What transformers reads with the package `sentencepiece` only.
_SENTENCEPIECE = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm", "sentencepiece.model",
    "spm_char.model",
)  # fmt: skip
_PROTOBUF = b"\n"  # with which a SentencePiece file begins: its first field, the pieces
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_VOCABULARIES = {
    FAST_FILE, "vocab.json", "vocab.txt", "tekken.json", "vocab-src.json", "prophetnet.tokenizer", "byte_maps.json",
    *_SENTENCEPIECE,
}  # fmt: skip
# Those that read bytes or code points, and have no file of a vocabulary. A folder that does not name the class of its
# tokenizer gets that of its architecture. Source: the tokenization files of transformers 5.23.
_WITHOUT_FILES, _MODELS_WITHOUT_FILES = frozenset({"ByT5Tokenizer", "CanineTokenizer"}), frozenset({"canine"})
_GENERAL_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
# Decoders that were never trained on a text without their first token. Source: the documentation of Gemma.
_BEGUN = ("gemma", "recurrent_gemma")
LARGEST_TOKENIZER = 256 * 1024 * 1024
# They put two special tokens around a text. Source: tokenizers, processors/bert.rs and roberta.rs.
_FIXED = ("BertProcessing", "RobertaProcessing")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFacts:
    """`vocabulary` counts entries with the added ones; `rows` is what the embedding must at least have: the highest
    id and one. `adds_bos`: whether a text is begun with the bos token without asking. `added` is how
    many special tokens it puts around a text."""

    vocabulary: int
    rows: int
    eos_token_id: int | None
    bos_token_id: int | None
    pad_token_id: int | None
    adds_bos: bool
    has_chat_template: bool
    added: int = 0


def tokenizer_files_in(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the tokenizer's files, with the code of one that brings its own; empty where there is no vocabulary
    among them, and the tokenizer needs one. `config` is that of the model."""
    found = tuple(name for name in TOKENIZER_FILES if (folder / name).is_file())
    settings = read_json(folder / "tokenizer_config.json") or {}
    kind = settings.get("tokenizer_class") or config.get("tokenizer_class")
    needs_none = kind in _WITHOUT_FILES or (kind is None and config.get("model_type") in _MODELS_WITHOUT_FILES)
    if not needs_none and not _VOCABULARIES.intersection(found):
        return ()
    own_code = "auto_map" in settings
    more = [*folder.glob(f"{TEMPLATE_FOLDER}/*.jinja"), *(folder.glob("*.py") if own_code else ())]
    return (*found, *sorted(path.relative_to(folder).as_posix() for path in more if path.is_file()))


def add_whole_file(digest: xxh3_128, folder: Path, name: str) -> None:
    """Name, size and content of a file. Raises ConfigError for one that cannot be read."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise bad_model(f"{name} cannot be read: {system_reason(error)}", where=str(folder)) from None
    digest.update(f"{name}\0{len(content)}\0".encode())
    digest.update(content)


def tokenizer_key(folder: Path, files: Iterable[str], config: Mapping[str, Any]) -> str | None:
    """XXH3 over names and contents: data prepared with one tokenizer is not taken for that of another.

    `config` is that of the model, which may decide the tokenizer's class (`AutoTokenizer.from_pretrained`).
    """
    import xxhash

    names = sorted(files)
    if not names:
        return None
    digest = xxhash.xxh3_128()
    digest.update(f"{config.get('model_type')}\0{config.get('tokenizer_class')}\0".encode())
    for name in names:
        add_whole_file(digest, folder, name)
    return str(digest.hexdigest())


def tokenizer_facts(folder: Path) -> TokenizerFacts | None:
    """None without tokenizer.json: other forms are converted by transformers when it loads them.

    Read again only when a file has changed: a large vocabulary takes a fifth of a second.
    """
    found = (folder / name for name in TOKENIZER_FILES)
    return _facts(folder, tuple((path, path.stat().st_mtime_ns) for path in found if path.is_file()))


@lru_cache(maxsize=8)
def _facts(folder: Path, _changed_at: tuple[tuple[Path, int], ...]) -> TokenizerFacts | None:
    content = read_json(folder / FAST_FILE, LARGEST_TOKENIZER)
    if content is None:
        return None
    if not isinstance(content.get("model"), dict):
        raise bad_model(f"{FAST_FILE} is damaged", hint="copy it again", where=str(folder))
    ids = _token_ids(content)
    config = read_json(folder / "tokenizer_config.json") or {}
    special = (read_json(folder / "special_tokens_map.json") or {}) | config
    named = {name: ids.get(token_text(special.get(f"{name}_token"))) for name in ("bos", "eos", "pad")}
    processor = content.get("post_processor")
    own_template = any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json"))
    return TokenizerFacts(
        vocabulary=len(ids),
        rows=max(ids.values(), default=-1) + 1,
        **{f"{name}_token_id": number for name, number in named.items()},
        adds_bos=_adds_first(processor, token_text(special.get("bos_token"))),
        has_chat_template=bool(config.get("chat_template")) or own_template,
        added=_added(processor),
    )


def count_tokens(folder: Path, texts: Iterable[str], added: tuple[str, ...] = ()) -> int | None:
    """The tokens of all texts without special ones; None for tokenizers that are not fast ones. `added`: tokens that it
    gets beside its own."""
    tokenizer = _tokenizer_in(folder, added)
    if tokenizer is None:
        return None
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False))


def tokens_per_character(folder: Path, texts: Iterable[str], added: tuple[str, ...] = ()) -> float | None:
    """For estimates from a sample; None where it holds no character, and for tokenizers that are not fast ones."""
    sample = list(texts)
    characters = sum(map(len, sample))
    tokens = count_tokens(folder, sample, added) if characters else None
    return None if tokens is None else tokens / characters


def pieces_of(folder: Path, words: Iterable[str], added: tuple[str, ...] = ()) -> dict[str, int] | None:
    """How many tokens each of some words is, 0 where a part is unknown; None for tokenizers that are not fast ones.
    `added`: tokens that it gets beside its own."""
    tokenizer = _tokenizer_in(folder, added)
    if tokenizer is None:
        return None
    return {word: _pieces(tokenizer, word) for word in words}


def first_new_id(folder: Path) -> int:
    """The number that the next token gets which is added to the tokenizer.json of a folder.

    Source: `AddedVocabulary::add_tokens` of tokenizers 0.23: behind all that was added, and behind the vocabulary.
    """
    tokenizer = _tokenizer_in(folder)
    assert tokenizer is not None, "the caller has looked for tokenizer.json"
    of_model = tokenizer.get_vocab_size(with_added_tokens=False)
    return max([of_model, *(number + 1 for number in tokenizer.get_added_tokens_decoder())])


def _pieces(tokenizer: Tokenizer, word: str) -> int:
    # A model does not say which token is its unknown one; two signs that no vocabulary has give the same.
    signs = [tokenizer.encode(sign, add_special_tokens=False).ids for sign in ("\U00013000", "\U00012001")]
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    return 0 if signs[0] and signs[0] == signs[1] and signs[0][-1] in ids else len(ids)


def _tokenizer_in(folder: Path, added: tuple[str, ...] = ()) -> Tokenizer | None:
    path = folder / FAST_FILE
    return _load(str(path), path.stat().st_mtime_ns, added) if path.is_file() else None


@lru_cache(maxsize=4)
def _load(path: str, _changed_at: int, added: tuple[str, ...]) -> Tokenizer:
    """Loading one takes up to a second."""
    from tokenizers import AddedToken, Tokenizer

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # tokenizers raises nothing narrower
        reason = one_line(str(error), 160)
        raise bad_model(f"{FAST_FILE} cannot be loaded: {reason}", hint="copy it again", where=path) from None
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _token_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Every entry and its id. A vocabulary is an object, or with Unigram a list of pairs in the order of ids."""
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, list):
        ids = {str(pair[0]): at for at, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    else:
        ids = {word: at for word, at in (vocabulary or {}).items() if type(at) is int}
    for entry in content.get("added_tokens") or ():
        if isinstance(entry, dict) and type(entry.get("id")) is int:
            ids[str(entry.get("content"))] = entry["id"]
    return ids


def token_text(value: Any) -> str:
    """A special token as config files write it: a text, or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _adds_first(processor: Any, token: str) -> bool:
    """Whether the post-processor puts `token` before a text.

    transformers takes the one in tokenizer.json, and passes over `add_bos_token` of tokenizer_config.json where there
    is one. Source: `_from_pretrained` in tokenization_utils_base.py of 5.23.
    """
    if not isinstance(processor, dict) or not token:
        return False
    if processor.get("type") == "Sequence":
        return any(_adds_first(inner, token) for inner in processor.get("processors") or ())
    if processor.get("type") in _FIXED:
        return bool(processor.get("cls")) and processor["cls"][0] == token
    first = next(iter(processor.get("single") or ()), None)
    special = first.get("SpecialToken") if isinstance(first, dict) else None
    return isinstance(special, dict) and special.get("id") == token


def _added(processor: Any) -> int:
    """Return the special tokens around a text. transformers adds none where tokenizer.json says nothing of it."""
    if not isinstance(processor, dict):
        return 0
    if processor.get("type") == "Sequence":
        return sum(_added(inner) for inner in processor.get("processors") or ())
    if processor.get("type") in _FIXED:
        return 2
    return sum("SpecialToken" in piece for piece in processor.get("single") or () if isinstance(piece, dict))


def missing_frame(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the special tokens that a model of this config.json was trained with around each text, and that the
    tokenizer in the folder does not put there; None where no tokenizer.json tells, or the family has no such custom.

    A class of transformers that is made for a family puts them there whatever tokenizer.json says; a general one takes
    them from that file alone.
    """
    kind, facts = str(config.get("model_type")), tokenizer_facts(folder)
    settings = read_json(folder / "tokenizer_config.json") or {}
    named = (read_json(folder / "special_tokens_map.json") or {}) | settings

    def token(*names: str) -> str:
        return next((text for name in names if (text := token_text(named.get(f"{name}_token")))), "")

    if facts is None or not (kind in ENCODERS or kind.startswith(_BEGUN) or config.get("is_encoder_decoder")):
        return None
    if settings.get("tokenizer_class") not in _GENERAL_CLASSES:
        return ()
    if kind.startswith(_BEGUN):
        return () if facts.adds_bos else tuple(filter(None, [token("bos")]))
    frame = [token("cls", "bos"), token("sep", "eos")] if kind in ENCODERS else [token("eos")]
    return () if facts.added else tuple(filter(None, frame))


def unreadable_tokenizer(folder: Path) -> tuple[str, str] | None:
    """What keeps transformers from loading a tokenizer that has no tokenizer.json, and what helps; None where nothing
    does.

    A file of tiktoken has no special tokens: transformers would make a tokenizer of it that begins and ends no text.
    Source: `convert_to_native_format` in tokenization_utils_tokenizers.py of 5.24.
    """
    has = {name for name in (*TOKENIZER_FILES, "tiktoken.model") if (folder / name).is_file()}
    if has & {FAST_FILE, "vocab.txt", "tekken.json"} or {"vocab.json", "merges.txt"} <= has:
        return None
    copy = "copy tokenizer.json and tokenizer_config.json of the same model into the folder"
    if found := sorted((has & {"tiktoken.model"}) | {path.name for path in folder.glob("*.tiktoken")}):
        return f"the tokenizer is only a tiktoken file ({one_line(found[0], 40)}), without special tokens", copy
    name = next((name for name in _SENTENCEPIECE if name in has), "")
    if not name:
        return None
    with (folder / name).open("rb") as content:
        head = content.read(64)
    if head.startswith(b"version https://git-lfs"):
        return f"{name} is a Git LFS pointer, not the tokenizer itself", "run git lfs pull"
    if _TIKTOKEN.match(head):
        return f"the tokenizer is only a tiktoken file ({name}), without special tokens", copy
    if not head.startswith(_PROTOBUF):
        return f"{name} is damaged: it is not a SentencePiece file", "copy it again"
    # With a vocabulary beside it, as Marian has it, the package itself makes the tokens, and no tokenizer.json can.
    is_slow = "vocab.json" in has
    needed = ("sentencepiece",) if is_slow else ("sentencepiece", "protobuf")
    if not (missing := [package for package in needed if not _is_here(package)]):
        return None
    lack = "the package" if len(missing) == 1 else "the packages"
    what = f"the tokenizer is a SentencePiece file ({name}), but {lack} {' and '.join(missing)} for reading it "
    what += "is not installed" if len(missing) == 1 else "are not installed"
    install = f"uv pip install {' '.join(missing)}"
    return what, install if is_slow else f"create its tokenizer.json once: {install} && {tokenizer_command(folder)}"


def _is_here(package: str) -> bool:
    try:
        return find_spec("google.protobuf" if package == "protobuf" else package) is not None
    except ModuleNotFoundError:  # of the package `google`
        return False


def tokenizer_command(folder: Path) -> str:
    """A command that writes the tokenizer of a folder as tokenizer.json into it."""
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained({str(folder)!r})"
    return f'python -c "{code}.save_pretrained({str(folder)!r})"'
