"""Heads inside the package: found by what the target is, fit to be published, in the wheel."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specframe import load
from specframe.compose import catalogue
from specframe.compose.loaded_models import LoadedModels
from specframe.errors import ConfigError
from specframe.heads import shipped
from specframe.heads.choice import HeadChoice
from specframe.heads.eagle_file import load_eagle
from specframe.models.gguf import MODELS
from specframe.target.hf import HF
from tests.heads.small_heads import words_for
from tests.small_models import model
from tests.turns import rest_slow

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 55_000_000  # bytes of all heads together
EXPECTED = {"smollm2": {"eagle", "eagle3", "medusa", "mtp"}}
HEADS = sorted(file.parent for file in shipped.HEADS.glob("*/*/config.json"))
KEYS = {"licence", "drafter", "target", "recipe", "seed", "data", "curve", "command", "heldout"}
PROMPT = (5, 17, 42, 17, 42, 8)


@pytest.fixture(autouse=True)
def _own_weights() -> None:
    LoadedModels.shared().clear()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, and a package in which a random EAGLE head ships for it."""
    folder = tmp_path / "model"
    model("llama").save_pretrained(folder)
    heads = tmp_path / "heads"
    words_for("eagle", "llama", heads / "tiny" / "eagle")
    write_manifest(heads / "tiny" / "eagle", folder)
    monkeypatch.setattr(shipped, "HEADS", heads)
    return folder


def write_manifest(head: Path, folder: Path) -> None:
    """What a head's manifest says of the weights that it was trained for."""
    file = folder / "model.safetensors"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    weights = {"sha256": digest, "bytes": {file.name: file.stat().st_size}}
    text = json.dumps({"target": {"weights": weights}})
    (head / "manifest.json").write_text(text, encoding="utf-8")


def words(folder: Path, *more: str) -> list[str]:
    """With the head of EAGLE, unless another drafter is named."""
    drafter = [] if any(word.startswith("drafter=") for word in more) else ["drafter=eagle"]
    return ["target=hf", f"target.path={folder}", "target.dtype=float64", *drafter, *more]


# Which head


def test_the_head_that_ships_is_found_by_the_weights(tiny: Path, tmp_path: Path) -> None:
    plain = load(words(tiny, "drafter=none")).generate(PROMPT, max_new_tokens=16)
    engine = load(words(tiny))
    assert engine.generate(PROMPT, max_new_tokens=16).tokens == plain.tokens
    drafter: Any = engine.components.drafter
    held = load_eagle(str(shipped.HEADS / "tiny" / "eagle")).state_dict()
    own = drafter.net.state_dict()
    assert all(torch.equal(own[key], held[key]) for key in held)
    copied = tmp_path / "another name"
    shutil.copytree(tiny, copied)
    assert shipped.head_for("eagle", str(copied)) == "shipped://tiny/eagle"


def test_other_weights_of_the_same_sizes_have_no_head(tiny: Path) -> None:
    other = model("llama")
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    other.save_pretrained(tiny)
    with pytest.raises(ConfigError, match=r"drafter\.path=null: no head ships for .*model with"):
        load(words(tiny))


def test_what_a_conversion_recorded_is_not_believed(tiny: Path) -> None:
    file = tiny / "model.safetensors"
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    for digest in ("0" * 64, right):
        record = {"weights_sha256": digest, "files": {file.name: file.stat().st_size}}
        (tiny / "specframe.json").write_text(json.dumps(record), encoding="utf-8")
        assert shipped.head_for("eagle", str(tiny)) == "shipped://tiny/eagle"
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"#")
    with pytest.raises(ConfigError, match="no head ships"):
        shipped.head_for("eagle", str(tiny))


