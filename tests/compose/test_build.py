"""From words to components: mistakes told before weights, weights loaded once, parts injected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import open_dict

from specframe import load
from specframe.cache.dynamic import DynamicCache as DynamicCache
from specframe.cache.static import StaticCache as StaticCache
from specframe.compose import build
from specframe.compose.build import plan
from specframe.compose.loaded_models import LoadedModels
from specframe.compose.overrides import compose
from specframe.drafter.base import DRAFTERS
from specframe.drafter.lm import LM
from specframe.errors import ConfigError, IncompatibleComponents
from specframe.loop import Decoding
from specframe.records import InnerLoop
from specframe.target.hf import HF
from specframe.target.toy import Toy
from specframe.types import Gives
from tests.methods import Cascade


@pytest.fixture(autouse=True)
def _own_weights() -> None:
    """Every test starts with nothing loaded."""
    LoadedModels.shared().clear()


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that is loaded is a failure."""

    def refuse(self: HF, **values: Any) -> None:
        raise AssertionError("weights were loaded before the mistake was told")

    monkeypatch.setattr(HF, "__init__", refuse)
    return


def message(*words: str) -> str:
    """The one line for these words, on a target whose weights must not be touched."""
    with pytest.raises((ConfigError, IncompatibleComponents)) as caught:
        load(["target=hf", "target.path=some/model", *words])
    text = str(caught.value)
    assert "\n" not in text
    return text


BAD = [
    (["tree.depth=six"], "tree.depth=six: expected integer, got 'six' (str)"),
    (["tree.depth=6.5"], "tree.depth=6.5: expected integer, got 6.5 (float)"),
    (["tree.depth=99"], "tree.depth=99 is out of range; allowed 1 .. 64"),
    (["tree.max_nodes=1"], "tree.max_nodes=1 is out of range"),
    (["tree.dpeth=6"], "Did you mean 'depth'?"),
    (["+tree.dpeth=6"], "Did you mean 'depth'?"),
    (["tree=chain", "tree.top_k=3"], "'top_k' is a field of tree=dynamic"),
    (["drafter=eagel"], "drafter=eagel: no such option. Available:"),
    (["max_new_tokens=-1"], "max_new_tokens=-1 is out of range"),
    (["max_new_tokens=many"], "max_new_tokens=many: expected integer"),
    (["max_new_tokns=4"], "Did you mean 'max_new_tokens'?"),
    (["seed=-1"], "seed=-1 is out of range"),
    (["sampling.top_p=1.5"], "sampling.top_p=1.5 is out of range"),
    (["sampling.temperature=hot"], "sampling.temperature=hot: expected number"),
    (
        ["sampling.processors=[nowhere:Nothing]"],
        "sampling.processors=nowhere:Nothing: cannot import",
    ),
    (["stop.criteria=[json:Nothing]"], "stop.criteria=json:Nothing: cannot import it"),
    (
        ["accept=rejection", "drafter=ngram"],
        "gives no law, so rejection would only be match: use accept",
    ),
    (
        ["accept=typical", "require_lossless=true"],
        "accept=typical changes the target's distribution",
    ),
    (
        ["drafter=ngram", "drafter.n_min=5", "drafter.n_max=3"],
        "drafter.n_min=5 is above drafter.n_max=3",
    ),
    (["tree=static", "tree.paths=[[0,1]]"], "tree.paths: [0, 1] has no parent; add [0]"),
    (["tree=static", "tree.paths=nowhere.json"], "tree.paths=nowhere.json: no such file"),
    (["runtime.buckets=[4,2]"], "runtime.buckets=[4, 2] must be increasing row counts"),
    (["prompts=nowhere.jsonl"], "nowhere.jsonl"),
    (["device=cdua"], "device=cdua: no such device; use auto, cpu or cuda"),
    (["prompt=hello", "prompts=nowhere.txt"], "prompt and prompts are both given"),
    (["sampling.top_k=0"], "sampling.top_k=0 is out of range; allowed >= 1; null turns it off"),
    (["sampling.top_k=-1"], "sampling.top_k=-1 is out of range; allowed >= 1; null turns it off"),
    (["sampling.top_p=0"], "allowed > 0 and <= 1; null turns it off"),
    (["sampling.no_repeat_ngram_size=0"], "allowed >= 1; null turns it off"),
    (
        ["sampling.min_p=-1"],
        "min_p=-1 is out of range; allowed 0 .. 1; null turns it off",
    ),
    (["stop.strings="], "stop.strings=['']: \"\" is in every text; leave it out"),
    (["stop.eos=aut"], "stop.eos=aut: expected list of integer or auto"),
    (["stop.eos=true"], "stop.eos=True: expected list of integer or auto"),
    (["stop.strings=3"], "stop.strings=3: expected list of string or null"),
]


@pytest.mark.parametrize(
    ("words", "expected"), BAD, ids=lambda one: " ".join(one) if isinstance(one, list) else ""
)
@pytest.mark.usefixtures("no_weights")
def test_mistakes_are_told_before_any_weight_is_loaded(words: list[str], expected: str) -> None:
    assert expected in message(*words)


