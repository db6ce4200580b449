"""The formats of foreign files, and the errors for broken ones."""

import pytest

from tui_trainer.errors import ConfigError
from tui_trainer.importing.reading import MAX_VALUES, read_foreign


@pytest.fixture
def read(tmp_path):
    """`read("name", "text")` reads the keys of a file with this text."""

    def make(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_foreign(path)

    return make


def test_json_may_have_comments_and_trailing_commas(read):
    text = '{\n  "a": 1,  // one\n  "b": "http://x, // y",  /* two\n */ "c": [1, 2,],\n  "d": ",}",\n}\n'
    assert read("x.json", text) == {"a": 1, "b": "http://x, // y", "c": [1, 2], "d": ",}"}


def test_json_and_yaml_are_recognised_without_their_suffix(read):
    assert read("config", '\n {"a": 1, // x\n "b": true}') == {"a": 1, "b": True}
    assert read("config", "a: 1\nb: yes") == {"a": 1, "b": True}
    assert read("x.yml", "a: &x [q, v]\nb: *x\n") == {"a": ["q", "v"], "b": ["q", "v"]}


BROKEN = [
    ("x.yaml", "a: 1\nb: [1\nc: 2\n", "line 3 is not valid YAML"),
    ("x.yaml", "a: 1\nb:\n  c: 1\n c: 2\n", "line 4 is not valid YAML"),
    ("x.yaml", "a: 1\n\tb: 2\n", "line 2 is not valid YAML"),
    ("x.yaml", "a: 1\nb: *c\n", "line 2 is not valid YAML: found undefined alias"),
    ("x.yaml", "a: 1\nb: 2\na: 3\n", "line 3 is not valid YAML: the key 'a' appears twice"),
    ("x.yaml", "a: !!python/object/apply:os.system [ls]\n", "line 1 is not valid YAML"),
    ("x.yaml", "a: 1\nb: \x07\n", "line 2 is not valid YAML: the character U+0007"),
    ("x.yaml", "a: 1\n---\nb: 2\n", "line 2 is not valid YAML: but found another document"),
    ("x.yaml", "a: 2024-13-45\n", "cannot be read: month must be in 1..12"),
    ("x.yaml", "- a\n- b\n", "is a single list, not keys with values"),
    ("x.yaml", "just a text\n", "is a single str, not keys with values"),
    ("x.yaml", "# nothing\n", "is empty"),
    ("x.yaml", "a: &x [*x]\n", "is nested too deeply"),
    ("x.yaml", "a: " + "[" * 1000 + "\n", "is nested too deeply"),
    ("x.json", "[" * 50_000, "is nested too deeply"),
    ("x.json", '{"a": 1,\n "b": tru}', "line 2 is not valid JSON"),
    ("x.json", '{"a": 1 // x\n "b": 2}', "line 2 is not valid JSON"),
    ("x.json", '{"a": 1} and more', "line 1 is not valid JSON: Extra data"),
    ("x.json", '{"a": 1, "a": 2}', "has the key 'a' twice"),
    ("x.json", '{"a": ' + "9" * 5000 + "}", "cannot be read"),
    ("x.yaml", "a: 0x" + "f" * 5000, "contains a number with too many digits"),
    ("x.json", "{}", "contains no keys"),
    ("x.json", '{"a": "' + "x" * 300_000 + '"}', "is larger than 256 KiB"),
    ("x.yaml", "a: 1  # " + "x" * 70_000, "is larger than 64 KiB"),
    ("x.py", "a = 1", "is a program or a text, not a config"),
    ("x.toml", "a = ", "is not valid TOML"),
]


def test_a_broken_file_is_reported_in_one_sentence(read, tmp_path, subtests):
    for name, text, expected in BROKEN:
        with subtests.test(f"{name} {text[:30]!r}"):
            with pytest.raises(ConfigError) as caught:
                read(name, text)
            [problem] = caught.value.problems
            assert str(problem).startswith(f"{tmp_path / name}: {expected}")
            assert "\n" not in str(problem) and "\x07" not in str(problem)


def test_aliases_cannot_make_a_small_file_huge(read):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match=f"more than {MAX_VALUES} values"):
        read("x.yaml", "\n".join(lines))


def test_a_missing_file_a_folder_and_binary_data_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_foreign(tmp_path / "none.yaml")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"is not a file; use .*adapter_config\.json"):
        read_foreign(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match="line 2 is not UTF-8"):
        read_foreign(tmp_path / "x.yaml")
