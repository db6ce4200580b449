"""Downloads of models from a hub on this machine, by the command in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.downloading.fake_hub import COMMIT, FakeHub, environment_of, run, run_each, serving
from tui_trainer.cli.models import offer_lines
from tui_trainer.downloading.hub import MODEL, DownloadOffer, HubFile, model_files_to_fetch, network_sentence
from tui_trainer.errors import ConfigError
from tui_trainer.models.facts import find_model

CANCELLED = """
import sys
from tui_trainer.data.progress import Meter
from tui_trainer.errors import RunError
from tui_trainer.downloading import hub
from tui_trainer.downloading.hub import download_model
hub.SMALL_BYTES = int(sys.argv[1])
told = []
def report(self, done):
    told.append(done)
    if len(told) > int(sys.argv[2]):
        raise KeyboardInterrupt
Meter.report = report
try:
    download_model("org/tiny", ask=lambda offer: True)
except RunError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def hub(llama_folder):
    with serving(FakeHub(models={"org/tiny": llama_folder, "org/gated": llama_folder}, gated={"org/gated"})) as served:
        yield served


@pytest.fixture
def environment(hub, tmp_path) -> dict[str, str]:
    return environment_of(hub, tmp_path)


def download(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run("-m", "tui_trainer", "download", *arguments, environment=environment)


# Commands of which one process runs all: a process takes two seconds to start.
COMMANDS = {
    "no terminal": ("org/tiny",),
    "offer": ("org/tiny", "--json"),
    "yes": ("org/tiny", "--json", "--yes"),
    "first": ("org/again", "--yes"),
    "second": ("org/again",),
    "absent": ("org/none", "--yes"),
    "no revision": ("org/tiny", "--revision", "v9", "--yes"),
    "no name": ("../tiny", "--yes"),
    "gated": ("org/gated", "--yes"),
    "images": ("org/images", "--yes"),
    "too large": ("org/large", "--yes"),
}


@pytest.fixture(scope="module")
def commands(llama_folder, tmp_path_factory):
    """The hub after all commands, their environment, and the result of each."""
    names = ("tiny", "again", "gated", "images", "large")
    hub = FakeHub(models={f"org/{name}": llama_folder for name in names}, gated={"org/gated"})
    hub.info["org/images"] = {
        "config": {"model_type": "llava", "architectures": ["LlavaForGeneration"], "vision_config": {}}
    }
    sizes = {"config.json": 9, "model.safetensors": 10**18}
    hub.info["org/large"] = {"siblings": [{"rfilename": name, "size": size} for name, size in sizes.items()]}
    with serving(hub):
        environment = environment_of(hub, tmp_path_factory.mktemp("downloads"))
        results = run_each(*(["download", *words] for words in COMMANDS.values()), environment=environment)
    return hub, environment, dict(zip(COMMANDS, results, strict=True))


def test_nothing_is_fetched_without_yes_or_a_terminal(commands):
    _, _, results = commands
    assert results["no terminal"].returncode == 2
    assert "cannot ask for confirmation without a terminal; add --yes" in results["no terminal"].stderr
    assert "size" in results["no terminal"].stdout
    offered = json.loads(results["offer"].stdout)
    assert results["offer"].returncode == 3 and any(line.endswith(" free") for line in offered["offer"])
    assert results["yes"].returncode == 0, results["yes"].stderr
    assert json.loads(results["yes"].stdout)["words"][0].startswith("org/tiny is in ")
    assert json.loads(results["yes"].stderr.splitlines()[-1])["unit"] == "bytes"


def test_a_downloaded_model_is_found_and_not_fetched_again(commands, llama_folder):
    hub, environment, results = commands
    first = results["first"]
    assert first.returncode == 0, first.stderr
    assert "org/again, revision main" in first.stdout and "apache-2.0" in first.stdout
    assert "100 %" in first.stderr
    facts = find_model("org/again", environment=environment)
    assert facts.folder is not None and facts.folder.name == COMMIT
    assert (facts.folder / "model.safetensors").read_bytes() == (llama_folder / "model.safetensors").read_bytes()
    assert facts.weights == "safetensors" and facts.tokenizer_files
    # The second time nothing is missing, so the user is not asked.
    assert results["second"].returncode == 0
    assert hub.files_sent("org/again").count("model.safetensors") == 1


def test_a_refused_download_says_why_and_fetches_nothing(commands, subtests):
    hub, _, results = commands
    for name, words in {
        "absent": "the Hub has no model org/none",
        "no revision": "org/tiny has no revision v9",
        "no name": "is not a valid name on the Hub",
        "gated": f"accept the licence on {hub.url}/org/gated",
        "images": "a multimodal model",
        "too large": "takes 909494.7 TiB",
    }.items():
        with subtests.test(name):
            assert results[name].returncode == 2
            assert words in results[name].stderr and results[name].stderr.count("\n") == 1
    assert "hf auth login" in results["gated"].stderr and "HF_HOME" in results["too large"].stderr
    assert {name for name, file in hub.sent if file} == {"org/tiny", "org/again"}


@pytest.mark.full
def test_a_terminal_is_asked_and_no_is_the_default(hub, environment):
    for key, code, words in (("", 3, "nothing was downloaded"), ("y", 0, "org/tiny is in")):
        master, slave = os.openpty()
        command = [sys.executable, "-m", "tui_trainer", "download", "org/tiny"]
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as child:
            os.close(slave)
            shown = b""
            while b"download it? [y/N]" not in shown:
                shown += os.read(master, 4096)
            os.write(master, f"{key}\n".encode())
            with suppress(OSError):  # the program has closed the other end
                while more := os.read(master, 4096):
                    shown += more
        os.close(master)
        assert child.returncode == code and words in shown.decode().replace("\r\n", " "), key
        assert any(hub.files_sent()) == (code == 0)


@pytest.mark.e2e
def test_a_gated_model_needs_the_token_of_an_account_that_accepted_it(environment):
    wrong = download("org/gated", "--yes", environment=environment | {"HF_TOKEN": "wrong"})
    assert wrong.returncode == 2 and "this account has no access to org/gated yet" in wrong.stderr
    right = download("org/gated", "--yes", environment=environment | {"HF_TOKEN": "secret"})
    assert right.returncode == 0 and "secret" not in right.stdout + right.stderr


@pytest.mark.e2e
def test_without_a_network_the_message_names_the_folder_to_copy_into(environment):
    gone = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = download("org/tiny", "--yes", environment=gone)
    assert done.returncode == 1
    assert "the Hub at 127.0.0.1 cannot be reached (Connection refused)" in done.stderr and done.stderr.count("\n") == 1
    assert str(Path("tiny").absolute()) in done.stderr and "--model ./tiny" in done.stderr
    offline = download("org/tiny", "--yes", environment=environment | {"HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 1 and "HF_HUB_OFFLINE is set" in offline.stderr


class ConnectError(Exception):
    """The error of the HTTP library, which is no OSError."""


NETWORK_ERRORS = (
    (ConnectError("[Errno -2] Name or service not known"), "the Hub at huggingface.co cannot be reached (Name or"),
    (socket.gaierror(-2, "Name or service not known"), "cannot be reached (Name or service not known)"),
    (ConnectionResetError(104, "Connection reset by peer"), "run the same command to continue"),
)


def test_a_missing_network_and_a_broken_connection_have_different_messages(monkeypatch, subtests):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    for error, words in NETWORK_ERRORS:
        with subtests.test(type(error).__name__):
            message = network_sentence(MODEL, "org/tiny", error)
            assert words in message and "\n" not in message
            assert f"into {Path('tiny').absolute()} and give --model ./tiny" in message
            assert ("cannot be reached" in message) != isinstance(error, ConnectionResetError)


@pytest.mark.e2e
@pytest.mark.parametrize(("small_bytes", "reports"), [(0, 5), (20_000, 2)], ids=["one by one", "together"])
def test_a_stopped_download_keeps_its_files_and_resumes(small_bytes, reports, hub, environment):
    stopped = run("-c", CANCELLED, str(small_bytes), str(reports), environment=environment)
    assert stopped.returncode == 1
    assert "the download of org/tiny was stopped; run the same command to continue" in stopped.stderr
    first = [file for file in hub.files_sent() if file]
    assert first and "model.safetensors" not in [*first[:-1]]
    hub.sent.clear()
    assert download("org/tiny", "--yes", environment=environment).returncode == 0
    assert not {*first[:-1]} & {*hub.files_sent()}


@pytest.mark.e2e
def test_a_broken_connection_resumes_where_it_broke(hub, environment, llama_folder):
    hub.cut = {"model.safetensors": 5000}
    assert download("org/tiny", "--yes", environment=environment).returncode == 0
    assert hub.files_sent().count("model.safetensors") == 2
    folder = find_model("org/tiny", environment=environment).folder
    assert (folder / "model.safetensors").read_bytes() == (llama_folder / "model.safetensors").read_bytes()


def chosen(*names: str) -> list[str]:
    return sorted(file.name for file in model_files_to_fetch("org/m", [HubFile(name, 1) for name in names]))


def test_only_files_that_training_reads_are_chosen():
    names = ["config.json", "tokenizer.json", "README.md", "consolidated.safetensors", "original/model.safetensors"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    others = ["pytorch_model.bin", "model.fp16.safetensors", "modeling_own.py", "tf_model.h5", "model.onnx"]
    assert chosen(*names, *shards, *others) == sorted(["config.json", "tokenizer.json", *shards])
    assert chosen(*names, "model.safetensors", *shards) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert chosen("config.json", *others) == ["config.json", "pytorch_model.bin"]


def test_a_repository_without_a_model_is_refused_with_what_it_has(subtests):
    for names, words in (
        (["adapter_config.json", "adapter_model.safetensors"], "the repository contains an adapter"),
        (["model.Q4.gguf"], "llama.cpp"),
        (["config.json", "tf_model.h5"], "no weights that transformers can load"),
        ([], "repository is empty"),
    ):
        with subtests.test(words), pytest.raises(ConfigError, match=words):
            chosen(*names)


def test_the_offer_names_size_licence_and_folder():
    offer = DownloadOffer(
        kind=MODEL,
        name="org/m",
        revision="main",
        files=(HubFile("config.json", 1 << 30), HubFile("model.safetensors", 3 << 30)),
        missing_bytes=1 << 30,
        gated=True,
        license="\x1b[31mllama3",
        target=Path("/cache/m"),
    )
    text = "\n".join(offer_lines(offer))
    assert "4.0 GiB in 2 files, 1.0 GiB still to download" in text
    assert "only for accounts that accepted the licence" in text and "/cache/m" in text and "\x1b" not in text
