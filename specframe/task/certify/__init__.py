"""Certifies whether a combination of components is exact, in words and with an exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

from specframe.errors import ConfigError, IncompatibleComponents
from specframe.law.sampling import GREEDY_BELOW
from specframe.prompts.questions import conversation
from specframe.prompts.reader import PromptRecord
from specframe.registry import Range
from specframe.session.engine import Engine
from specframe.session.run_state import recorded
from specframe.task.base import TASKS, Job, Task
from specframe.task.certify.certificate import Certificate
from specframe.task.certify.check_runs import results_of
from specframe.task.certify.coin_checks import NAME as COINS
from specframe.task.certify.coin_checks import no_coin_twice
from specframe.task.certify.enumeration import TooManyBranches
from specframe.task.certify.lane_checks import NAME as LANES
from specframe.task.certify.lane_checks import answers_in_lanes
from specframe.task.certify.law_checks import enumerated_law, sampled_law
from specframe.task.certify.pass_checks import row_company
from specframe.task.certify.text_checks import (
    Check,
    Texts,
    greedy_text,
    not_run,
    perfect_drafter,
    seeded_text,
)
from specframe.task.certify.toy_models import toy_models

_AXES = ("target", "drafter", "tree", "accept", "cache", "runtime")
_PLAIN_STOP = ["stop.eos=auto", "stop.strings=null", "stop.criteria=null"]
_DRAFT_MODEL = ["drafter=lm", "drafter.model=toy_draft", "drafter.trust_vocabulary=true"]
_TOY_VOCABULARY = 6  # tokens of target=toy_draft
_PATHS = "[[0],[1],[1,0]]"  # siblings, one of them unexpanded, and a path not through the first
_COIN_TOKENS = 8  # at least, per text in checking mode: a repetition needs several steps
_DRAFT_TOKENS = 24  # per answer, for the perfect drafter


@TASKS.register("certify")
class Certify(Task):
    """Checks whether a combination of components keeps the target's law.

    Each check is also run on a deliberately broken component, which it must notice. On the target
    itself, greedy text is compared with full forwards without a cache, with accept=match text at
    T > 0 is compared with that of drafter=none with the same seed, a row must give the same
    whatever other rows are in its pass, and no coin or draw of a text may be asked for twice. On
    target=toy with the same tree, rule and cache, the law is computed by enumeration and compared
    with the exact one (float64, error < 1e-12); rules other than match are also tested by a
    chi-square test of sampled sequences; and a perfect drafter must be accepted in full where that
    is promised. With batch_size above 1, texts in lanes must be what they are alone.

    The run leaves certificate.json. The exit code is 1 if a rule that calls itself lossless fails,
    or if a check does not notice its broken component.
    """

    can_batch: ClassVar[bool] = True

    def __init__(
        self,
        *,
        texts: list[str],
        tokens: Annotated[int, Range(1, None)],
        max_gap: Annotated[float, Range(0, None)],
        temperature: Annotated[float, Range(1e-3, 100)],
        vocab_size: Annotated[int, Range(2, 8)],
        length: Annotated[int, Range(2, 8)],
        depth: Annotated[int, Range(1, 8)],
        max_nodes: Annotated[int, Range(2, 64)],
        max_branches: Annotated[int, Range(1, None)],
        draws: Annotated[int, Range(100, None)],
    ) -> None:
        self.texts = texts
        self.tokens = tokens
        self.max_gap = max_gap
        self.temperature = temperature
        self.vocab_size = vocab_size
        self.length = length
        self.depth = depth
        self.max_nodes = max_nodes
        self.max_branches = max_branches
        self.draws = draws
        # Every token of the vocabulary, and a repetition for drafters that look back.
        self.toy_prompt = [*range(vocab_size), 0, 1]

    def run(self, job: Job) -> int:
        """Run the checks, print the certificate and return its exit code."""
        job.output_dir.mkdir(parents=True, exist_ok=True)
        with recorded(job.output_dir, engine=job.engine, config=job.config):
            certificate = Certificate(
                words={axis: job.config[axis]["name"] for axis in _AXES},
                lossless=job.engine.components.accept.lossless,
                checks=results_of(self._checks(job)),
            )
            certificate.show()
            certificate.write(job.output_dir / "certificate.json")
        return certificate.exit_code

    def _checks(self, job: Job) -> list[tuple[str, Callable[[], Check]]]:
        matching = job.config["accept"]["name"] == "match"
        checks: list[tuple[str, Callable[[], Check]]] = [
            ("greedy text", lambda: greedy_text(self._at(job, 0.0), self._texts(job)))
        ]
        checks.append(("rows of a pass", lambda: self._company(job)))
        if matching:
            warm = self._warm(job)
            checks.append(
                ("same-seed text", lambda: seeded_text(self._at(job, warm), self._texts(job)))
            )
        if job.batch_size > 1:
            checks.append((LANES, lambda: self._in_lanes(job)))
        checks.append((COINS, lambda: self._fresh(job)))
        checks.append(("law by enumeration", lambda: self._enumerated(job)))
        if not matching:
            checks.append(("law by sampling", lambda: self._sampled(job)))
        for temperature in (0.0, self._warm(job)):
            name = f"perfect drafter, T = {temperature:g}"
            checks.append((name, partial(self._perfect, job, name, temperature)))
        return checks

    def _company(self, job: Job) -> Check:
        prompts = self._texts(job).prompts
        return row_company(job.engine, prompts[0] if prompts else [0])

    def _in_lanes(self, job: Job) -> Check:
        engine = self._at(job, self._warm(job))
        return answers_in_lanes(engine, self._texts(job), job.batch_size)

    def _warm(self, job: Job) -> float:
        temperature = job.engine.settings.sampling.temperature
        return self.temperature if temperature < GREEDY_BELOW else temperature

    def _at(self, job: Job, temperature: float) -> Engine:
        if job.engine.settings.sampling.temperature == temperature:
            return job.engine
        return job.rebuild([f"sampling.temperature={temperature}"])

    def _fresh(self, job: Job) -> Check:
        texts = replace(self._texts(job), max_new_tokens=max(self.tokens, _COIN_TOKENS))
        return no_coin_twice(self._at(job, self._warm(job)), texts)

    def _texts(self, job: Job) -> Texts:
        records = [PromptRecord(turns=(text,)) for text in self.texts]
        if job.prompt is not None or job.prompts is not None:
            records = job.records()[: len(self.texts)]
        return Texts(
            prompts=[self._encoded(job, record) for record in records],
            max_new_tokens=self.tokens,
            max_gap=self.max_gap,
        )

    def _encoded(self, job: Job, record: PromptRecord) -> list[int]:
        try:
            return job.engine.encode(conversation(job.engine, record, []))
        except ConfigError:
            if job.prompt is not None or job.prompts is not None:
                raise
            return [0]  # a small vocabulary may have nothing of a text of ours

    def _toy(self, job: Job, temperature: float, *more: str) -> Engine:
        """The same tree, rule, cache and sampling on a tabulated target, with a drafter for it.

        The drafter is the user's own, over toy models, or drafter=lm where the toy lacks what it
        needs. One without laws has no such stand-in.
        """
        words = [
            "target=toy",
            f"target.vocab_size={self.vocab_size}",
            "device=cpu",
            f"sampling.temperature={temperature}",
            *_PLAIN_STOP,
            *more,
        ]
        own = [*words, *toy_models(job.config["drafter"])]
        # An inner engine cannot leave tokens out, so there the target takes the draft's vocabulary.
        for attempt in (own, [*own, f"target.vocab_size={_TOY_VOCABULARY}"]):
            try:
                return job.rebuild(attempt)
            except (ConfigError, IncompatibleComponents):
                if job.engine.components.drafter.traits.laws == "none" and attempt is not own:
                    raise
        return job.rebuild([*words, *_DRAFT_MODEL])

    def _small_tree(self, job: Job) -> list[str]:
        rows = self.max_nodes + job.engine.components.drafter.traits.needs.aux_rows
        words = [f"tree.depth={self.depth}", f"tree.max_nodes={rows}"]
        return [*words, f"tree.paths={_PATHS}"] if "paths" in job.config["tree"] else words

    def _enumerated(self, job: Job) -> Check:
        engine = self._toy(job, self._warm(job), *self._small_tree(job))
        if engine.components.how == "coupled":
            return not_run(
                "law by enumeration", "coupled draws share the target's noise: no branches to walk"
            )
        if (
            engine.components.drafter.traits.laws == "drawn"
            and not engine.components.accept.any_draft
        ):
            return not_run(
                "law by enumeration", "the inner engine's own noise is not walked; see the sampling"
            )
        wider = engine.components.target.vocab_size > self.vocab_size
        # In less than three tokens nothing is drafted: the first comes from the prompt's own pass.
        for length in range(self.length - (wider and self.length > 3), 1, -1):
            try:
                check = enumerated_law(
                    engine, self.toy_prompt, length=length, max_branches=self.max_branches
                )
                return _noted(check, job, engine)
            except TooManyBranches as error:
                reason = str(error)
        return not_run("law by enumeration", reason, applies=True)

    def _sampled(self, job: Job) -> Check:
        engine = self._toy(job, self._warm(job), *self._small_tree(job))
        check = sampled_law(engine, self.toy_prompt, length=self.length, draws=self.draws)
        return _noted(check, job, engine)

    def _perfect(self, job: Job, name: str, temperature: float) -> Check:
        parts = job.engine.components
        if not parts.accept.lossless:
            return not_run(name, "nothing is promised for a lossy rule")
        if job.config["drafter"]["name"] != "lm":
            return not_run(name, "only drafter=lm can be given the target itself as its model")
        engine = self._toy(job, temperature)
        drawn = (
            engine.components.how in ("iid", "wor")
            and engine.components.accept.preferred != "place"
        )
        if temperature >= GREEDY_BELOW and not drawn and engine.components.how != "coupled":
            return not_run(
                name,
                f"tree.proposal={engine.components.how}: children are kept with p(children) only",
            )
        return perfect_drafter(engine, self.toy_prompt, max_new_tokens=_DRAFT_TOKENS)


def _noted(check: Check, job: Job, engine: Engine) -> Check:
    """The check, with the drafter named that stands in for the user's, if one does."""
    if type(engine.components.drafter) is type(job.engine.components.drafter):
        return check
    name = job.config["drafter"]["name"]
    return replace(check, stand_in=f"drafter=lm in place of drafter={name}")
