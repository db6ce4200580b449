"""Data sets of a hub on this machine: one command fetches them; all others read them and contact no hub."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.downloading.fake_hub import COMMIT, FakeHub, commit_of, environment_of, run, run_each, serving
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.config.paths import data_of, with_absolute_paths
from tui_trainer.data.sources.hub import HubPath
from tui_trainer.data.sources.source import DataChoice, open_source
from tui_trainer.downloading.hub import HubFile, data_files_to_fetch
from tui_trainer.errors import DataError
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.open_run import load_config
from tui_trainer.tasks import find_task

COPY = "refs/convert/parquet"


def rows(count: int, what: str) -> list[dict[str, str]]:
    return [{"text": f"{what} {place} of the rows", "label": "even odd".split()[place % 2]} for place in range(count)]


def write(path: Path, content: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("data_sets")
    for shard in (0, 1):
        write(root / f"splits/data/train-0000{shard}-of-00002.parquet", rows(20, f"train {shard}"))
    write(root / "splits/data/test-00000-of-00001.parquet", rows(8, "test"))
    for name in ("README.md", ".gitattributes", "splits.py", "photo.png", "dataset_infos.json"):
        (root / "splits" / name).write_text("{}")
    write(root / "one/rows.jsonl", rows(40, "row"))
    (root / "one/README.md").write_text("# not data")
    write(root / "second/rows.jsonl", rows(12, "second"))
    write(root / "copy/default/train/0000.parquet", rows(6, "copy"))
    (root / "script").mkdir()
    (root / "script/script.py").write_text("raise SystemExit('never run')")
    (root / "script/README.md").write_text("# not data")
    (root / "images/of").mkdir(parents=True)
    (root / "images/of/a.png").write_bytes(b"\x89PNG")
    names = ("splits", "one", "script", "images")
    found = {f"org/{name}": root / name for name in names} | {"org/gated": root / "one", "org/private": root / "one"}
    return found | {"org/one@v2": root / "second", f"org/script@{COPY}": root / "copy"}


# Commands of which one process runs all: a process takes two seconds to start.
COMMANDS = {
    "first": ("org/one", "--yes"),
    "second": ("hub:org/one",),
    "splits": ("hub:org/splits", "--yes"),
    "incomplete": ("org/gone", "--yes"),
    "images": ("org/images", "--yes"),
    "absent": ("org/none", "--yes"),
    "no part": ("org/one/nowhere", "--yes"),
    "no owner": ("imdb", "--yes"),
    "no name": ("org/..", "--yes"),
    "outside": ("org/one/../../x", "--yes"),
    "script": ("org/script", "--yes"),
    "gated": ("org/gated", "--yes"),
    "private": ("org/private", "--yes"),
}


@pytest.fixture(scope="module")
def downloads(repositories, tmp_path_factory):
    """The hub after all commands, the folder of the cache, and the result of each command."""
    folder = tmp_path_factory.mktemp("downloads")
    write(folder / "gone/data/a.parquet", rows(3, "here"))
    data_sets = repositories | {"org/gone": folder / "gone"}
    hub = FakeHub(data_sets=data_sets, gated={"org/gated"}, private={"org/private"})
    hub.info["org/gone"] = {
        "siblings": [{"rfilename": f"data/{name}", "size": 9000} for name in ("a.parquet", "b.parquet")]
    }
    with serving(hub):
        environment = environment_of(hub, folder)
        commands = [["download", "--data", *words] for words in COMMANDS.values()]
        results = dict(zip(COMMANDS, run_each(*commands, environment=environment), strict=True))
    return hub, environment["HF_HOME"], results


@pytest.fixture
def downloaded(downloads, monkeypatch):
    """The same, and this process reads the same cache."""
    monkeypatch.setenv("HF_HOME", downloads[1])
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return downloads


@pytest.fixture
def hub(repositories):
    with serving(FakeHub(data_sets=repositories, gated={"org/gated"}, private={"org/private"})) as served:
        yield served


@pytest.fixture
def environment(hub, tmp_path, monkeypatch) -> dict[str, str]:
    """That of the command, and this process reads the same cache."""
    made = environment_of(hub, tmp_path)
    monkeypatch.setenv("HF_HOME", made["HF_HOME"])
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return made


def fetch(path: str, *arguments: str, environment: dict[str, str]):
    return run("-m", "tui_trainer", "download", "--data", path, "--yes", *arguments, environment=environment)


# Streams each of (path, configuration, split), and prints how that ended.
STREAMED = """
import json, sys
from tui_trainer.data.preparing.estimate import size_of
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import DataError
for path, name, split in json.loads(sys.argv[1]):
    lines = []
    try:
        data = ResolvedData(paths=(path,), name=name, split=split, streaming=True)
        for found in data.sources:
            texts = [document.text.partition(" of")[0] for document in found.documents()]
            lines.append(f"{texts} {found.fingerprint()}")
        lines.append(f"{size_of(data.sources[0]).documents} {[use.words() for use in data.splits]}")
    except DataError as error:
        lines.append(str(error))
    print(json.dumps(lines))
