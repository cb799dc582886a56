"""Checks of the law of a decode: by enumeration, and by a chi-square test of sampled texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specframe.law.checked_streams import ReusedDraw
from specframe.session.engine import Engine
from specframe.task.certify.broken import Careless, NoResidual
from specframe.task.certify.enumeration import (
    Law,
    Tabulated,
    exact_law,
    max_error,
    sequence_law,
    total_variation,
)
from specframe.task.certify.text_checks import Check, with_rule

TOLERANCE = 1e-12  # largest error of a law in float64
SURE = 1e-6  # p-value below which a chi-square test rejects


def enumerated_law(
    engine: Engine, prompt: Sequence[int], *, length: int, max_branches: int
) -> Check:
    """Compare the law of all branches of a decode on a toy target with the exact one (float64)."""
    exact = _exact(engine, prompt, length)
    try:
        law, count = sequence_law(engine, prompt, length=length, max_branches=max_branches)
    except ReusedDraw as repeated:
        return Check(name="law by enumeration", passed=False, finding=str(repeated))
    error = max_error(law, exact)
    control, broken_error = "", 0.0
    for rule in _controls(engine):
        broken, _ = sequence_law(
            with_rule(engine, rule), prompt, length=length, max_branches=max_branches
        )
        control, broken_error = rule.title, max_error(broken, exact)
        if broken_error >= TOLERANCE:
            break
    distance = total_variation(law, exact)
    return Check(
        name="law by enumeration",
        passed=error < TOLERANCE,
        finding=(
            f"largest error {error:.1e} over all sequences of {length} tokens, {count} branches, "
            f"total variation {distance:.1e}"
        ),
        numbers={
            "max_error": error,
            "total_variation": distance,
            "branches": count,
            "length": length,
            "control_error": broken_error,
        },
        control=control,
        caught=broken_error >= TOLERANCE,
    )


def sampled_law(engine: Engine, prompt: Sequence[int], *, length: int, draws: int) -> Check:
    """Test sequences that the engine samples on a toy target against the exact law (chi-square)."""
    exact = _exact(engine, prompt, length)
    p_value = _p_value(engine, prompt, exact, draws)
    control, broken = "", 1.0
    for rule in _controls(engine):
        control, broken = rule.title, _p_value(with_rule(engine, rule), prompt, exact, draws)
        if broken < SURE:
            break
    return Check(
        name="law by sampling",
        passed=p_value >= SURE,
        finding=(
            f"chi-square p = {p_value:.2g} over {draws} sequences of {length} tokens "
            f"(the broken rule gets p = {broken:.1g})"
        ),
        numbers={"p_value": p_value, "draws": draws, "length": length, "control_p_value": broken},
        control=control,
        caught=broken < SURE,
    )


def _controls(engine: Engine) -> list[Careless | NoResidual]:
    """Broken rules, the subtlest first. The subtle one is right where laws are one-hot."""
    drawn = engine.components.how in ("iid", "wor")
    return [NoResidual(), Careless()] if drawn else [Careless()]


def _exact(engine: Engine, prompt: Sequence[int], length: int) -> Law:
    toy = engine.components.target
    assert isinstance(toy, Tabulated), "laws are checked on target=toy"
    return exact_law(toy, engine.sampling(len(prompt)), prompt, length=length)


def _p_value(engine: Engine, prompt: Sequence[int], exact: Law, draws: int) -> float:
    length = max(map(len, exact))
    counts = Counter(
        tuple(engine.generate(prompt, sequence=draw, max_new_tokens=length).tokens)
        for draw in range(draws)
    )
    return chi_square(counts, exact)


def chi_square(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """The p-value of counts under a law. Sequences expected less than 5 times share a cell."""
    from scipy.stats import chisquare

    if any(tokens not in law for tokens in counts):
        return 0.0
    draws = counts.total()
    large = [tokens for tokens in law if law[tokens] * draws >= 5]
    observed = [counts[tokens] for tokens in large]
    expected = [law[tokens] * draws for tokens in large]
    rest = draws - sum(expected)
    if rest >= 5 or not large:
        observed.append(draws - sum(observed))
        expected.append(rest)
    else:
        observed[-1] += draws - sum(observed)
        expected[-1] += rest
    return float(chisquare(observed, expected).pvalue) if len(observed) > 1 else 1.0
