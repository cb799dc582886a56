"""The text along which ranks are counted is the target's own."""

from __future__ import annotations

import specframe
from specframe.costs.calibration import Calibrator
from specframe.costs.rank_counts import RankCounts


def test_the_text_is_the_targets_own_under_a_lossy_rule() -> None:
    rule = ["accept=typical", "accept.epsilon=0.01"]
    words = ["target=toy", "drafter=lm", "tree=chain", "seed=3", "max_new_tokens=20"]
    engine = specframe.load([*words, *rule])
    counts = RankCounts(depth=2, top_k=2)
    calibrator = Calibrator(engine, counts)
    calibrator.count("abcab", sequence=0)
    own = specframe.load(["target=toy", "drafter=none", "max_new_tokens=20"]).generate("abcab")
    assert calibrator._reader.components.accept.text.tolist()[5:] == own.tokens  # type: ignore[attr-defined]
