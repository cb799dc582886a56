"""The command line: one line for a mistake, exit codes, sweeps that go on, quick answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

import specframe.compose
from specframe.cli import main
from specframe.compose import catalogue
from specframe.compose.literal_words import as_typed, for_hydra
from specframe.compose.overrides import compose
from specframe.errors import ConfigError, IncompatibleComponents, MissingResource
from specframe.storage.folder_lock import FolderLock
from specframe.storage.run_folder import RunFolder
from specframe.sweep import extras
from specframe.sweep.point import PointRecord
from tests.turns import rest_slow

REPOSITORY = Path(specframe.__file__).parents[1]
OPTIONS = {
    "target/smollm2": "name: hf\npath: x\nquantization: null",
    "drafter/ngram": "name: ngram\nmax_n: 3",
    "drafter/eagle": "name: eagle\npath: null",
    "tree/chain": "name: chain\ndepth: 5\nmax_nodes: 6\nproposal: auto",
    "tree/dynamic": "name: dynamic\ndepth: 5\nmax_nodes: 60\ntop_k: 10\nproposal: auto",
    "accept/match": "name: match",
    "cache/dynamic": "name: dynamic",
    "runtime/eager": "name: eager",
    "runtime/packed": "name: packed",
    "trace/none": "name: none",
    "task/generate": "name: generate",
    "tracker/broken": "# @package hydra.callbacks\nb: {_target_: tests.tracker.broken.Broken}",
    "tracker/mlflow": "# @package hydra.callbacks\nmlflow: {_target_: x.Y, uri: null}",
    "tracker/missing": "# @package hydra.callbacks\nb: {_target_: tests.tracker.broken.Missing}",
    "experiment/deep": (
        "# @package _global_\ndefaults:\n  - override /tree: dynamic\ntree:\n  depth: 7"
    ),
    "experiment/slip": "# @package _global_\ntree:\n  dpeth: 7",
    "experiment/named_sweep": ("# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}"),
}


@dataclass
class Result:
    """What a command did."""

    code: int
    out: str
    err: str
    configs: list[dict[str, object]]

    @property
    def line(self) -> str:
        """The error of a command that must end with one line, code 2 and no job."""
        assert (self.code, self.out, self.configs) == (2, "", []), self
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("specframe: error: "), self.err
        return self.err.removeprefix("specframe: error: ").strip()


Command = Callable[..., Result]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`main()` on a small conf/, with a job that records its config; seeds from 90 on misbehave."""
    package = tmp_path / "package"
    shutil.copytree(REPOSITORY / "conf" / "hydra", package / "conf" / "hydra")
    primary = (REPOSITORY / "conf" / "config.yaml").read_text()
    for axis, option in (("drafter", "ngram"), ("tree", "chain")):
        primary = re.sub(rf"- {axis}: \w+", f"- {axis}: {option}", primary)
    (package / "conf" / "config.yaml").write_text(primary)
    for name, text in OPTIONS.items():
        path = package / "conf" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(catalogue, "PACKAGE", package)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    configs: list[dict[str, object]] = []
    fake = types.ModuleType("specframe.compose.run_task")
    monkeypatch.setattr(fake, "run", _job(configs), raising=False)
    monkeypatch.setitem(sys.modules, "specframe.compose.run_task", fake)
    monkeypatch.setattr(specframe.compose, "run_task", fake, raising=False)

    def run(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["specframe", *words])
        configs.clear()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err, list(configs))

    return run


def _job(configs: list[dict[str, object]]) -> Callable[..., None]:
    raised = {
        90: IncompatibleComponents("accept=x and tree=y do not go together; use z"),
        91: ConfigError("tree.depth=99 is out of range;\n allowed 1 .. 64"),
        92: MissingResource("no weights; run this"),
        93: FileNotFoundError(2, "No such file or directory", "prompts.txt"),
        94: RuntimeError("boom"),
        95: KeyboardInterrupt(),
        96: SystemExit(1),
        97: BrokenPipeError(),
        98: OSError(28, "No space left on device", "out.bin"),
    }

    def run(cfg: DictConfig, *, output_dir: Path, folder: RunFolder | None) -> None:
        assert output_dir.is_dir()
        assert cfg.seed == 99 or (folder is not None and folder.path == output_dir.absolute())
        if cfg.seed in raised:
            raise raised[cfg.seed]
        content = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(content, dict)
        configs.append({str(key): value for key, value in content.items()})

    return run


