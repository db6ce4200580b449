"""Read the facts of a tokenizer from its files, and count tokens with the `tokenizers` library. No torch is needed."""

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
# Source: `vocab_files_names` of the tokenizers in transformers 5.23.
TOKENIZER_FILES = (
    FAST_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm", "target.spm",
    "tekken.json", "chat_template.jinja", "chat_template.json", "bpe.codes", "vocab-src.json", "vocab-tgt.json",
    "target_vocab.json", "prophetnet.tokenizer", "sentencepiece.model", "spm_char.model", "dict.txt",
    "entity_vocab.json", "normalizer.json", "emoji.json", "word_shape.json", "word_pronunciation.json",
    "byte_maps.json",
)  # fmt: skip
# Folder with one file for each chat template other than the default.
TEMPLATE_FOLDER = "additional_chat_templates"
# Files that transformers reads only with the package `sentencepiece`.
_SENTENCEPIECE = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm", "sentencepiece.model",
    "spm_char.model",
)  # fmt: skip
_PROTOBUF = b"\n"  # a SentencePiece file begins with the tag of its first field, the pieces
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_VOCABULARIES = {
    FAST_FILE, "vocab.json", "vocab.txt", "tekken.json", "vocab-src.json", "prophetnet.tokenizer", "byte_maps.json",
    *_SENTENCEPIECE,
}  # fmt: skip
# Tokenizers of bytes or code points, which have no vocabulary file. transformers chooses the class by the architecture
# if a folder does not name it. Source: the tokenization files of transformers 5.23.
_WITHOUT_FILES, _MODELS_WITHOUT_FILES = frozenset({"ByT5Tokenizer", "CanineTokenizer"}), frozenset({"canine"})
_GENERAL_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
# Decoders that were always trained with a bos token. Source: the documentation of Gemma.
_BOS_FAMILIES = ("gemma", "recurrent_gemma")
LARGEST_TOKENIZER = 256 * 1024 * 1024
# Post-processors that add two special tokens. Source: tokenizers, processors/bert.rs and roberta.rs.
_TWO_TOKEN_PROCESSORS = ("BertProcessing", "RobertaProcessing")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerFacts:
    """Facts of a tokenizer. `vocabulary` counts its entries, added tokens included. `embedding_rows` is the smallest
    number of rows that the embedding needs: the highest id plus one. `adds_bos`: the tokenizer begins every text with
    its bos token. `added_token_count` counts the special tokens that it adds to a text. `tokens_hash` is equal in this
    process for tokenizers that give each token the same id."""

    vocabulary: int
    embedding_rows: int
    eos_token_id: int | None
    bos_token_id: int | None
    pad_token_id: int | None
    adds_bos: bool
    has_chat_template: bool
    added_token_count: int = 0
    tokens_hash: int = 0


