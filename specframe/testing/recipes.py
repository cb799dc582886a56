"""The suite of tests for recipes of training."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest

from specframe.compose import run_task
from specframe.compose.build import load
from specframe.compose.overrides import compose
from specframe.prompts.answers import Answer
from specframe.testing import tiny_models
from specframe.testing.defaults import ComponentContract
from specframe.train.base import RECIPES

SHORT = (
    *("task=train", "drafter=none", "device=cpu", "train.precision=32-true", "train.max_steps=4"),
    *("train.batch_tokens=128", "train.dtype=float32", "task.heldout=0.25", "task.check_every=4"),
)
PROMPTS, ANSWER = 12, 12


def write_answers(file: Path, target: Sequence[str]) -> None:
    """A few greedy answers of a target, as task=distill would write them."""
    engine = load([*target, "drafter=none"])
    with file.open("w", encoding="utf-8") as lines:
        for number in range(PROMPTS):
            prompt = [(7 * number + 3 * place) % tiny_models.VOCAB for place in range(4)]
            answer = Answer(
                id=number,
                turn=0,
                category=None,
                source=None,
                turns=("",),
                prompt_tokens=prompt,
                tokens=engine.generate(prompt, max_new_tokens=ANSWER).tokens,
                finish_reason="length",
            )
            lines.write(json.dumps(asdict(answer)) + "\n")


class RecipeContract(ComponentContract):
    """A recipe makes a head, lowers its loss, and exports what its drafter reads.

    The target is a random Llama of 97 tokens and three blocks. words: more of the command, such as
    `train.layers=[1,2,3]` where the recipe's numbers are for larger models.
    """

    words: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture
    def target(self, tmp_path: Path) -> tuple[str, ...]:
        """The words of the target."""
        tiny_models.model("llama").save_pretrained(tmp_path / "model")
        return ("target=hf", f"target.path={tmp_path / 'model'}", "device=cpu")

    def test_a_head_is_trained_and_its_drafter_decodes(
        self, name: str, target: tuple[str, ...], tmp_path: Path
    ) -> None:
        answers = tmp_path / "answers.jsonl"
        write_answers(answers, target)
        words = [*SHORT, *target, f"train={name}", f"task.answers={answers}"]
        config = compose([*words, *type(self).words, *self.keys("train")])
        run_task.run(config, output_dir=tmp_path / "run")
        head = [f"drafter={RECIPES.get(name).drafter}", f"drafter.path={tmp_path / 'run' / 'head'}"]
        texts = []
        for drafter in (["drafter=none"], [*head, "tree=dynamic"]):
            engine: Any = load([*target, *drafter])
            texts.append(engine.generate([5, 17, 42], max_new_tokens=8).tokens)
        assert texts[0] == texts[1]

    def test_datasheet(self, name: str) -> None:
        assert inspect.getdoc(RECIPES.get(name)), "a recipe says what it trains, and its loss"