@pytest.mark.usefixtures("no_weights")
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "device=cuda: this machine has no CUDA device; use device=cpu" in message("device=cuda")
    assert plan(compose(["target=toy", "device=auto"])).device.type == "cpu"


@pytest.mark.parametrize("key", ["target.path", "drafter.model"])
def test_a_missing_checkpoint_is_named(key: str, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "model"
    words = ["target=hf", f"target.path={missing}"]
    if key == "drafter.model":
        words = ["target=toy", "drafter=lm", f"drafter.model={missing}"]
    with pytest.raises(ConfigError, match=f"{missing}.*no such folder"):
        load(words)


def test_weights_stay_loaded_between_points() -> None:
    first = load(["target=toy", "drafter=lm"])
    second = load(["target=toy", "drafter=lm", "tree=dynamic", "seed=4", "sampling.temperature=1"])
    assert first.components.target is second.components.target
    assert first.components.drafter.model is second.components.drafter.model  # type: ignore[attr-defined]
    assert first.components.drafter is not second.components.drafter
    assert first.components.cache is not second.components.cache
    # What a runtime made ready stays with the target.
    assert first.components.runtime is second.components.runtime
    pairs = LoadedModels.shared()._targets.values()
    assert (first.components.target, first.components.runtime) in pairs
    other = load(["target=toy", "drafter=none", "target.table_seed=9"])
    assert other.components.target is not first.components.target


def test_only_a_few_models_are_kept() -> None:
    models = LoadedModels()
    for seed in range(6):
        load(["target=toy", "drafter=none", f"target.table_seed={seed}"], models=models)
    assert models.num_targets == 3
    assert LoadedModels.shared().num_targets == 0


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_drafter_gets_what_it_asks_for_by_type(cache: str) -> None:
    engine = load(["target=toy", "drafter=lm", f"cache={cache}"])
    drafter, target = engine.components.drafter, engine.components.target
    assert isinstance(drafter, LM)
    assert isinstance(drafter.model, Toy)
    assert drafter.model is not target
    assert type(drafter._cache) is {"dynamic": DynamicCache, "static": StaticCache}[cache]
    assert drafter._cache is not engine.components.cache


def test_a_capacity_is_the_targets_own() -> None:
    engine = load(["target=toy", "drafter=lm", "cache=static", "cache.capacity=40"])
    assert engine.components.cache.capacity == 40
    answer = engine.generate([1, 2, 3], max_new_tokens=100)
    assert len(answer.tokens) == 38
    assert answer.finish_reason == "length"


def test_the_draft_is_what_the_target_names_unless_told() -> None:
    named = load(["target=toy", "drafter=lm"]).components.drafter.model  # type: ignore[attr-defined]
    told = load(["target=toy", "drafter=lm", "drafter.model=toy"]).components.drafter.model  # type: ignore[attr-defined]
    assert not (named.table == told.table).all()
    assert (told.table == load(["target=toy", "drafter=none"]).components.target.table).all()  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"drafter\.model: no draft is known for target=toy; give"
    ):
        load(["target=toy", "target.draft=null", "drafter=lm"])


def test_vocabularies_must_agree() -> None:
    words = ["target=toy", "target.vocab_size=9", "drafter=lm", "drafter.model=toy"]
    with pytest.raises(IncompatibleComponents, match=r"another vocabulary .*trust_vocabulary=true"):
        load(words)
    answer = load([*words, "drafter.trust_vocabulary=true"]).generate([1, 2], max_new_tokens=8)
    plain = load(["target=toy", "target.vocab_size=9", "drafter=none"])
    assert answer.tokens == plain.generate([1, 2], max_new_tokens=8).tokens


def test_lossless_rules_pass_where_they_are_required() -> None:
    for rule in ("match", "rejection"):
        load(["target=toy", "drafter=lm", f"accept={rule}", "require_lossless=true"])


class InnerDraft(Cascade):
    """A drafter that wants a loop, as its YAML would compose it."""

    def __init__(self, *, inner: InnerLoop, length: int) -> None:
        super().__init__(loop=inner, length=length)  # type: ignore[arg-type]