def tokenizer_files_in(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tokenizer's files, its own Python code included. Empty if the tokenizer needs a
    vocabulary file and has none. `config` is the config.json of the model."""
    names = tuple(name for name in TOKENIZER_FILES if (folder / name).is_file())
    settings = read_json(folder / "tokenizer_config.json") or {}
    tokenizer_class = settings.get("tokenizer_class") or config.get("tokenizer_class")
    needs_no_file = tokenizer_class in _WITHOUT_FILES or (
        tokenizer_class is None and config.get("model_type") in _MODELS_WITHOUT_FILES
    )
    if not needs_no_file and not _VOCABULARIES.intersection(names):
        return ()
    has_own_code = "auto_map" in settings
    other_files = [*folder.glob(f"{TEMPLATE_FOLDER}/*.jinja"), *(folder.glob("*.py") if has_own_code else ())]
    return (*names, *sorted(path.relative_to(folder).as_posix() for path in other_files if path.is_file()))


def add_whole_file(digest: xxh3_128, folder: Path, name: str) -> None:
    """Add the name, size and content of a file to a hash. Raise ConfigError if the file cannot be read."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise bad_model(f"{name} cannot be read: {system_reason(error)}", where=str(folder)) from None
    digest.update(f"{name}\0{len(content)}\0".encode())
    digest.update(content)


def tokenizer_key(folder: Path, files: Iterable[str], config: Mapping[str, Any]) -> str | None:
    """Return an XXH3 hash of the tokenizer's files, so that data prepared with another tokenizer is not reused.

    `config` is the config.json of the model, which may decide the tokenizer's class (`AutoTokenizer.from_pretrained`).
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
    """Return the facts in tokenizer.json, or None without it: transformers converts other formats at loading.

    The file is read again only after a change, because a large vocabulary takes a fifth of a second."""
    paths = (folder / name for name in TOKENIZER_FILES)
    return _facts(folder, tuple((path, path.stat().st_mtime_ns) for path in paths if path.is_file()))


@lru_cache(maxsize=8)
def _facts(folder: Path, _changed_at: tuple[tuple[Path, int], ...]) -> TokenizerFacts | None:
    content = read_json(folder / FAST_FILE, LARGEST_TOKENIZER)
    if content is None:
        return None
    if not isinstance(content.get("model"), dict):
        raise bad_model(f"{FAST_FILE} is damaged", hint="copy it again", where=str(folder))
    id_by_token = _token_ids(content)
    config = read_json(folder / "tokenizer_config.json") or {}
    special_tokens = (read_json(folder / "special_tokens_map.json") or {}) | config
    texts = {name: token_text(special_tokens.get(f"{name}_token")) for name in ("bos", "eos", "pad")}
    special_ids = {name: id_by_token.get(text) for name, text in texts.items()}
    processor = content.get("post_processor")
    has_template_file = any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json"))
    return TokenizerFacts(
        vocabulary=len(id_by_token),
        embedding_rows=max(id_by_token.values(), default=-1) + 1,
        **{f"{name}_token_id": token_id for name, token_id in special_ids.items()},
        adds_bos=_adds_first(processor, texts["bos"]),
        has_chat_template=bool(config.get("chat_template")) or has_template_file,
        added_token_count=_special_token_count(processor),
        tokens_hash=hash(frozenset(id_by_token.items())),
    )


def count_tokens(folder: Path, texts: Iterable[str], added: tuple[str, ...] = ()) -> int | None:
    """Return the number of tokens in all texts without special tokens, or None if the tokenizer is not a fast one.
    `added` holds tokens to add to its vocabulary."""
    tokenizer = _tokenizer_in(folder, added)
    if tokenizer is None:
        return None
    return sum(len(encoding.ids) for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False))


def tokens_per_character(folder: Path, texts: Iterable[str], added: tuple[str, ...] = ()) -> float | None:
    """Return the tokens per character in sample texts, or None if they are empty or the tokenizer is not a fast one."""
    sample_texts = list(texts)
    character_count = sum(map(len, sample_texts))
    token_count = count_tokens(folder, sample_texts, added) if character_count else None
    return None if token_count is None else token_count / character_count


def count_word_tokens(folder: Path, words: Iterable[str], added: tuple[str, ...] = ()) -> dict[str, int] | None:
    """Return the number of tokens of each word, 0 if a part of the word is unknown. None if the tokenizer is not a fast
    one. `added` holds tokens to add to its vocabulary."""
    tokenizer = _tokenizer_in(folder, added)
    if tokenizer is None:
        return None
    return {word: _piece_count(tokenizer, word) for word in words}


def first_new_id(folder: Path) -> int:
    """Return the id that the next token added to a folder's tokenizer.json would get.

    Source: `AddedVocabulary::add_tokens` of tokenizers 0.23: after all added tokens, and after the vocabulary."""
    tokenizer = _tokenizer_in(folder)
    assert tokenizer is not None, "the caller has looked for tokenizer.json"
    vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=False)
    return max([vocabulary_size, *(token_id + 1 for token_id in tokenizer.get_added_tokens_decoder())])


def _piece_count(tokenizer: Tokenizer, word: str) -> int:
    # tokenizer.json need not name the unknown token: two characters that no vocabulary contains both become it.
    unk_ids, other_ids = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("\U00013000", "\U00012001"))
    ids = tokenizer.encode(word, add_special_tokens=False).ids
    return 0 if unk_ids and unk_ids == other_ids and unk_ids[-1] in ids else len(ids)


def _tokenizer_in(folder: Path, added: tuple[str, ...] = ()) -> Tokenizer | None:
    path = folder / FAST_FILE
    return _load(str(path), path.stat().st_mtime_ns, added) if path.is_file() else None


@lru_cache(maxsize=4)
def _load(path: str, _changed_at: int, added: tuple[str, ...]) -> Tokenizer:
    """Load a tokenizer.json, which takes up to a second."""
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
    """Return the id of each token in a tokenizer.json. A vocabulary is an object, or for Unigram a list in id order."""
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, list):
        ids = {str(pair[0]): token_id for token_id, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    else:
        ids = {word: token_id for word, token_id in (vocabulary or {}).items() if type(token_id) is int}
    for entry in content.get("added_tokens") or ():
        if isinstance(entry, dict) and type(entry.get("id")) is int:
            ids[str(entry.get("content"))] = entry["id"]
    return ids


def token_text(value: Any) -> str:
    """Return the text of a special token in a config file, which is a string or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _adds_first(processor: Any, token: str) -> bool:
    """Return whether the post-processor puts `token` before a text.

    If tokenizer.json has a post-processor, transformers uses it and ignores `add_bos_token` of tokenizer_config.json.
    Source: `_from_pretrained` in tokenization_utils_base.py of 5.23."""
    if not isinstance(processor, dict) or not token:
        return False
    if processor.get("type") == "Sequence":
        return any(_adds_first(inner, token) for inner in processor.get("processors") or ())
    if processor.get("type") in _TWO_TOKEN_PROCESSORS:
        return bool(processor.get("cls")) and processor["cls"][0] == token
    first_piece = next(iter(processor.get("single") or ()), None)
    special_token = first_piece.get("SpecialToken") if isinstance(first_piece, dict) else None
    return isinstance(special_token, dict) and special_token.get("id") == token


def _special_token_count(processor: Any) -> int:
    """Return how many special tokens the post-processor adds. Without one, transformers adds none."""
    if not isinstance(processor, dict):
        return 0
    if processor.get("type") == "Sequence":
        return sum(_special_token_count(inner) for inner in processor.get("processors") or ())
    if processor.get("type") in _TWO_TOKEN_PROCESSORS:
        return 2
    return sum("SpecialToken" in piece for piece in processor.get("single") or () if isinstance(piece, dict))


def missing_frame(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the special tokens around each text that the model was trained with and that the tokenizer in the folder
    does not add. None if there is no tokenizer.json, or if texts of this family need none.

    A tokenizer class of one family adds them regardless of tokenizer.json. A general class adds those in that file."""
    family, facts = str(config.get("model_type")), tokenizer_facts(folder)
    settings = read_json(folder / "tokenizer_config.json") or {}
    special_tokens = (read_json(folder / "special_tokens_map.json") or {}) | settings

    def token_named(*names: str) -> str:
        return next((text for name in names if (text := token_text(special_tokens.get(f"{name}_token")))), "")

    needs_bos = family.startswith(_BOS_FAMILIES)
    if facts is None or not (family in ENCODERS or needs_bos or config.get("is_encoder_decoder")):
        return None
    if settings.get("tokenizer_class") not in _GENERAL_CLASSES:
        return ()
    if needs_bos:
        return () if facts.adds_bos else tuple(filter(None, [token_named("bos")]))
    frame = [token_named("cls", "bos"), token_named("sep", "eos")] if family in ENCODERS else [token_named("eos")]
    return () if facts.added_token_count else tuple(filter(None, frame))


def unreadable_tokenizer(folder: Path) -> tuple[str, str] | None:
    """Return why transformers cannot load a tokenizer without tokenizer.json, and the remedy. None if it can.

    A tiktoken file contains no special tokens, so transformers would build a tokenizer that adds none. Source:
    `convert_to_native_format` in tokenization_utils_tokenizers.py of 5.24."""
    files = {file for file in (*TOKENIZER_FILES, "tiktoken.model") if (folder / file).is_file()}
    if files & {FAST_FILE, "vocab.txt", "tekken.json"} or {"vocab.json", "merges.txt"} <= files:
        return None
    copy_hint = "copy tokenizer.json and tokenizer_config.json of the same model into the folder"
    if names := sorted((files & {"tiktoken.model"}) | {path.name for path in folder.glob("*.tiktoken")}):
        return f"the tokenizer is only a tiktoken file ({one_line(names[0], 40)}), without special tokens", copy_hint
    file = next((file for file in _SENTENCEPIECE if file in files), "")
    if not file:
        return None
    with (folder / file).open("rb") as content:
        first_bytes = content.read(64)
    if first_bytes.startswith(b"version https://git-lfs"):
        return f"{file} is a Git LFS pointer, not the tokenizer itself", "run git lfs pull"
    if _TIKTOKEN.match(first_bytes):
        return f"the tokenizer is only a tiktoken file ({file}), without special tokens", copy_hint
    if not first_bytes.startswith(_PROTOBUF):
        return f"{file} is damaged: it is not a SentencePiece file", "copy it again"
    # Marian also has a vocabulary file. Its tokenizer always uses the package and cannot become a tokenizer.json.
    is_slow = "vocab.json" in files
    needed_packages = ("sentencepiece",) if is_slow else ("sentencepiece", "protobuf")
    if not (missing_packages := [package for package in needed_packages if not _is_installed(package)]):
        return None
    noun, verb = ("the package", "is") if len(missing_packages) == 1 else ("the packages", "are")
    packages = f"{noun} {' and '.join(missing_packages)} for reading it {verb} not installed"
    problem = f"the tokenizer is a SentencePiece file ({file}), but {packages}"
    command = f"uv pip install {' '.join(missing_packages)}"
    return problem, command if is_slow else f"create its tokenizer.json once: {command} && {tokenizer_command(folder)}"


def _is_installed(package: str) -> bool:
    try:
        return find_spec("google.protobuf" if package == "protobuf" else package) is not None
    except ModuleNotFoundError:  # raised if the parent package `google` is missing
        return False


def tokenizer_command(folder: Path) -> str:
    """Return a shell command that converts the tokenizer of a folder to tokenizer.json."""
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained({str(folder)!r})"
    return f'python -c "{code}.save_pretrained({str(folder)!r})"'
