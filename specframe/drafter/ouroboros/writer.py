"""A draft model that writes its own greedy text by lookahead."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specframe.cache.base import CacheManager
from specframe.lookup.lookahead_window import LookaheadWindow
from specframe.lookup.ngram_pool import NgramPool
from specframe.lookup.trie import Trie
from specframe.records import Context
from specframe.target.base import Target, verify_rows
from specframe.types import AuxRows, Draft

_JOINT = 64  # tokens that catch up within a pass of the window; more are fed before it


class Writer:
    """Writes the greedy text of a model by lookahead, several tokens a pass where a guess is right.

    Its cache holds what it was fed of the text and of what it wrote; `truncate` takes back what was
    rejected. Ids that its table lacks are read as its last one and never written.
    """

    def __init__(
        self, *, model: Target, cache: CacheManager, vocab: int, width: int, ngram: int
    ) -> None:
        self.model = model
        self.cache = cache
        self._vocab = vocab
        self._width = width
        self._ngram = ngram

    def begin(self, context: Context, pool: NgramPool, *, ahead: int) -> None:
        """Start a sequence; `ahead`: the most tokens that `write` is asked for."""
        columns = context.max_columns + ahead + 2 * self._width * (self._ngram - 1)
        self.cache.open(0, columns=columns, device=self.model.device)
        self.cache.reach[0] = context.reach
        self._pool = pool
        prompt = context.tokens[: context.prompt_length]
        self._ahead = None
        if self._width:
            self._ahead = LookaheadWindow(
                width=self._width, ngram=self._ngram, text=self._read(prompt)
            )

    @property
    def _length(self) -> int:
        return self.cache.lengths[0]

    def truncate(self, length: int) -> None:
        """Keep at most the first `length` tokens."""
        self.cache.truncate(0, min(self._length, length))

    def write(self, text: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that the model greedily goes on with. Reads once a pass."""
        written: list[int] = []
        pending = list(text[self._length :])
        if len(pending) > _JOINT or self._length == 0 < len(pending) - 1:
            self.model.prefill(self._read(pending[:-1]), self.cache)
            pending = pending[-1:]
        while len(written) < count:
            written += self._pass(pending, count - len(written))
            pending = written[-1:]
        return written

    def _pass(self, pending: Sequence[int], room: int) -> list[int]:
        """One forward over pending tokens, guesses and window; at most `room` new tokens."""
        root, last = pending[-1], len(pending) - 1
        guesses = Trie(max_nodes=self._width * (self._ngram - 1))
        for phrase in self._pool.after(root)[: self._width]:
            guesses.add(phrase[: room - 1])
        draft, rows = self._draft(pending, guesses)
        best = self._forward(draft, first=last)
        said, new = best[: draft.num_rows - last], best[draft.num_rows - last :]
        node, path, tokens = guesses.root, [], [said[0]]
        while tokens[-1] in node.children:
            node = node.children[tokens[-1]]
            path.append(rows[id(node)])
            tokens.append(said[path[-1] - last])
        self._commit(draft, [*range(last + 1), *path])
        if self._ahead is not None:
            for ngram in self._ahead.advance(root, [said[0], *new][-self._width :]):
                self._pool.add(ngram)
        return tokens

    def _draft(self, pending: Sequence[int], guesses: Trie) -> tuple[Draft, dict[int, int]]:
        """Pending tokens as a chain, guesses below the last one; and the row of each trie node."""
        tokens, parents = list(pending), list(range(-1, len(pending) - 1))
        depths, rows = list(range(len(pending))), {id(guesses.root): len(pending) - 1}
        for level in guesses.levels():
            for node, children in level:
                above = rows[id(node)]
                for child in children:
                    rows[id(child)] = len(tokens)
                    tokens.append(child.token)
                    parents.append(above)
                    depths.append(depths[above] + 1)
        device, size = self.model.device, len(tokens)
        every = torch.arange(size, device=device)
        fresh = self.cache.reserve([size])
        draft = Draft(
            tokens=torch.tensor(self._read(tokens), device=device),
            parents=torch.tensor(parents, device=device),
            alive=torch.ones(size, dtype=torch.bool, device=device),
            depths=torch.tensor(depths, device=device),
            origin=every,
            row_of=every,
            depth=max(depths),
            chain=False,
            slots=fresh.slots,
            columns=fresh.columns,
            in_order=True,
            aux=self._window(size, len(pending)),
        )
        return draft, rows

    def _window(self, size: int, seen: int) -> AuxRows | None:
        if self._ahead is None or not self._ahead.num_rows:
            return None
        position = self._length + seen - 1
        device = self.model.device
        return self._ahead.rows(position=position, num_rows=size, seen=seen, device=device)

    def _forward(self, draft: Draft, *, first: int) -> list[int]:
        """Likeliest tokens after the draft's rows from `first` on, then after the last level."""
        model, size = self.model, draft.num_rows
        rows = verify_rows(draft, self.cache, model.gives.max_positions)
        end = rows.positions.shape[0]
        level = range(max(size, end - self._width), end)
        want = torch.tensor([*range(first, size), *level], device=model.device)
        logits = model.forward(rows, self.cache, want=want).logits
        assert logits is not None
        best: list[int] = logits[:, : self._vocab].argmax(-1).tolist()
        return best

    def _commit(self, draft: Draft, rows: Sequence[int]) -> None:
        assert draft.slots is not None
        moved = list(rows) != list(range(len(rows)))
        index = torch.tensor(rows, device=draft.tokens.device)
        self.cache.commit(draft.slots[index], [len(rows)], moved=[moved])

    def _read(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as the model's table has them."""
        last = self.model.vocab_size - 1
        return [min(token, last) for token in tokens]