def test_a_good_command_runs_and_leaves_a_folder(command: Command) -> None:
    result = command("tree=dynamic", "tree.top_k=3", "seed=1", "seed=2")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert result.configs[0]["seed"] == 2
    tree = {"name": "dynamic", "depth": 5, "max_nodes": 60, "top_k": 3, "proposal": "auto"}
    assert result.configs[0]["tree"] == tree
    (folder,) = Path("outputs").glob("*/*")
    assert (folder / ".hydra" / "config.yaml").is_file()
    command()
    assert len(list(Path("outputs").glob("*/*"))) == 2


CHAIN = "tree.{0}: tree=chain has no field '{0}'; it has depth, max_nodes, proposal."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["drafter=eagel"],
            "drafter=eagel: no such option. Available: eagle, hello?ngram. Did you mean 'eagle'?",
        ),
        (["tree.dpeth=6"], CHAIN.format("dpeth") + " Did you mean 'depth'?"),
        (["+tree.dpeth=6"], CHAIN.format("dpeth") + " Did you mean 'depth'?"),
        (["++tree.dpeth=6"], CHAIN.format("dpeth") + " Did you mean 'depth'?"),
        (["~tree.dpeth"], CHAIN.format("dpeth") + " Did you mean 'depth'?"),
        (["tree.top_k=3"], CHAIN.format("top_k") + " ('top_k' is a field of tree=dynamic)"),
        (["+tree.top_k=3"], CHAIN.format("top_k") + " ('top_k' is a field of tree=dynamic)"),
        (
            ["-m", "tree=chain,dynamic", "tree.top_k=3"],
            CHAIN.format("top_k") + " ('top_k' is a field of tree=dynamic)",
        ),
        (["experiment=slip"], CHAIN.format("dpeth") + " Did you mean 'depth'?"),
        (["experiment=deep", "tree.topk=3"], "tree=dynamic has no field 'topk'"),
        (["temprature=1"], "temprature: no such key; there are accept, batch_size, cache, chat,"),
        (["+temprature=1"], "Did you mean 'sampling.temperature'?"),
        (["max_new_token=1"], "Did you mean 'max_new_tokens'?"),
        (["sampling.top_pp=1"], "sampling.top_pp: sampling has no field 'top_pp'; it has temp"),
        (["+sampling.top_pp=1"], "sampling.top_pp: sampling has no field 'top_pp'; it has temp"),
        (["tree.name=dynamic"], "tree.name is fixed to 'chain' by tree=chain; choose with tree="),
        (["+tree.depth=4"], "tree.depth is there already; write tree.depth=4 without +"),
        (["+tree=chain"], "tree has an option already; write tree=chain without +"),
        (["tree.depth.x=4"], "tree.depth.x: tree.depth is a value, it has no fields"),
        (["tree=null"], "tree=null: no such option. Available: chain, dynamic."),
        (["~tree"], "tree=null: no such option. Available: chain, dynamic."),
        (["experiment=null"], "experiment=null: leave the word out for none"),
        (["tree=chain", "tree=dynamic"], "tree is given 2 times (tree=chain, tree=dynamic); keep"),
        (["tree"], "tree: a word is written key=value, such as drafter=ngram"),
        (["seed=1,2"], "seed=1,2: several values are a sweep: add -m, and seed=[1,2] is a list"),
        (["tree=chain,dynamic"], "tree=chain,dynamic: several values are a sweep: add -m"),
        (
            ["task=benchmark", "task.compare=[tree=chain, peers]"],
            '\'task.compare=["tree=chain","peers"]\'',
        ),
        (["objective=a, 'b"], "objective: the value does not parse; quote it twice, for the shell"),
        (["prompt=a\udcff"], "prompt: not UTF-8, it has \\udcff; type it anew, or write it to"),
        (["-m", "seed=1,2", "drafter=ngram,eagel"], "drafter=eagel: no such option."),
        (
            ["-m", "drafter=ngram,eagel", "hydra.sweeper.max_batch_size=1"],
            "drafter=eagel: no such option.",
        ),
        (["--cfg", "job", "drafter=eagel"], "drafter=eagel: no such option."),
        (["hydra/launcher=nope"], "hydra/launcher=nope: no such option. Available: basic"),
        (
            ["tracker=mlflow", "tracker.mlflow.uri=x"],
            "tracker.mlflow.uri: the keys of a tracker stand under hydra.callbacks; write "
            "hydra.callbacks.mlflow.uri=x",
        ),
        (
            ["tracker.uri=x"],
            "tracker.uri: the keys of a tracker stand under hydra.callbacks; write "
            "hydra.callbacks.WORD.uri=x",
        ),
        (["hydra.nope=1"], "Could not override 'hydra.nope'"),
        (["seed=90"], "accept=x and tree=y do not go together; use z"),
        (["seed=91"], "tree.depth=99 is out of range; allowed 1 .. 64"),
        (["seed=92"], "no weights; run this"),
        (["seed=93"], "no such file: prompts.txt"),
    ],
)
def test_a_mistake_is_one_line(command: Command, words: list[str], message: str) -> None:
    line = command(*words).line
    # Plugins of the checkout may be listed between the options of this small conf.
    before, _, after = message.partition("hello?")
    assert before in line
    assert after in line


