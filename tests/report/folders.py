"""Folders of runs and traces written by hand, with numbers that can be worked out."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# tokens, steps, seconds of the method; seconds of plain decoding for as many tokens
Prompt = tuple[int, int, float, float]
NASTY = '</script><img src=x onerror="document.title=1">'
TEXTS = (" the", " river", "\n", NASTY, " &amp;", '"', "<0xF0>", " naïve", "", "'s", " over", ".")


def config_of(**changes: Any) -> dict[str, Any]:
    """A configuration as a manifest holds it; changes by dotted key with `__` for the dot."""
    held: dict[str, Any] = {
        "target": {"name": "toy"},
        "drafter": {"name": "lm"},
        "tree": {"name": "chain", "depth": 2, "max_nodes": 8},
        "accept": {"name": "match"},
        "cache": {"name": "dynamic"},
        "runtime": {"name": "eager"},
        "task": {"name": "benchmark"},
        "sampling": {"temperature": 0.0},
        "max_new_tokens": 8,
        "seed": 0,
    }
    for key, value in changes.items():
        *above, last = key.split("__")
        place = held
        for name in above:
            place = place[name]
        place[last] = value
    return held


def benchmark(
    folder: Path, prompts: Sequence[Prompt], *, baseline: bool = True, **changes: Any
) -> Path:
    """The folder of a benchmark: rows.jsonl and manifest.json."""
    folder.mkdir(parents=True)
    lines = [json.dumps(_row(index, one, baseline)) for index, one in enumerate(prompts)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest(folder, **changes)
    return folder


def manifest(folder: Path, **changes: Any) -> None:
    """The manifest of a run."""
    held = {
        "config": config_of(**changes),
        "state": "finished",
        "packages": {"torch": "2.13.0"},
        "git": {"commit": "0123456789"},
        "hardware": {"cpu": "a processor", "torch_threads": 1, "cuda": None},
    }
    (folder / "manifest.json").write_text(json.dumps(held), encoding="utf-8")


def _row(index: int, prompt: Prompt, baseline: bool) -> dict[str, Any]:
    tokens, steps, seconds, plain = prompt
    sides = {"method": [{"metrics": _metrics(tokens, steps, seconds)}]}
    if baseline:
        sides["baseline"] = [{"metrics": _metrics(tokens, tokens, plain)}]
    names = ("qa", "rag")
    return {
        "index": index,
        "id": index,
        "category": names[index % 2],
        "digest": f"digest{index}",
        "sides": sides,
        "error": None,
    }


def _metrics(tokens: int, steps: int, seconds: float) -> dict[str, Any]:
    kept = tokens - steps
    return {
        "num_step_tokens": tokens,
        "num_steps": steps,
        "decode_s": seconds,
        "num_draft_rows": 3 * steps,
        "num_accepted": kept,
        "depths": [{"drafted": steps, "reached": steps, "accepted": kept}],
    }


def trace(
    path: Path, *, answers: int, steps: int, nodes: int, seed: int = 0, end: bool = True
) -> None:
    """A trace.jsonl of random trees of up to `nodes` nodes, depth 6 at most."""
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:

        def write(held: dict[str, Any]) -> None:
            file.write(json.dumps(held) + "\n")

        for answer in range(answers):
            root = rng.choice(TEXTS)
            write(_answer(answer, root))
            for index in range(steps):
                made = _step(rng, root, nodes)
                write({"kind": "step", "answer": answer, "step": index, **made})
                root = made["emitted_texts"][-1]
            if end:
                write({"kind": "end", "answer": answer, "finish_reason": "length", "text": ""})
        file.write('{"kind": "step", "answer"')  # a killed run


def _answer(answer: int, text: str) -> dict[str, Any]:
    return {
        "kind": "answer",
        "answer": answer,
        "id": f"q{answer}",
        "category": "qa",
        "prompt": f"Prompt {answer} {NASTY}",
        "prompt_tokens": [1],
        "tokens": [0],
        "texts": [text],
        "prefill_ms": 12.5,
    }


def _step(rng: random.Random, root: str, nodes: int) -> dict[str, Any]:
    parents, depths = [-1], [0]
    for node in range(1, rng.randint(1, nodes)):
        near = [one for one in range(max(0, node - 12), node) if depths[one] < 6] or [0]
        parents.append(rng.choice(near))
        depths.append(depths[parents[-1]] + 1)
    path, at = [], 0
    while (below := [one for one, above in enumerate(parents) if above == at]) and (
        rng.random() < 0.6
    ):
        at = rng.choice(below)
        path.append(at)
    texts = [root, *(rng.choice(TEXTS) for _ in parents[1:])]
    walked = {0, *path}
    why = [
        "accepted"
        if node in path
        else "ratio 0.12 < coin 0.47"
        if above in walked
        else "not reached"
        for node, above in enumerate(parents)
    ]
    return {
        "rows": len(parents) + 1,
        "tokens": list(range(len(parents))),
        "texts": texts,
        "parents": parents,
        "target_probs": [None, *(round(rng.random(), 6) for _ in parents[1:])],
        "draft_probs": [None, *(rng.choice([None, rng.random()]) for _ in parents[1:])],
        "sources": [None, *(rng.choice(["eagle", None]) for _ in parents[1:])],
        "path": path,
        "emitted": [0] * (len(path) + 1),
        "emitted_texts": [*(texts[one] for one in path), rng.choice(TEXTS)],
        "why": [None, *why[1:]],
        "num_accepted": len(path),
        "was_cut": False,
        "finish_reason": None,
        "ms": {"draft": 10.0, "verify": 30.0, "accept": 1.0, "commit": 0.5, "host": 0.5},
    }
