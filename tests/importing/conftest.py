import json

import pytest

from tui_trainer.importing.imported import import_file


@pytest.fixture
def read(tmp_path):
    """`read({...}, "trl")` imports a file with these keys."""

    def make(given, kind="", **more):
        path = tmp_path / "foreign.json"
        path.write_text(json.dumps(given))
        return import_file(path, kind, **more)

    return make