PROMPTS = [
    *("Hello, you", "What's 1+1=2?", 'a "quoted" \\ word', "#|[{(é,", "x" * 5000, "drafter.a.b=c"),
    *("{a: 1}", '"Hello"', "'", "[1, 2]", "${x} costs ${oc.env:HOME}", "\\${seed}", "a\\\\", "42"),
    *("1e3", "true", "???", "one\n two\t", "choice(a,b)", "a=b", "null pointers", " x "),
]


@pytest.mark.parametrize("prompt", [*PROMPTS[:4], PROMPTS[10], "???"])
def test_a_prompt_is_taken_as_it_stands(command: Command, prompt: str) -> None:
    result = command(f"prompt={prompt}")
    assert (result.code, [config["prompt"] for config in result.configs]) == (0, [prompt])


def test_a_prompt_is_one_prompt_in_a_sweep_too(command: Command) -> None:
    prompt = 'a, "b" ${seed} \\${x}\\'
    result = command("-m", "seed=1,2", f"prompt={prompt}")
    assert [config["prompt"] for config in result.configs] == [prompt, prompt]
    assert compose([f"prompt={prompt}"]).prompt == prompt


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_prompt_survives_hydras_grammar(prompt: str) -> None:
    (word,) = for_hydra([f"prompt={prompt}"])
    parsed = OverridesParser.create().parse_override(word)
    config = OmegaConf.create({"prompt": parsed.value()})
    again = OmegaConf.create(OmegaConf.to_yaml(config))
    assert not parsed.is_sweep_override()
    assert [OmegaConf.to_container(each, resolve=True) for each in (config, again)] == [
        {"prompt": prompt}
    ] * 2


def test_no_prompt_is_null(command: Command) -> None:
    assert command("prompt=null").configs[0]["prompt"] is None