"""


def streamed(*asked: tuple[str, str, str], environment: dict[str, str]) -> list[list[str]]:
    done = run("-c", STREAMED, json.dumps(asked), environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def two_configurations(hub, repositories) -> Path:
    two = Path(shutil.copytree(repositories["org/splits"], Path("two")))
    write(two / "en/train.jsonl", rows(6, "en"))
    write(two / "en/dev.jsonl", rows(2, "held out"))
    (two / "en/test.jsonl").write_bytes(b"\x00 never opened")
    (two / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train.jsonl\n"
        "  - split: validation\n    path: en/dev.jsonl\n  - split: test\n    path: en/test.jsonl\n"
        "- config_name: all\n  data_files: data/*\n---\n"
    )
    hub.data_sets = {"org/two": two, "org/splits": repositories["org/splits"]}
    return two


@pytest.mark.e2e
def test_streamed_data_leaves_no_copy_and_has_splits_slices_and_refusals_like_local_data(
    hub, environment, two_configurations
):
    once, several, tables, gone = streamed(
        ("org/two", "en", ""), ("org/two", "", ""), ("org/splits", "", "train[19:21]"), ("org/none", "", ""),
        environment=environment,
    )  # fmt: skip
    trained, evaluated, told = once
    assert trained.startswith(str([f"en {n}" for n in range(6)]))
    assert evaluated.startswith("['held out 0', 'held out 1']")
    assert "validation (org/two/en/dev.jsonl) is evaluated on; not read: test" in told and told.startswith("6 ")
    assert "en/test.jsonl" not in hub.files_sent()
    kept = [file for file in Path(environment["HF_HOME"]).rglob("*") if file.suffix in (".parquet", ".jsonl")]
    assert kept == []
    assert "several configurations: en, all; set data.name" in several[0]
    assert tables[0].startswith("['train 0 19', 'train 1 0']")
    assert "the Hub has no dataset org/none at main" in gone[0]
    [again] = streamed(("hub:org/two", "en", ""), environment=environment)
    assert again[:2] == once[:2], "with the same fingerprints"
    [[offline]] = streamed(("org/two", "en", ""), environment=environment | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert "cannot be streamed" in offline and "\n" not in offline


@pytest.mark.e2e
def test_one_of_two_downloaded_configurations_is_read_without_the_hub(hub, environment, two_configurations):
    done = fetch("org/two", environment=environment)
    assert done.returncode == 0, done.stderr
    assert "several configurations: en, all; set data.name" in done.stdout
    hub.requests.clear()
    source = open_source("org/two", choice=DataChoice(name="en"))
    assert [document.text.partition(" of")[0] for document in source.documents()] == [f"en {n}" for n in range(6)]
    assert hub.requests == []


def put_into_cache(folder: Path, name: str, cache: Path) -> Path:
    """As another program leaves it."""
    place = cache / "hub" / f"datasets--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(folder, place / "snapshots" / COMMIT))


def test_a_downloaded_data_set_is_read_and_not_fetched_again(downloaded):
    hub, _, results = downloaded
    first = results["first"]
    assert first.returncode == 0, first.stderr
    assert "dataset  org/one, revision main" in first.stdout and "apache-2.0" in first.stdout
    assert "127.0.0.1" in first.stdout and first.stdout.rstrip().endswith('data.path = "hub:org/one"')
    assert "100 %" in first.stderr
    # The second time nothing is missing, so the user is not asked.
    assert results["second"].returncode == 0
    assert sorted(hub.files_sent("org/one")) == ["README.md", "rows.jsonl"]
    source = open_source("hub:org/one")
    assert [file.label for file in source.entries] == ["org/one/rows.jsonl"] and COMMIT in str(source.files[0])
    assert len(list(source.documents())) == 40


def test_files_without_data_are_left_out_and_the_splits_are_named(downloaded):
    hub, _, results = downloaded
    done = results["splits"]
    assert done.returncode == 0, done.stderr
    assert "in 4 files" in done.stdout and "skipped  2 files (1 .png, 1 .py)" in done.stdout
    assert {Path(name).suffix for name in hub.files_sent("org/splits")} == {".parquet", ".md"}
    assert "the splits are train, test: train is used for training" in done.stdout
    assert done.stdout.splitlines()[-1] == 'data.path = "hub:org/splits"'
    whole = open_source("hub:org/splits")
    assert len(whole.entries) == 2 and [(other.label, len(other.files)) for other in whole.other_splits] == [
        ("test", 1)
    ]
    assert whole.entries == open_source("hub:org/splits/data/train-*.parquet").entries


def test_an_incomplete_download_is_not_trained_on(downloaded):
    assert downloaded[2]["incomplete"].returncode == 1
    words = r"1 of the 2 files of hub:org/gone are not on this machine; run `tui-trainer"
    with pytest.raises(DataError, match=words):
        open_source("hub:org/gone")


def test_a_refused_download_says_why_and_fetches_nothing(downloads, subtests):
    hub, _, results = downloads
    for name, words in {
        "images": "org/images has no data that can be read: only 1 .png",
        "absent": "the Hub has no dataset org/none",
        "no part": "org/one has no data in 'nowhere'; files found: rows.jsonl",
        "no owner": "the Hub has no dataset imdb",
        "no name": "expected hub:owner/name",
        "outside": "points outside its dataset",
        "script": f"try hub:org/script@{COPY}",
        "gated": f"accept the licence on {hub.url}/datasets/org/gated",
        "private": "a private dataset needs `hf auth login` or HF_TOKEN",
    }.items():
        with subtests.test(name):
            assert results[name].returncode == 2
            assert words in results[name].stderr and results[name].stderr.count("\n") == 1
    assert "loading scripts are never run" in results["script"].stderr
    assert "the Hub has no dataset org/private that this account can access" in results["private"].stderr
    assert {name for name, _ in hub.sent} == {"org/one", "org/splits", "org/gone"}


@pytest.mark.e2e
def test_small_files_are_fetched_at_the_same_time(hub, environment):
    together = threading.Barrier(2)
    hub.pair = {f"data/train-0000{shard}-of-00002.parquet": together for shard in (0, 1)}
    assert fetch("org/splits", environment=environment).returncode == 0
    assert not together.broken


@pytest.mark.e2e
def test_a_downloaded_part_is_not_taken_for_the_whole_data_set(hub, environment):
    done = fetch("org/splits/data/train-*", environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith('data.path = "hub:org/splits/data/train-*"') and "in 3 files" in done.stdout
    assert len(open_source("hub:org/splits/data/train-*").entries) == 2
    with pytest.raises(DataError, match=r"1 of the 3 files of hub:org/splits/data are not on .* --data hub:org/splits"):
        open_source("hub:org/splits/data")
    with pytest.raises(
        DataError, match=r"has no data in 'dat'; files found: data/test-00000-of-00001.parquet; data/train-"
    ):
        open_source("hub:org/splits/dat")


@pytest.mark.e2e
def test_each_revision_has_its_own_snapshot(hub, environment):
    done = fetch("org/one", "--revision", "v2", environment=environment)
    assert done.returncode == 0 and done.stdout.rstrip().endswith('data.path = "hub:org/one@v2"')
    assert len(list(open_source("hub:org/one@v2").documents())) == 12
    assert open_source(f"hub:org/one@{commit_of('v2')}").entries
    with pytest.raises(DataError, match=f"org/one is not on this machine; the cache has commit {commit_of('v2')}: set"):
        open_source("hub:org/one")
    commands = [
        ["download", "--data", *words, "--yes"] for words in (["org/one@v9"], ["org/one@v2", "--revision", "v9"])
    ]
    unknown, twice = run_each(*commands, environment=environment)
    assert unknown.returncode == 2 and "org/one has no revision v9; set the revision after @" in unknown.stderr
    assert twice.returncode == 2 and "two revisions" in twice.stderr


@pytest.mark.e2e
def test_the_hubs_own_copy_of_a_data_set_with_a_loading_script_is_downloaded(hub, environment):
    done = fetch(f"org/script@{COPY}", environment=environment)
    assert done.returncode == 0, done.stderr
    assert len(list(open_source(f"hub:org/script@{COPY}/default/train").documents())) == 6


@pytest.mark.e2e
def test_a_token_opens_gated_and_private_data_sets_and_is_not_printed(hub, environment):
    commands = [["download", "--data", name, "--yes"] for name in ("org/gated", "org/private")]
    for right in run_each(*commands, environment=environment | {"HF_TOKEN": "secret"}):
        assert right.returncode == 0 and "secret" not in right.stdout + right.stderr


@pytest.mark.e2e
def test_without_a_network_the_message_names_the_folder_to_copy_into(environment):
    gone = fetch("org/one", environment=environment | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert gone.returncode == 1 and "the Hub at 127.0.0.1 cannot be reached" in gone.stderr
    assert f"into {Path('one').absolute()} and give --data ./one" in gone.stderr
    offline = fetch("org/one", environment=environment | {"HF_HUB_OFFLINE": "1"})
    assert offline.returncode == 1 and "HF_HUB_OFFLINE is set" in offline.stderr


@pytest.mark.e2e
def test_no_other_command_contacts_the_hub(hub, environment):
    none, silent = run_each(["download"], ["download", "--data", "org/one"], environment=environment)
    assert none.returncode == 2 and "--data owner/name" in none.stderr
    assert silent.returncode == 2 and "add --yes" in silent.stderr and not hub.files_sent()
    hub.requests.clear()
    commands = [[command, "--data", "hub:org/one"] for command in ("plan", "preview", "--no-ui", "check")]
    for done in run_each(*commands, environment=environment):
        told = " ".join((done.stdout + done.stderr).split())
        assert "the dataset org/one is not on this machine" in told
        assert "run `tui-trainer download --data hub:org/one`" in told
        assert "or copy the files of the dataset into ./one and give that path" in told
        assert done.returncode == 2 or done.args[0] == "check"
    assert hub.requests == [] and not (Path(environment["TUI_TRAINER_HOME"]) / "runs").exists()


def test_tasks_of_text_and_of_tables_read_a_snapshot(environment, repositories):
    put_into_cache(repositories["org/splits"], "org/splits", Path(environment["HF_HOME"]))
    settings = (
        "model.init=scratch", "tuning.method=full", "data.max_length=32", "model.scratch.vocab_size=300",
        "data.path=hub:org/splits/data/train-*.parquet", "data.eval_path=hub:org/splits/data/test-*",
    )  # fmt: skip
    for task in ("causal_lm", "sequence_classification"):
        config = load_config(Request(assignments=(*settings, f"task.type={task}"))).config
        data = find_task(task).prepare(config, data_of(config), prepared_data_folder(), lambda *_: None)
        assert (data.counts.train_documents, data.counts.eval_documents) == (40, 8), task


def test_a_config_keeps_the_name_on_the_hub():
    config = load_config(Request(assignments=("data.path=hub:org/one", "data.eval_path=hub:org/one@v2/rows.jsonl")))
    data = with_absolute_paths(config.config).data
    assert (data.path, data.eval_path) == ("hub:org/one", "hub:org/one@v2/rows.jsonl")


def test_a_bare_name_is_a_local_path_before_a_data_set_of_the_cache(
    environment, repositories, tmp_path, monkeypatch, capsys
):
    assert main(["plan", "--data", "org/one"]) == 2
    told = capsys.readouterr().err
    assert "there is no file or folder 'org/one', and no Hub dataset org/one on this machine; run `tui" in told
    put_into_cache(repositories["org/one"], "org/one", Path(environment["HF_HOME"]))
    assert len(list(open_source("org/one").documents())) == 40
    write(Path("org/one/rows.jsonl"), rows(3, "local"))
    assert len(list(open_source("org/one").documents())) == 3


def chosen(*names: str, inside: str = "") -> list[str]:
    return [
        file.name
        for file in data_files_to_fetch(HubPath("org/d", "main", inside), [HubFile(name, 1) for name in names])
    ]


def test_only_readable_files_are_chosen():
    texts = ["a.txt", "b.txt.gz", "LICENSE.txt"]
    about = ["README.md", "dataset_infos.json", ".hidden/x.csv", "load.py", "x.zip", "x.parquet.gz"]
    data = ["x.json.gz", "x.tsv", "y.arrow", "z/deep/d.conll"]
    assert chosen(*about, *texts, *data) == ["README.md", *data]
    assert chosen(*about, *texts) == ["README.md", "a.txt", "b.txt.gz"]
    assert chosen(*data, inside="z") == chosen(*data, inside="z/*/*") == chosen(*data, inside="**/*.conll") == data[-1:]
    assert chosen(*about, *data, inside="README.md") == ["README.md"]
