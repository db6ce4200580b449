"""Facts about a tokenizer from its files, against the tokenizer that transformers makes of them."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.models.conftest import write_tokenizer
from tui_trainer.errors import ConfigError
from tui_trainer.models.tokenizer import (
    TOKENIZER_FILES,
    count_tokens,
    tokenizer_facts,
    tokenizer_files_in,
    tokenizer_key,
    tokens_per_character,
)

TEXTS = ["w1 w2 w3", "", "w5 nothing w7 w8 </s>"]


def test_facts_are_those_of_the_tokenizer(tmp_path, subtests):
    from transformers import AutoTokenizer

    for adds_bos, chat in product((True, False), (True, False)):
        with subtests.test(f"adds_bos={adds_bos} chat={chat}"):
            folder = tmp_path / f"{adds_bos} {chat}"
            write_tokenizer(folder, adds_bos=adds_bos, chat=chat)
            facts, real = tokenizer_facts(folder), AutoTokenizer.from_pretrained(folder)
            assert facts.vocabulary == facts.embedding_rows == len(real) == 64
            for name, number in (("eos", 2), ("bos", 1), ("pad", 0)):
                assert getattr(facts, f"{name}_token_id") == getattr(real, f"{name}_token_id") == number
            assert facts.adds_bos == (real("w1")["input_ids"][0] == real.bos_token_id) == adds_bos
            assert facts.has_chat_template == bool(real.chat_template) == chat
            ids = real(TEXTS, add_special_tokens=False)["input_ids"]
            assert count_tokens(folder, TEXTS) == sum(map(len, ids))


@pytest.mark.full
def test_the_post_processor_alone_decides_whether_bos_is_added(tmp_path):
    """transformers ignores it if there is a tokenizer.json; so do these facts."""
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path, adds_bos=False)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_bos_token": True}))
    real = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_facts(tmp_path).adds_bos == (real("w1")["input_ids"][0] == real.bos_token_id)
    # A processor in a sequence of processors counts.
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    content["post_processor"] = {"type": "Sequence", "processors": [byte_level, content["post_processor"]]}
    path.write_text(json.dumps(content))
    assert tokenizer_facts(tmp_path).adds_bos


@pytest.mark.full
def test_unigram_and_sparse_ids_are_counted(tmp_path):
    added = [{"id": 40, "content": "<extra>"}, {"id": 0, "content": "<unk>"}]
    content = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0]]}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    facts = tokenizer_facts(tmp_path)
    assert (facts.vocabulary, facts.embedding_rows) == (3, 41)
    assert facts.eos_token_id is None and not facts.adds_bos


def test_a_chat_template_in_its_own_file_and_tokens_per_character_are_read(tmp_path):
    write_tokenizer(tmp_path, chat=False)
    assert not tokenizer_facts(tmp_path).has_chat_template
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_facts(tmp_path).has_chat_template
    assert tokens_per_character(tmp_path, ["w1 w2", "w3"]) == pytest.approx(3 / 7)
    assert tokens_per_character(tmp_path, [""]) is None


def test_a_slow_tokenizer_or_settings_alone_have_no_facts(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizer_files_in(tmp_path, {}) == () and tokenizer_key(tmp_path, (), {}) is None
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    assert "tokenizer.model" in tokenizer_files_in(tmp_path, {}) and tokenizer_facts(tmp_path) is None
    assert count_tokens(tmp_path, TEXTS) is None and tokens_per_character(tmp_path, TEXTS) is None


def test_the_key_changes_with_every_file(tmp_path):
    write_tokenizer(tmp_path)
    files = tokenizer_files_in(tmp_path, {})
    keys = {tokenizer_key(tmp_path, files, {})}
    assert keys == {tokenizer_key(tmp_path, tuple(reversed(files)), {})}
    for name in files:
        path = tmp_path / name
        path.write_text(path.read_text() + " ")
        keys.add(tokenizer_key(tmp_path, files, {}))
    assert len(files) == 2 and len(keys) == 3


@pytest.mark.full
def test_the_key_changes_with_class_templates_and_code(tmp_path):
    """The class is in config.json, templates have a folder of their own, and code comes with the model."""
    write_tokenizer(tmp_path)

    def key(config=None):
        return tokenizer_key(tmp_path, tokenizer_files_in(tmp_path, {}), config or {})

    keys = [key(), key({"model_type": "mbart"}), key({"tokenizer_class": "BertTokenizer"})]
    templates = tmp_path / "additional_chat_templates"
    templates.mkdir()
    (templates / "tool_use.jinja").write_text("{{ tools }}")
    keys.append(key())
    code = tmp_path / "tokenization_own.py"
    code.write_text("# one")
    assert key() == keys[-1]  # nobody runs it
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "auto_map": {"AutoTokenizer": ["x", None]}}))
    keys.append(key())
    code.write_text("# two")
    keys.append(key())
    assert len(set(keys)) == len(keys)


@pytest.mark.full
def test_every_file_of_a_tokenizer_of_transformers_is_known():
    root = Path(find_spec("transformers").origin).parent / "models"
    names = set()
    for path in root.glob("*/tokenization*.py"):
        for table in re.findall(r"VOCAB_FILES_NAMES\s*=\s*\{(.*?)\}", path.read_text(), re.DOTALL):
            names |= set(re.findall(r'"([\w.-]+\.\w+)"', table))
    assert len(names) > 20
    assert names <= set(TOKENIZER_FILES)


def test_a_damaged_tokenizer_is_one_sentence(tmp_path, subtests):
    for content in ("", "[]", '{"model": 3}', "{" * 5000, '{"model": {"type": "Nonsense"}}'):
        with subtests.test(content[:40]):
            (tmp_path / "tokenizer.json").write_text(content)
            for ask in (tokenizer_facts, lambda folder: count_tokens(folder, ["a"])):
                if ask is tokenizer_facts and "Nonsense" in content:
                    continue  # facts do not depend on the type
                with pytest.raises(ConfigError) as caught:
                    ask(tmp_path)
                assert "tokenizer.json" in str(caught.value) and "\n" not in str(caught.value)


SOME, OTHERS = ("bert", "llama"), ("roberta", "albert", "modernbert", "t5", "mbart")


@pytest.mark.parametrize("families", [SOME, pytest.param(OTHERS, marks=pytest.mark.full)], ids=["some", "others"])
def test_special_tokens_around_texts_and_pairs_are_those_of_the_tokenizer(tmp_path, families, subtests):
    from transformers import AutoTokenizer

    from tests.tiny_models import tiny_tokenizer

    for family in families:
        with subtests.test(family):
            folder = tmp_path / family
            tiny_tokenizer(family).save_pretrained(folder)
            facts, real = tokenizer_facts(folder), AutoTokenizer.from_pretrained(folder)
            plain = len(real("3 plus", add_special_tokens=False)["input_ids"])
            assert facts.added_token_count == len(real("3 plus")["input_ids"]) - plain > 0
            for name in ("pad", "eos", "bos"):
                assert getattr(facts, f"{name}_token_id") == getattr(real, f"{name}_token_id"), name


@pytest.mark.full
def test_processors_of_old_files_are_counted(tmp_path, subtests):
    from tokenizers import Tokenizer, processors

    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for kind in ("BertProcessing", "RobertaProcessing"):
        with subtests.test(kind):
            made = Tokenizer.from_file(str(path))
            made.post_processor = getattr(processors, kind)(("</s>", 2), ("<s>", 1))
            made.save(str(path))
            facts = tokenizer_facts(tmp_path)
            assert facts.added_token_count == len(made.encode("w1").ids) - 1 == 2
            assert facts.adds_bos


@pytest.mark.full
def test_a_folder_with_vocab_txt_alone_is_a_tokenizer_of_bert(tmp_path, subtests):
    from tests.tiny_models import save_tiny_model, tiny_tokenizer
    from tui_trainer.models.facts import find_model
    from tui_trainer.models.loading import load_tokenizer
    from tui_trainer.models.problems import model_problems

    save_tiny_model(tmp_path, "bert")
    ids = tiny_tokenizer("bert").get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.get)) + "\n")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    for settings in (None, {"do_lower_case": True}, {"tokenizer_class": "BertTokenizer"}):
        with subtests.test(str(settings)):
            if settings:
                (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
            facts = find_model(str(tmp_path), head="token_classification", labels=2)
            assert facts.tokenizer_files and model_problems(facts, "pretrained", False) == []
            tokenizer = load_tokenizer(tmp_path)
            tokens = tokenizer.convert_ids_to_tokens(tokenizer("3 plus", "4")["input_ids"])
            assert tokens == ["[CLS]", "3", "plus", "[SEP]", "4", "[SEP]"] and tokenizer.is_fast


PIECES, TIKTOKEN = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02", b"IQ== 0\nIg== 1\n"


SENTENCEPIECE, BOTH = ("sentencepiece",), ("sentencepiece", "google.protobuf")
# Files, packages that are installed, and words of the problem and its hint.
NEEDING_PACKAGES = [
    ({"spiece.model": PIECES}, (), "the packages sentencepiece and protobuf for reading it", "f && "),
    ({"spiece.model": PIECES}, SENTENCEPIECE, "the package protobuf for reading it is", "save_pretrained"),
    ({"spiece.model": PIECES}, BOTH, "", ""),
    ({"source.spm": PIECES, "vocab.json": b"{}"}, (), "package sentencepiece for reading it is", "uv pip install sent"),
    ({"source.spm": PIECES, "vocab.json": b"{}"}, SENTENCEPIECE, "", ""),
    ({"tokenizer.model": PIECES, "vocab.json": b"{}", "merges.txt": b""}, (), "", ""),
    ({"tokenizer.model": TIKTOKEN}, BOTH, "only a tiktoken file (tokenizer.", "copy"),
    ({"tiktoken.model": TIKTOKEN}, SENTENCEPIECE, "only a tiktoken file (tiktoken.model)", "tokenizer.json"),
    ({"qwen.tiktoken": TIKTOKEN}, SENTENCEPIECE, "only a tiktoken file (qwen.tiktoken)", "tokenizer.json"),
    ({"tokenizer.model": b"version https://git-lfs.github.com/spec/v1\n"}, (), "a Git LFS pointer", "git lfs"),
    ({"tokenizer.model": b"\0\0\0"}, BOTH, "tokenizer.model is damaged", "copy"),
]


def test_a_tokenizer_that_needs_a_missing_package_is_refused(tmp_path, monkeypatch, subtests):
    from tests.tiny_models import save_tiny_model
    from tui_trainer.models import tokenizer as room
    from tui_trainer.models.facts import find_model
    from tui_trainer.models.problems import model_problems

    save_tiny_model(tmp_path / "model", "t5")
    (tmp_path / "model" / "tokenizer.json").unlink()
    for number, (files, installed, message, hint) in enumerate(NEEDING_PACKAGES):
        with subtests.test(f"{[*files]} with {installed}"), monkeypatch.context() as patch:
            folder = Path(shutil.copytree(tmp_path / "model", tmp_path / str(number)))
            for name, content in files.items():
                (folder / name).write_bytes(content)
            facts = find_model(str(folder), head="seq2seq_lm")
            patch.setattr(room, "find_spec", lambda name, here=installed: object() if name in here else None)
            problems = model_problems(facts, "pretrained", False)
            assert bool(problems) == bool(message)
            for problem in problems:
                assert message in problem.message and hint in problem.hint and "\n" not in str(problem)