@pytest.mark.parametrize(
    ("word", "strings"),
    [
        (r'stop.strings=["\n\n"]', ["\n\n"]),
        (r"stop.strings=[\n,'a\tb','c, d']", ["\n", "a\tb", "c, d"]),
        (r'sampling.bad_words=["\u00e9\x41","\ud83d\ude00"]', ["éA", "\U0001f600"]),
        (r'stop.strings=["\\n"]', [r"\n"]),
        (r'stop.strings=["\d ${x} \"q\" {"]', [r'\d ${x} "q" {']),
        (r"stop.strings=</s>\n", "</s>\n"),
        (r"stop.strings=\r\n", "\r\n"),
        ("stop.strings=[1]", [1]),
        ("stop.strings=null", None),
    ],
)
def test_escapes_are_understood(word: str, strings: object) -> None:
    (changed,) = for_hydra([word])
    config = OmegaConf.create({"it": OverridesParser.create().parse_override(changed).value()})
    assert OmegaConf.to_container(config, resolve=True) == {"it": strings}


def test_escapes_are_understood_in_a_sweep(command: Command) -> None:
    result = command("-m", r'stop.strings=["\n"],["a","\\n"]')
    found = [config["stop"]["strings"] for config in result.configs]  # type: ignore[index]
    assert found == [["\n"], ["a", r"\n"]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_hydras_words_become_those_of_the_user_again(prompt: str) -> None:
    words = [f"prompt={prompt}", r'stop.strings=["\n","\\n"]', "tree.depth=3", "prompt=null"]
    again = for_hydra(as_typed(for_hydra(words)))
    assert again == for_hydra(words)
    assert as_typed(for_hydra(words))[0] == words[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "odd.yaml has no `name:`; write the word of its component, such as name: odd"),
        (b"depth: 3\n", "odd.yaml has no `name:`; write the word"),
        (b"name: null\n", "odd.yaml has no `name:`; write the word"),
        (b"- name\n", "odd.yaml has no `name:`; write the word"),
        (b"name: [1]\n", "odd.yaml has name: [1]; write the word of its component"),
        (b"name: ${seed}\n", "odd.yaml has name: ${seed}; write the word of its component"),
        (b"name: caf\xe9\n", "odd.yaml: not UTF-8 (byte 9); save it as UTF-8"),
        (b"name: [\n", "odd.yaml"),
    ],
)
def test_an_option_whose_file_is_no_option_is_one_line(
    command: Command, content: bytes, reason: str
) -> None:
    file = catalogue.PACKAGE / "conf" / "tree" / "odd.yaml"
    file.write_bytes(content)
    assert reason in command("tree=odd").line
    assert reason in command("tree=odd", "tree.dpeth=3").line
    if b"\xe9" in content:  # a broken neighbour spoils no other message
        assert "has no field 'top_k'" in command("tree=chain", "tree.top_k=3").line


def test_a_failure_shows_its_traceback_once(command: Command) -> None:
    result = command("seed=94")
    assert result.code == 1
    assert result.err.startswith("Traceback")
    assert result.err.count("RuntimeError: boom") == 1
    assert "Error executing job" not in result.err


def test_full_errors_on_request(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "argv", ["specframe", "seed=91"])
    with pytest.raises(ConfigError, match="out of range"):
        main()
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_process_state_is_put_back(command: Command) -> None:
    command("drafter=eagel")
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert sys.argv == ["specframe", "drafter=eagel"]


def test_interrupt_and_exit_codes_of_a_task(command: Command) -> None:
    result = command("seed=95")
    assert result.code == 130
    assert result.err.startswith("specframe: interrupted; what was finished is in ")
    assert result.err.count("\n") == 1
    assert command("seed=96").code == 1


