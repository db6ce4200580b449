"""The sample data made from the sources of the standard library."""

import gc
import sys

import pytest

from tui_trainer.data import samples
from tui_trainer.data.samples import documented_functions, find_sample, first_sentence, module_files

pytestmark = pytest.mark.full


def test_functions_come_with_their_module_arguments_and_docstring():
    found = {f"{function.module}.{function.path}": function for function in documented_functions()}
    assert len(found) > 3000
    wrap = found["textwrap.dedent"]
    assert (wrap.name, wrap.arguments) == ("dedent", "text")
    assert wrap.docstring.startswith("Remove any common leading whitespace")
    method = found["textwrap.TextWrapper.wrap"]
    assert (method.name, method.arguments) == ("wrap", "self, text")
    assert gc.isenabled()


def test_modules_are_public_sorted_and_not_tests():
    modules = [name for name, _ in module_files()]
    assert modules == sorted(modules) and {"textwrap", "json", "json.decoder"} <= set(modules)
    assert not [name for name in modules if name.startswith("_") or "test" in name.split(".")]
    assert "idlelib" not in {name.partition(".")[0] for name in modules}
    assert set(sys.modules).isdisjoint({"antigravity", "this"}), "nothing is imported"


def test_nested_functions_are_left_out(tmp_path):
    source = (
        'if True:\n    def a(x=1):\n        """First."""\n        def inner():\n            """Not this."""\n'
        'class B:\n    async def c(self):\n        """Second."""\n    def d(self): pass\n'
    )
    path = tmp_path / "module.py"
    path.write_text(source)
    found = list(samples._functions_in("m", path))
    assert [(function.path, function.arguments, function.docstring) for function in found] == [
        ("a", "x=1", "First."),
        ("B.c", "self", "Second."),
    ]
    path.write_text("def broken(:\n")
    assert list(samples._functions_in("m", path)) == []


def test_each_signature_has_one_sentence_and_none_repeats():
    rows = [row for _, row in find_sample("python-signatures").content()]
    assert 2500 < len(rows) < 10_000
    assert len({row["input"] for row in rows}) == len(rows)
    assert {
        "input": "dedent(text)",
        "output": "Remove any common leading whitespace from every line in `text`.",
    } in rows
    assert all(3 <= len(row["output"].split()) <= 25 and "\n" not in row["output"] for row in rows)
    names = [(row["input"].partition("(")[0], row["output"]) for row in rows]
    assert len(set(names)) == len(names)
    # A first sentence ends at a full stop or an empty line.
    assert first_sentence("\n  One thing.  Two things.") == "One thing."
    assert first_sentence("A heading\n\nMore of it.") == "A heading"
    assert first_sentence("Over two\n    lines! Yes.") == "Over two lines!"
