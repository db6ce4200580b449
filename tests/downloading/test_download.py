"""Downloads end to end, from a hub on this machine: the command in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.combinations import in_the_sweep
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


def test_as_json_the_offer_is_told_and_with_yes_the_folder(environment):
    offered = download("org/tiny", "--json", environment=environment)
    told = json.loads(offered.stdout)
    assert offered.returncode == 3 and any("are free there" in line for line in told["offer"])
    done = download("org/tiny", "--json", "--yes", environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["words"][0].startswith("org/tiny is in ")
    assert json.loads(done.stderr.splitlines()[-1])["unit"] == "bytes"


def test_a_model_is_downloaded_found_and_not_fetched_again(hub, environment, llama_folder):
    done, again = run_each(["download", "org/tiny", "--yes"], ["download", "org/tiny"], environment=environment)
    assert done.returncode == 0, done.stderr
    assert "org/tiny, revision main" in done.stdout and "apache-2.0" in done.stdout
    assert "100 %" in done.stderr

    facts = find_model("org/tiny", environment=environment)
    assert facts.folder is not None and facts.folder.name == COMMIT
    assert (facts.folder / "model.safetensors").read_bytes() == (llama_folder / "model.safetensors").read_bytes()
    assert facts.weights == "safetensors" and facts.tokenizer_files
    # The second time nothing is missing, so nothing is asked.
    assert again.returncode == 0 and hub.asked.count("model.safetensors") == 1


@pytest.mark.e2e
def test_without_a_terminal_and_without_yes_nothing_is_fetched(hub, environment):
    done = download("org/tiny", environment=environment)
    assert done.returncode == 2
    assert "there is no terminal to ask on; add --yes" in done.stderr
    assert "size" in done.stdout and not any(hub.asked)


@pytest.mark.parametrize(
    ("key", "code", "words"), [("", 3, "nothing was downloaded"), in_the_sweep("y", 0, "org/tiny is in")]
)
def test_a_terminal_is_asked_and_no_is_the_default(key, code, words, hub, environment):
    master, slave = os.openpty()
    command = [sys.executable, "-m", "tui_trainer", "download", "org/tiny"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as child:
        os.close(slave)
        shown = b""
        while b"download it? [y/N]" not in shown:
            shown += os.read(master, 4096)
        os.write(master, f"{key}\n".encode())
        with suppress(OSError):  # nobody holds the other end any more
            while more := os.read(master, 4096):
                shown += more
    os.close(master)
    assert child.returncode == code and words in shown.decode().replace("\r\n", " ")
    assert any(hub.asked) == (code == 0)


@pytest.mark.e2e
def test_a_gated_model_says_where_to_accept_and_how_to_log_in(hub, environment):
    without = download("org/gated", "--yes", environment=environment)
    assert without.returncode == 2
    assert f"accept it on {hub.url}/org/gated" in without.stderr and "hf auth login" in without.stderr
    wrong = download("org/gated", "--yes", environment=environment | {"HF_TOKEN": "wrong"})
    assert wrong.returncode == 2 and "this account may not have org/gated yet" in wrong.stderr
    right = download("org/gated", "--yes", environment=environment | {"HF_TOKEN": "secret"})
    assert right.returncode == 0 and "secret" not in right.stdout + right.stderr


ABSENT = {
    ("org/none",): "the hub has no model org/none",
    ("org/tiny", "--revision", "v9"): "org/tiny has no revision v9",
    ("../tiny",): "cannot be a name on the hub",
}


def test_what_the_hub_does_not_have_is_one_sentence(environment):
    commands = [["download", *arguments, "--yes"] for arguments in ABSENT]
    for done, words in zip(run_each(*commands, environment=environment), ABSENT.values(), strict=True):
        assert done.returncode == 2
        assert words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.e2e
def test_without_a_network_the_other_way_is_named(environment):
    gone = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = download("org/tiny", "--yes", environment=gone)
    assert done.returncode == 1
    assert "the hub at 127.0.0.1 cannot be reached (Connection refused)" in done.stderr and done.stderr.count("\n") == 1
    assert str(Path("tiny").absolute()) in done.stderr and "--model ./tiny" in done.stderr
    offline = download("org/tiny", "--yes", environment=environment | {"HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 1 and "HF_HUB_OFFLINE is set" in offline.stderr


class ConnectError(Exception):
    """As the HTTP library names it, which is no OSError."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectError("[Errno -2] Name or service not known"), "the hub at huggingface.co cannot be reached (Name or"),
        (socket.gaierror(-2, "Name or service not known"), "cannot be reached (Name or service not known)"),
        (ConnectionResetError(104, "Connection reset by peer"), "the same command goes on from there"),
    ],
)
def test_no_network_and_a_broken_connection_are_told_apart(error, words, monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    told = network_sentence(MODEL, "org/tiny", error)
    assert words in told and "\n" not in told and f"into {Path('tiny').absolute()} and give --model ./tiny" in told
    assert ("cannot be reached" in told) != isinstance(error, ConnectionResetError)


@pytest.mark.e2e
def test_a_model_of_images_is_refused_before_its_weights_are_fetched(hub, environment):
    hub.info = {"config": {"model_type": "llava", "architectures": ["LlavaForGeneration"], "vision_config": {}}}
    done = download("org/tiny", "--yes", environment=environment)
    assert done.returncode == 2 and "a model of several kinds of input" in done.stderr
    assert not any(hub.asked)


def test_a_disk_that_is_too_small_is_said_before_the_question(hub, environment):
    hub.info = {
        "siblings": [{"rfilename": "config.json", "size": 9}, {"rfilename": "model.safetensors", "size": 10**18}]
    }
    done = download("org/tiny", "--yes", environment=environment)
    assert done.returncode == 2
    assert "takes 909494.7 TiB" in done.stderr and "HF_HOME" in done.stderr and not any(hub.asked)


@pytest.mark.e2e
@pytest.mark.parametrize(("small_bytes", "reports"), [(0, 5), (20_000, 2)], ids=["one by one", "together"])
def test_a_stopped_download_keeps_what_it_has_and_goes_on(small_bytes, reports, hub, environment):
    stopped = run("-c", CANCELLED, str(small_bytes), str(reports), environment=environment)
    assert stopped.returncode == 1
    assert "the download of org/tiny was stopped; the same command goes on from there" in stopped.stderr
    first = [file for file in hub.asked if file]
    assert first and "model.safetensors" not in [*first[:-1]]
    hub.asked.clear()
    assert download("org/tiny", "--yes", environment=environment).returncode == 0
    assert not {*first[:-1]} & {*hub.asked}


@pytest.mark.e2e
def test_a_connection_that_breaks_goes_on_where_it_broke(hub, environment, llama_folder):
    hub.cut = {"model.safetensors": 5000}
    assert download("org/tiny", "--yes", environment=environment).returncode == 0
    assert hub.asked.count("model.safetensors") == 2
    folder = find_model("org/tiny", environment=environment).folder
    assert (folder / "model.safetensors").read_bytes() == (llama_folder / "model.safetensors").read_bytes()


def chosen(*names: str) -> list[str]:
    return sorted(file.name for file in model_files_to_fetch("org/m", [HubFile(name, 1) for name in names]))


def test_only_what_training_reads_is_chosen():
    names = ["config.json", "tokenizer.json", "README.md", "consolidated.safetensors", "original/model.safetensors"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    others = ["pytorch_model.bin", "model.fp16.safetensors", "modeling_own.py", "tf_model.h5", "model.onnx"]
    assert chosen(*names, *shards, *others) == sorted(["config.json", "tokenizer.json", *shards])
    assert chosen(*names, "model.safetensors", *shards) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert chosen("config.json", *others) == ["config.json", "pytorch_model.bin"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "it is an adapter"),
        (["model.Q4.gguf"], "llama.cpp"),
        (["config.json", "tf_model.h5"], "no weights that transformers loads"),
        ([], "it is empty"),
    ],
)
def test_a_repository_without_a_model_says_what_it_has(names, words):
    with pytest.raises(ConfigError) as caught:
        chosen(*names)
    assert words in str(caught.value)


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
    assert "4.0 GiB in 2 files, 1.0 GiB still missing" in text
    assert "only for accounts that accepted it" in text and "/cache/m" in text and "\x1b" not in text