@pytest.mark.slow
def test_a_sweep_goes_on_and_says_how_each_point_ended(command: Command) -> None:
    result = command("tree=chain", "-m", "seed=1,90,94,96,2", "raw=true")
    assert result.code == 1
    assert [config["seed"] for config in result.configs] == [1, 2]
    header, *lines, counts, where = result.out.splitlines()
    assert header.split() == ["status", "seed", "folder"]
    ended = ["ok", "skipped", "failed", "failed", "ok"]
    assert [line.split()[:2] for line in lines] == [
        [status, seed] for status, seed in zip(ended, ("1", "90", "94", "96", "2"), strict=True)
    ]
    assert lines[1].endswith("accept=x and tree=y do not go together; use z")
    assert counts == "2 ok, 1 skipped, 2 failed"
    (folder,) = Path("outputs/multirun").glob("*/*")
    assert where == f"table in {folder}: sweep.csv, sweep.parquet"
    records = [json.loads(file.read_text()) for file in folder.glob("*/status.json")]
    records.sort(key=lambda record: record["number"])
    assert [record["status"] for record in records] == ended
    assert records[1]["overrides"] == ["tree=chain", "seed=90", "raw=True"]
    assert records[2]["reason"] == "RuntimeError: boom"
    assert "boom" in (folder / records[2]["config_hash"] / "traceback.txt").read_text()
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_a_sweep_without_mishap_ends_with_0(command: Command) -> None:
    assert command("-m", "tree=chain,dynamic").code == 0
    assert "2 ok, 0 skipped, 0 failed\n" in command("-m", "experiment=named_sweep").out


def test_an_appended_key_fails_its_point_of_a_sweep(command: Command) -> None:
    result = command("-m", "seed=1,2", "+tree.dpeth=6")
    assert (result.code, result.configs) == (1, [])
    assert "0 ok, 0 skipped, 2 failed\n" in result.out
    assert result.out.count("tree.dpeth: tree=chain has no field") == 2


def test_an_interrupted_sweep_lists_what_was_finished(command: Command) -> None:
    result = command("-m", "seed=1,95,2")
    assert result.code == 130
    assert "1 ok, 0 skipped, 0 failed\n" in result.out
    assert [config["seed"] for config in result.configs] == [1]
    (folder,) = Path("outputs/multirun").glob("*/*")
    told = f"specframe: interrupted; go on with: specframe -m seed=1,95,2 hydra.sweep.dir={folder}"
    assert result.err.splitlines()[-1] == told


@pytest.mark.slow
def test_the_same_sweep_again_does_only_what_is_left(command: Command) -> None:
    words = ("-m", "tree=chain,dynamic", "seed=1,94", "hydra.sweep.dir=mine")
    first = command(*words)
    assert (first.code, len(first.configs)) == (1, 2)
    again = command(*words)
    assert (again.code, again.configs) == (1, [])
    assert [line.split()[0] for line in again.out.splitlines()[1:5]] == [
        line.split()[0] for line in first.out.splitlines()[1:5]
    ]
    assert again.out.count("finished before") == 2
    assert again.out.count("RuntimeError: boom") == 2
    # Words in another order, and words that say what holds anyway, are the same configuration.
    other = command("hydra.sweep.dir=mine", "-m", "seed=1", "tree.depth=5", "tree=dynamic,chain")
    assert (other.code, other.configs) == (0, [])
    changed = command("-m", "tree=chain,dynamic", "seed=1", "raw=true", "hydra.sweep.dir=mine")
    assert [config["raw"] for config in changed.configs] == [True, True]
    assert "finished before" not in changed.out
    assert changed.out.splitlines()[-2] == "2 ok, 0 skipped, 0 failed"
    assert len(list(Path("mine").glob("*/status.json"))) == 6