@pytest.fixture
def inner_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Plans a composition whose drafter is InnerDraft with these inner words."""
    held = DRAFTERS.get("none")
    entry = DRAFTERS._entries["none"]

    def planned(inner: dict[str, Any], *words: str) -> Any:
        config = compose(["target=toy", "drafter=none", "tree=chain", *words])
        monkeypatch.setitem(DRAFTERS._entries, "none", type(entry)(InnerDraft, "here"))
        with open_dict(config):
            config.drafter = {"name": "none", "inner": inner, "length": 3}
        made = plan(config)
        monkeypatch.setitem(DRAFTERS._entries, "none", entry)
        return made

    yield planned
    assert DRAFTERS.get("none") is held


def test_an_inner_loop_is_another_composition(inner_words: Any) -> None:
    inner = {"target": "toy_draft", "drafter": "ngram", "tree": "chain"}
    for temperature in (0.0, 1.0):
        engine = inner_words(inner, f"sampling.temperature={temperature}", "stop.eos=[5]").load()
        loop = engine.components.drafter.loop
        assert isinstance(loop, Decoding)
        assert loop.components.target is not engine.components.target
        plain = [
            "target=toy",
            "drafter=none",
            f"sampling.temperature={temperature}",
            "stop.eos=[5]",
        ]
        answer = engine.generate([1, 2, 3], max_new_tokens=30)
        assert answer.tokens == load(plain).generate([1, 2, 3], max_new_tokens=30).tokens
        assert loop.lane.sampling.greedy == (temperature == 0.0), "it samples as the run does"


def test_an_inner_loop_knows_no_end(inner_words: Any) -> None:
    engine = inner_words({"target": "toy_draft", "drafter": "none"}, "max_new_tokens=12").load()
    loop = engine.components.drafter.loop
    loop.begin([1, 2, 3])
    while loop.finish_reason is None:
        loop.step()
    assert loop.finish_reason == "length"
    assert 12 + 64 < len(loop.context) - 3 < 1000, "room to be ahead of the text, and no more"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["prompt= "], "prompt is empty"),
        (["stop.strings=['']"], "stop.strings"),
        (["sampling.bad_words=['']"], "sampling.bad_words"),
        (["sampling.min_new_tokens=9", "max_new_tokens=8"], "sampling.min_new_tokens=9 is above"),
        (["sampling.repetition_penalty=0"], "sampling.repetition_penalty=0 is out of range"),
        (["sampling.top_p=0"], "sampling.top_p=0 is out of range"),
        (["cache=static", "cache.capacity=99999999999"], "cache.capacity=99999999999 is out of"),
        (
            ["target=toy", "drafter=none", "stop.eos=[999999]"],
            r"stop.eos=\[999999\]: no such token id",
        ),
    ],
)
def test_senseless_values_are_named(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load(["target=toy", *words] if "target=toy" not in words else words)


def test_load_wants_a_list() -> None:
    with pytest.raises(ConfigError, match="list of words"):
        load("drafter=none")


@pytest.fixture
def one_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A toy whose state goes one way only."""
    monkeypatch.setattr(Toy, "gives", Gives(rollback="none"))
    LoadedModels.shared().clear()
    yield
    LoadedModels.shared().clear()


@pytest.mark.parametrize("tree", ["chain", "dynamic", "static", "native"])
def test_plain_decoding_needs_no_way_back(one_way: None, tree: str) -> None:
    words = ["target=toy", "drafter=none", f"tree={tree}", "max_new_tokens=6"]
    answer = load(words).generate([1, 2, 3])
    assert len(answer.tokens) == 6
    assert answer.num_accepted == 0


@pytest.mark.parametrize("drafter", ["lm", "ouroboros"])
def test_a_draft_model_needs_a_way_back(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has one; its draft has none."""

    class OneWay(Toy):
        gives = Gives(rollback="none")

    bind = build.bind_axis
    monkeypatch.setattr(build, "bind_axis", lambda *given: replace(bind(*given), cls=OneWay))
    tree = "native" if drafter == "ouroboros" else "chain"
    sentence = r"drafter\.model: target=toy cannot roll back a rejected draft"
    with pytest.raises(IncompatibleComponents, match=sentence):
        load(["target=toy", f"drafter={drafter}", f"tree={tree}", "drafter.model=toy_draft"])


def test_an_inner_target_needs_a_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever drafts for it: the outer loop takes its text back."""
    seen: list[tuple[str, str, type]] = []
    monkeypatch.setattr(build, "check_draft_model", lambda *given: seen.append(given))
    load(["target=toy", "drafter=cascade", "tree=chain", "drafter.model=toy_draft"])
    assert seen[0] == ("drafter", "toy", Toy)  # before weights are loaded


def test_a_bare_value_is_a_list_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["stop.eos=2", r"stop.strings=</s>\n", "sampling.bad_words=no", "target=toy"]
    settings = plan(compose(words)).settings
    assert (settings.stop.eos, settings.stop.strings) == ([2], ["</s>\n"])
    assert settings.sampling.bad_words == ["no"]
    (tmp_path / "rule.py").write_text("class It:\n    def __call__(self, ids, scores): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = plan(compose(["sampling.processors=rule:It", "stop.criteria=rule:It"])).settings
    assert (settings.sampling.processors, settings.stop.criteria) == (["rule:It"], ["rule:It"])


def test_a_prompt_of_a_file_has_the_same_checks() -> None:
    config = compose(["target=toy"])
    for prompt, text in (({"a": 1}, "prompt={'a': 1}: expected string"), ("", "prompt is empty")):
        config.prompt = prompt
        with pytest.raises(ConfigError, match=text):
            plan(config)
    config.prompt = "???"
    assert plan(config).top["prompt"] == "???"


def test_words_that_the_target_cannot_write_are_named() -> None:
    engine = load(["target=toy", "drafter=none", "sampling.bad_words=[a,XYZ]"])
    with pytest.raises(ConfigError, match=r"^sampling.bad_words: no token of .* writes 'XYZ'"):
        engine.generate("ab")
