"""The small model that is uploaded to a hub of the tests."""

from tests.models.conftest import llama_folder

__all__ = ["llama_folder"]