@pytest.mark.parametrize(
    ("seeds", "code"), rest_slow([("90", 0), ("1,91", 1), ("1,90", 0), ("1,94", 1)], fast=2)
)
def test_a_skipped_point_is_no_failure(command: Command, seeds: str, code: int) -> None:
    result = command("-m", f"seed={seeds}")
    assert result.code == code, result
    assert f"{seeds.count('90')} skipped, {code} failed\n" in result.out


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_folder_is_refused_before_hydra_writes_there(command: Command) -> None:
    words = ("hydra.run.dir=mine", "tree=dynamic")
    assert command(*words).code == 0
    with RunFolder(Path("mine"), config=plain(*words), named_by="x") as folder:
        with folder.recorded(free={"raw"}, outputs=()):
            Path("mine/metrics.json").write_text("{}")
        folder.finish()
    before = snapshot(Path("mine"))
    told = "hydra.run.dir=mine: the run that is there has {}; give the old value, or another folder"
    for word, differs in (
        ("seed=3", "seed=0, this one has 3"),
        ("tree.depth=7", "tree.depth=5, this one has 7"),
        ("tree=chain", 'tree.name="dynamic", this one has "chain"'),
        ("experiment=deep", "tree.depth=5, this one has 7"),
    ):
        kept = [each for each in words if each.partition("=")[0] != word.partition("=")[0]]
        assert command(*kept, word).line == told.format(differs)
    again = command(*words)
    assert (again.code, again.out, again.configs) == (0, "", [])
    assert again.err == (
        "specframe: the run in mine is complete, with this very configuration; nothing is done "
        "again\n"
    )
    assert snapshot(Path("mine")) == before
    # A key that changes no result, or only names the folder or who hears of it.
    assert command(*words, "raw=true").configs
    assert command(*words, "objective=speedup").configs == []


def plain(*words: str) -> dict[str, object]:
    config = OmegaConf.to_container(compose([word for word in words if "hydra" not in word]))
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items() if key != "objective"}


@pytest.mark.slow
def test_a_folder_in_use_is_refused_in_one_line(command: Command) -> None:
    busy = "{}=mine: another command is writing to this folder; wait for it, or give another one"
    with RunFolder(Path("mine"), config={}, named_by="x"):
        assert command("hydra.run.dir=mine").line == busy.format("hydra.run.dir")
    with FolderLock(Path("mine"), name=".sweep.lock", named_by="x"):
        line = command("-m", "seed=1,2", "hydra.sweep.dir=mine").line
        assert line == busy.format("hydra.sweep.dir")
        assert list(Path("mine").glob("*.csv")) == []
    assert command("-m", "seed=1,2", "hydra.sweep.dir=mine").code == 0


def test_a_process_of_another_device_shares_its_runs_folder(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder(Path("mine"), config={}, named_by="x"):
        monkeypatch.setenv("LOCAL_RANK", "1")
        result = command("hydra.run.dir=mine", "seed=99")
        assert (result.code, len(result.configs)) == (0, 1), result
        monkeypatch.setenv("LOCAL_RANK", "0")
        assert "another command is writing" in command("hydra.run.dir=mine").line


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "a file is there where a folder is wanted"),
        ("file/run", "a part of this path is a file and no folder"),
        ("loop/run", "its symbolic links lead in a circle"),
        ("x" * 300, "the name is too long"),
    ],
)
@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir"])
def test_a_place_that_cannot_be_written(
    command: Command, place: str, reason: str, key: str
) -> None:
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    line = command(*(["-m", "seed=1,2"] if "sweep" in key else []), f"{key}={place}").line
    assert line.startswith(f"{key}={place}: {reason}; give ")
    assert Path("file").read_text() == "mine"