def test_a_packaged_target_is_known_by_its_name(tiny: Path) -> None:
    assert shipped.head_for("eagle", "package://tiny") == "shipped://tiny/eagle"
    for drafter, target in (("medusa", "package://tiny"), ("eagle", "tiny"), ("eagle", "toy")):
        with pytest.raises(ConfigError, match=f"no head ships for {target} with drafter={drafter}"):
            shipped.head_for(drafter, target)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that is loaded is a failure."""

    def refuse(self: HF, **values: Any) -> None:
        raise AssertionError("weights were loaded before the mistake was told")

    monkeypatch.setattr(HF, "__init__", refuse)
    return


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], r"no head ships for some/model .*give drafter\.path=FOLDER or hub name, or train one"),
        ([], r"task=train, or use drafter=ngram or drafter=none"),
        (["drafter=medusa"], "with drafter=medusa"),
        (["drafter.path=/no/head"], r"drafter\.path=/no/head: no such file or folder"),
        (["drafter=medusa", "drafter.path=/no/head"], r"drafter\.path=/no/head: no such file"),
        (["drafter=eagle3", "drafter.path=./head"], r"drafter\.path=\./head: no such file"),
        (["drafter.path=shipped://some/eagle"], r"drafter\.path=shipped://some/eagle: no such"),
        (["drafter.path=.", "drafter.vocabulary=/no/ids"], r"drafter\.vocabulary=/no/ids: no such"),
        (["drafter=none", "tree=static", "tree.paths=shipped://a/t.json"], "no such file"),
    ],
)
def test_what_is_missing_is_told_before_the_target_loads(more: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(words(Path("some/model"), *more))


def test_a_target_that_is_no_model_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"no head ships for toy .*drafter=ngram or drafter=none"):
        load(["target=toy", "drafter=eagle"])


# Its vocabulary and its tree


def test_a_head_drafts_the_vocabulary_that_it_brings(tiny: Path, tmp_path: Path) -> None:
    head = shipped.HEADS / "tiny" / "eagle"

    def ids(*more: str) -> list[int] | None:
        drafter: Any = load(words(tiny, *more)).components.drafter
        return None if drafter._ids is None else drafter._ids.tolist()

    assert ids() is None
    (head / "vocabulary.json").write_text("[3, 5, 90]\n", encoding="utf-8")
    assert ids() == [3, 5, 90]
    assert ids("drafter.vocabulary=null") is None
    few = tmp_path / "few.txt"
    few.write_text("1\n2\n", encoding="utf-8")
    assert ids(f"drafter.vocabulary={few}") == [1, 2]
    assert ids(f"drafter.path={head}") == [3, 5, 90]
    assert ids(f"drafter.path={head / 'model.safetensors'}") == [3, 5, 90]
    own = tmp_path / "own"
    shutil.copytree(head, own)
    (own / "vocabulary.json").unlink()
    assert ids(f"drafter.path={own}") is None
    assert HeadChoice.of("eagle", "hub/name", "auto", "x").vocabulary is None


def test_a_tree_in_the_package_is_named_like_its_head(tiny: Path) -> None:
    file = shipped.HEADS / "tiny" / "eagle" / "tree.json"
    file.write_text(json.dumps({"paths": [[0], [0, 0], [1]]}), encoding="utf-8")
    engine = load(words(tiny, "tree=static", "tree.paths=shipped://tiny/eagle/tree.json"))
    assert engine.components.tree.paths == [(0,), (1,), (0, 0)]  # type: ignore[attr-defined]


# What is there


def strings(value: Any) -> Iterator[str]:
    """Every text in a JSON value but chat templates, which may hold anything."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from () if key == "chat_template" else strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


PLACE = re.compile(r"(^|[=,:\[\s'\"(])(~/|/|[A-Za-z]:\\)[\w.]")


def test_a_place_is_noticed() -> None:
    for text in ("/home/me/x", "task.answers=/tmp/a", "a=[~/b]", "C:\\data", "x: /usr/lib"):
        assert PLACE.search(text), text
    for text in ("package://smollm2", "a/b", "Public domain/CC0", "runs/eagle", "Apache-2.0"):
        assert not PLACE.search(text), text


@pytest.mark.parametrize(("target", "drafters"), EXPECTED.items())
def test_the_heads_that_are_promised_ship(target: str, drafters: set[str]) -> None:
    assert drafters <= {head.name for head in HEADS if head.parent.name == target}


def test_they_are_small() -> None:
    assert sum(file.stat().st_size for file in shipped.HEADS.rglob("*") if file.is_file()) <= LIMIT


