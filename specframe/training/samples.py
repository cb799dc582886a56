"""Training samples: a target's answers as token sequences, and the counts of their tokens.

Letters beside those of `types.py`: B sequences of a batch, L their longest length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specframe.errors import ConfigError
from specframe.prompts.answers import Answer

_OTHER = "other"  # category of prompts that name none


@dataclass(frozen=True, kw_only=True)
class TrainingSample:
    """One answer behind its prompt."""

    id: str  # of the prompt
    category: str
    tokens: Tensor  # [L] int64
    start: int  # index at which the answer begins

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answer(self) -> Tensor:
        """[L - start] the target's own tokens."""
        return self.tokens[self.start :]


@dataclass(frozen=True, kw_only=True)
class DataSplit:
    """Training and held-out samples; no prompt has answers in both."""

    # In the order of the file, so that the samples of a longer file begin with these.
    all: list[TrainingSample]
    train: list[TrainingSample]
    heldout: list[TrainingSample]
    num_left_out: int  # answers that begin beyond max_length, or that are a single token

    def digest(self) -> str:
        """sha256 of every token, in order, and of where answers start."""
        return samples_digest(self.all)

    def check_tokens(self, vocab_size: int) -> None:
        """Raises ConfigError for an answer with a token that the target does not have."""
        for sample in self.all:
            outside = (sample.tokens < 0) | (sample.tokens >= vocab_size)
            if bool(outside.any()):
                raise ConfigError(
                    f"task.answers: the answer to {sample.id!r} has the token "
                    f"{int(sample.tokens[outside][0])}, the target's are 0 to {vocab_size - 1}; "
                    "give answers that this target has written"
                )

    def counts(self) -> dict[str, int]:
        """Numbers of answers and tokens on each side, for manifests."""
        parts = {"train": self.train, "heldout": self.heldout}
        counts = {f"{name}_answers": len(part) for name, part in parts.items()}
        for name, part in parts.items():
            counts[f"{name}_answer_tokens"] = sum(len(sample.answer) for sample in part)
            counts[f"{name}_tokens"] = sum(map(len, part))
        return counts | {"left_out": self.num_left_out}


def samples_digest(samples: Iterable[TrainingSample]) -> str:
    """sha256 of every token, in order, and of where answers start."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.id} {sample.start} {len(sample)} ".encode())
        digest.update(sample.tokens.numpy().tobytes())
    return digest.hexdigest()


def split(answers: Iterable[Answer], *, heldout: float, max_length: int) -> DataSplit:
    """Samples of at most `max_length` tokens, with a share `heldout` of the prompts held out.

    A digest of the prompt's id decides, so a file that grows keeps its two sides.
    Raises ConfigError if no assistant token is left to carry loss, or one side is empty.
    """
    samples: list[TrainingSample] = []
    train: list[TrainingSample] = []
    apart: list[TrainingSample] = []
    left_out = 0
    for answer in answers:
        start = len(answer.prompt_tokens)
        tokens = torch.tensor([*answer.prompt_tokens, *answer.tokens][:max_length])
        # The first answer token comes from the prompt's pass, so an answer of one is never drafted.
        if start == 0 or len(tokens) < start + 2:
            left_out += 1
            continue
        sample = TrainingSample(
            id=str(answer.id), category=answer.category or _OTHER, tokens=tokens, start=start
        )
        samples.append(sample)
        (apart if _share(sample.id) < heldout else train).append(sample)
    if not train:
        raise ConfigError(
            f"task.answers: no assistant token carries loss ({left_out} answers are single tokens "
            f"or lie beyond task.max_length={max_length}); give other answers or more length"
        )
    if not apart:
        raise ConfigError(
            f"task.heldout={heldout}: no prompt of {len(train)} is held out; give more"
        )
    return DataSplit(all=samples, train=train, heldout=apart, num_left_out=left_out)


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The share of held-out answer tokens that a draft vocabulary has."""

    overall: float
    by_category: dict[str, float]

    def __str__(self) -> str:
        parts = [f"{name} {share:.1%}" for name, share in sorted(self.by_category.items())]
        return f"{self.overall:.1%} ({', '.join(parts)})"


def frequent_tokens(
    samples: Sequence[TrainingSample],
    *,
    size: int,
    vocab_size: int,
    more: Iterable[Sequence[int]],
    always: Sequence[int],
) -> Tensor:
    """[size] increasing ids: `always`, then the most frequent tokens of prompts and answers.

    This is FR-Spec's vocabulary (arXiv 2502.14856): an output head costs what its rows cost, and a
    few thousand tokens make up nearly all text. vocab_size: of the target, beyond which nothing is
    counted. more: further text that is counted. Ids that never occur fill up the rest, small ones
    first.
    """
    texts = [sample.tokens.numpy() for sample in samples]
    texts += [np.asarray(text, dtype=np.int64) for text in more]
    counts = np.bincount(np.concatenate(texts), minlength=vocab_size)[:vocab_size]
    counts[[token for token in always if token < vocab_size]] = counts.max() + 1
    order = np.argsort(-counts, kind="stable")
    return torch.from_numpy(np.sort(order[:size]).copy())


def coverage(samples: Sequence[TrainingSample], ids: Tensor) -> Coverage:
    """The share of the answers' tokens that is among `ids`."""
    hits: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for sample in samples:
        inside = int(torch.isin(sample.answer, ids).sum())
        hits[sample.category] = hits.get(sample.category, 0) + inside
        sizes[sample.category] = sizes.get(sample.category, 0) + len(sample.answer)
    return Coverage(
        overall=sum(hits.values()) / sum(sizes.values()),
        by_category={name: hits[name] / sizes[name] for name in sizes},
    )