def test_a_read_only_place(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    assert command("hydra.run.dir=mine").line == (
        "hydra.run.dir=mine: the file system is read-only; give another place"
    )


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "no space is left on the device; free some, or give another place"
    assert command("seed=98").line == f"out.bin: {full}"
    result = command("-m", "seed=1,98,2")
    assert (result.code, [config["seed"] for config in result.configs]) == (1, [1, 2])
    assert "Traceback" not in result.err
    assert f"out.bin: {full}" in result.out
    write = PointRecord.write

    def fails(self: PointRecord) -> None:
        if self.number == 1:
            raise OSError(28, "No space left on device", "status.json")
        write(self)

    monkeypatch.setattr(PointRecord, "write", fails)
    result = command("-m", "seed=1,5,2")
    assert (result.code, [config["seed"] for config in result.configs]) == (1, [1, 5, 2])
    assert f"specframe: error: point 1 has no record: status.json: {full}\n" in result.err
    assert "2 ok, 0 skipped, 0 failed\n" in result.out

    def no_table(*_: object) -> None:
        raise OSError(28, "No space left on device", "sweep.csv")

    monkeypatch.setattr(PointRecord, "write", write)
    monkeypatch.setattr("specframe.sweep.table.write", no_table)
    result = command("-m", "seed=1,2")
    assert result.code == 2
    assert "2 ok, 0 skipped, 0 failed\n" in result.out
    assert result.err.endswith(f"specframe: error: sweep.csv: {full}\n")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("redirected", "told"),
    [
        (">&-", "standard output is closed; send it to a file, or to /dev/null"),
        (">/dev/full", "standard output: no space is left on the device; free some, or give"),
    ],
)
def test_an_output_that_takes_nothing(tmp_path: Path, redirected: str, told: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m specframe --cfg job {redirected}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"specframe: error: {told}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_points_of_one_drafter_follow_each_other(command: Command) -> None:
    result = command("-m", "seed=1,2", "drafter=ngram,eagle", "tree=chain,dynamic")
    made = [(config["drafter"]["name"], config["seed"]) for config in result.configs]  # type: ignore[index]
    assert made == [(name, seed) for name in ("ngram", "eagle") for seed in (1, 1, 2, 2)]
    batched = command("-m", "seed=1,2", "drafter=ngram,eagle", "hydra.sweeper.max_batch_size=3")
    assert [config["seed"] for config in batched.configs] == [1, 2, 1, 2]


def test_a_launcher_that_breaks_leaves_the_table(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = BasicLauncher.launch

    def breaks(self: BasicLauncher, points: list[list[str]], initial_job_idx: int) -> object:
        launch(self, points[:1], initial_job_idx)
        raise RuntimeError("a worker was killed")

    monkeypatch.setattr(BasicLauncher, "launch", breaks)
    result = command("-m", "seed=1,2")
    assert result.code == 1
    assert "1 ok, 0 skipped, 0 failed" in result.out
    assert "a worker was killed" in result.err


@pytest.mark.parametrize(
    ("word", "extra"), [("hydra/launcher=ray", "launch"), ("hydra/sweeper=maximise", "sweep")]
)
def test_an_extra_that_is_missing_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, word: str, extra: str
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda module: False)
    line = command("-m", word, "seed=1,2").line
    assert line == f"{word} needs an extra: pip install 'specframe[{extra}]'"


@pytest.mark.slow
def test_a_tracker_that_fails_fails_the_command_alone(command: Command) -> None:
    result = command("tracker=broken")
    assert (result.code, len(result.configs)) == (1, 1)
    assert result.err == "specframe: Callback Broken.on_job_end raised OSError: no server for ok\n"
    result = command("-m", "seed=1,94,2", "tracker=broken", "hydra.sweep.dir=mine")
    assert (result.code, [config["seed"] for config in result.configs]) == (1, [1, 2])
    assert result.err.count("raised OSError: no server for ok") == 2
    assert result.err.count("raised OSError: no server for failed") == 1
    assert result.err.count("a tracker failed: mine/") == 3
    again = command("-m", "seed=1,2", "tracker=broken", "hydra.sweep.dir=mine")
    assert again.code == 1, "they were not told yet"
    assert command("-m", "seed=1,2", "hydra.sweep.dir=mine", "raw=true").code == 0


def test_a_tracker_whose_package_is_missing_is_told_before_any_work(command: Command) -> None:
    told = "tracker=missing needs a package: pip install nowhere.to.be_found"
    assert command("tracker=missing").line == told
    assert command("-m", "seed=1,2", "tracker=missing").line == told


def test_another_config_folder_extends_the_options(command: Command) -> None:
    Path("more/tree").mkdir(parents=True)
    Path("more/tree/mine.yaml").write_text("defaults: [chain]\ndepth: 9\n")
    result = command("tree=mine", "--config-dir", "more")
    assert result.configs[0]["tree"] == {
        "name": "chain",
        "depth": 9,
        "max_nodes": 6,
        "proposal": "auto",
    }
    assert "Did you mean 'mine'?" in command("tree=min", "-cd", "more").line


def test_a_plugin_that_repeats_a_word_is_refused_when_it_is_chosen(command: Command) -> None:
    folder = Path("plugins/twin")
    (folder / "conf" / "drafter").mkdir(parents=True)
    (folder / "twin.py").write_text("")
    (folder / "conf" / "drafter" / "ngram.yaml").write_text("name: ngram\n")
    assert command().code == 0
    assert "drafter=ngram: defined twice, in " in command("drafter=ngram").line


@pytest.mark.slow
def test_a_broken_plugin_shows_only_when_it_may_matter(command: Command) -> None:
    folder = Path("plugins/cracked")
    (folder / "conf" / "drafter").mkdir(parents=True)
    (folder / "cracked.py").write_text("import nope_not_there\n")
    (folder / "conf" / "drafter" / "cracked.yaml").write_text("name: [\n")
    assert command().code == 0
    assert "cracked" not in command("tree.dpeth=1").line
    assert "cracked" not in command("drafter=eagle", "drafter.pth=1").line
    line = command("drafter=eagel").line
    assert "Plugin not loaded: " in line
    assert "ModuleNotFoundError: No module named 'nope_not_there'" in line
    assert "cracked.yaml" in command("drafter=cracked").line


def test_words_compose_from_python_too(command: Command) -> None:
    cfg = compose(["tree=dynamic", "tree.top_k=3"])
    assert cfg.tree.top_k == 3
    assert "hydra" not in cfg
    for word in ("tree.dpeth=3", "+tree.dpeth=3", "tree=null", "tree=chian"):
        with pytest.raises(ConfigError, match=r"Did you mean|no such option"):
            compose([word])


def _shell(*words: str, cwd: Path, python: tuple[str, ...] = ()) -> tuple[float, Result]:
    """Processor seconds of a command (what it takes on a machine that does nothing else)."""
    start = _children_s()
    done = subprocess.run(
        [sys.executable, *python, "-m", "specframe", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    return _children_s() - start, Result(done.returncode, done.stdout, done.stderr, [])


def _children_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


QUICK = [
    ["--help"],
    ["drafter=ngarm"],
    ["--cfg", "job"],
    ["list"],
    ["explain", "drafter=eagle", "seed"],
    ["tree.dpeth=6"],
    ["+tree.dpeth=6"],
]


@pytest.mark.parametrize("words", rest_slow(QUICK, fast=2), ids=" ".join)
def test_quick_answers_import_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    # Plugins are imported to name those that fail, and one may want torch.
    may_import = words == ["drafter=ngarm"]
    took, result = _shell(*words, cwd=tmp_path, python=() if may_import else ("-X", "importtime"))
    assert result.code == (0 if words[0] in ("--help", "--cfg", "list", "explain") else 2), result
    if not may_import:
        imported = {line.rpartition("|")[2].strip() for line in result.err.splitlines()}
        assert "specframe.cli" in imported
        assert imported.isdisjoint({"torch", "transformers", "lightning", "numpy", "scipy"})
    if took >= 3.0:  # the better of two, since other tests may run beside it
        took, _ = _shell(*words, cwd=tmp_path)
    assert took < 3.0


@pytest.mark.slow
def test_help_lists_axes_keys_and_examples(tmp_path: Path) -> None:
    _, result = _shell("--help", cwd=tmp_path)
    for text in (
        "drafter: ",
        "tree: auto, chain, dynamic",
        "prompts=FILE",
        "python -m specframe -m",
    ):
        assert text in result.out


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m specframe --info defaults-tree | head -n 1; echo done"
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.stdout.endswith("done\n")
    assert "Error" not in done.stderr


def test_the_version_is_our_own(command: Command) -> None:
    for words in (["--version"], ["-m", "--version", "tree=chain"]):
        done = command(*words)
        assert (done.code, done.out, done.err) == (0, f"specframe {specframe.__version__}\n", "")