def test_nothing_else_lies_there() -> None:
    allowed = {"config.json", "manifest.json", "vocabulary.json", "tree.json", "calibration.json"}
    for file in shipped.HEADS.rglob("*"):
        known = file.name in allowed or file.suffix == ".safetensors"
        of_the_room = file.parent == shipped.HEADS and file.suffix in (".py", ".md")
        in_cache = "__pycache__" in file.parts
        assert file.is_dir() or (known and file.parent in HEADS) or of_the_room or in_cache, file


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.parent.name}/{head.name}")
class TestHead:
    def manifest(self, head: Path) -> dict[str, Any]:
        return json.loads((head / "manifest.json").read_text(encoding="utf-8"))

    def test_its_manifest_can_be_published(self, head: Path) -> None:
        held = self.manifest(head)
        assert held.keys() >= KEYS
        assert held["licence"] == "Apache-2.0"
        assert held["drafter"] == head.name
        assert held["command"][:3] == ["python", "-m", "specframe"]
        assert "path" not in held["target"]
        for file in head.glob("*.json"):
            for text in strings(json.loads(file.read_text(encoding="utf-8"))):
                assert not PLACE.search(text), text

    def test_it_says_whose_prompts_it_learned_from(self, head: Path) -> None:
        notice = (shipped.HEADS / "README.md").read_text(encoding="utf-8")
        found = self.manifest(head)["data"]["sources"]
        assert found
        for one in found:
            assert one["answers"] > 0
            assert one["license"] != "unknown", one["source"]
            if one["license"].startswith("CC-BY"):
                rows = [row for row in notice.splitlines() if f"`{one['source']}`" in row]
                assert rows and one["license"] in rows[0], one["source"]

    def test_it_is_for_the_weights_of_its_package(self, head: Path) -> None:
        target = self.manifest(head)["target"]
        assert target["name"] == f"package://{head.parent.name}"
        assert target["weights"]["sha256"] == MODELS[head.parent.name].weights_sha256

    def test_its_weights_are_bfloat16_tensors(self, head: Path) -> None:
        from safetensors import safe_open

        files = sorted(head.glob("*.safetensors"))
        assert files and not [one for one in head.iterdir() if one.suffix in (".bin", ".pt")]
        for file in files:
            with safe_open(str(file), "pt") as held:
                tensors = {key: held.get_tensor(key) for key in held.keys()}  # noqa: SIM118
            floating = [one for one in tensors.values() if one.dtype.is_floating_point]
            assert floating and {one.dtype for one in floating} == {torch.bfloat16}
            assert all(bool(one.isfinite().all()) for one in floating)

    def test_its_vocabulary_and_tree_are_what_their_keys_take(self, head: Path) -> None:
        file = head / "vocabulary.json"
        if file.is_file():
            ids = json.loads(file.read_text(encoding="utf-8"))
            assert ids == sorted(set(ids)) and 0 <= ids[0] <= ids[-1] < 49152
        if (head / "tree.json").is_file():
            preset = f"{head.parent.name}_{head.name}"
            engine = load(["target=toy", "drafter=none", f"tree={preset}"])
            paths = engine.components.tree.paths  # type: ignore[attr-defined]
            assert len(paths) + 1 >= engine.components.tree.max_nodes


def test_a_preset_of_a_tree_belongs_to_a_head() -> None:
    with catalogue.configuration() as loader:
        presets = {
            one: catalogue.schema(loader, "tree", one) for one in catalogue.options(loader, "tree")
        }
    named = [str(values.get("paths")) for values in presets.values()]
    found = [path for path in named if path.startswith(shipped.SCHEME)]
    assert found
    for path in found:
        target, drafter, file = path.removeprefix(shipped.SCHEME).split("/")
        assert drafter in EXPECTED[target] and file == "tree.json"


def test_the_wheel_has_them() -> None:
    from hatchling.builders.wheel import WheelBuilder

    files = WheelBuilder(str(ROOT)).recurse_included_files()
    packed = {one.distribution_path for one in files}
    held = [file for file in shipped.HEADS.rglob("*") if file.is_file()]
    assert held
    for file in held:
        assert str(file.relative_to(ROOT)) in packed


@pytest.mark.parametrize(
    "head", rest_slow(HEADS), ids=lambda head: f"{head.parent.name}/{head.name}"
)
def test_it_drafts_for_its_target(head: Path) -> None:
    """The text is the target's own, and the head is right more often than never."""
    target = [f"target={head.parent.name}", "threads=1", "max_new_tokens=16"]
    text = "Count: one two three one two three one two"
    plain = load([*target, "drafter=none"]).generate(text)
    loop = load([*target, f"drafter={head.name}"]).decoding()
    tokens = loop.begin(plain.prompt_tokens)
    steps = 0
    while loop.finish_reason is None:
        tokens += loop.step().tokens
        steps += 1
    assert tokens == plain.tokens
    assert steps < len(tokens) - 1
