"""Multi-token prediction: the modules that a model was trained with beside its own layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Traits
from specframe.drafting.feature_drafter import FeatureDrafter
from specframe.errors import ConfigError
from specframe.heads.choice import HeadChoice
from specframe.heads.embeddings import Table, embedding, target_head
from specframe.heads.fitting import check_vocabulary_size, check_width, listed_ids, placed
from specframe.heads.head_drafter import HeadDrafter
from specframe.heads.mtp_file import load_mtp
from specframe.heads.mtp_net import MTPNet, State
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.types import Needs


@DRAFTERS.register("mtp")
class MTP(HeadDrafter, FeatureDrafter):
    """h(k, t) = layer_k(eh_proj_k([enorm_k(e(x(t+1+k))); hnorm_k(h(k-1, t))])), k = 0 .. K - 1,
    logits = head(norm_k(h(k, t))) for x(t+2+k); h(-1, t) is the target's state at token t.

    Each module has keys of its own for all positions. A drafted token of depth d is read off module
    min(d, K) - 1, so one module is used again and again, the last of several from depth K on: it is
    then fed with its own state of the parent. Embedding and head are the target's.
    feature: the target's state that is read, recycle: a module's own that is handed on: post_norm
    or pre_norm, after or before the norm in front of the head; null for what the file says.
    path: hub name, folder or file of the modules (a whole model in DeepSeek-V3's layout will do),
    null for those that ship for the target. vocabulary: file of the token ids that the draft may
    propose (FR-Spec), null for all, auto for the file beside the modules.
    Lossless under every lossless rule. Needs: features of all committed tokens, own cache.
    Draft forwards per step: one per expanded level. Target forwards per step: 1.
    Papers: DeepSeek-V3, arXiv 2412.19437 (one module, 85 to 90 % of second tokens, 1.8 times the
    tokens per second); reuse of one: FastMTP, arXiv 2509.18362.
    """

    word = "mtp"
    traits = Traits(needs=Needs(taps=("final_postnorm",), own_cache=True), laws="logits")

    def __init__(
        self,
        *,
        path: str | None,
        vocabulary: str | None,
        feature: State | None,
        recycle: State | None,
        target: Target,
        new_cache: Callable[[], CacheManager],
        runtime: Runtime,
    ) -> None:
        chosen = HeadChoice.of(self.word, path, vocabulary, target.name)
        net = load_mtp(chosen.path)
        net.options = replace(
            net.options,
            feature=feature or net.options.feature,
            recycle=recycle or net.options.recycle,
        )
        self._adopt(
            net,
            target=target,
            cache=new_cache(),
            runtime=runtime,
            vocabulary=chosen.vocabulary,
        )
        check_vocabulary_size(net.options.vocab_size, target)

    def _adopt(
        self,
        net: MTPNet,
        *,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
        vocabulary: str | None = None,
    ) -> None:
        check_width(net, target)
        tap = f"final_{net.options.feature.replace('_', '')}"
        self.traits = replace(self.traits, needs=Needs(taps=(tap,), own_cache=True))
        ids = listed_ids(vocabulary, target)
        own = net.module(0).embed_tokens
        embed = embedding(own, target, hidden=net.hidden_size, where="drafter.path")
        for index in range(net.options.modules):
            net.module(index).embed_tokens = None  # one copy is enough
        net = placed(net, target)
        self._modules, self._heads = net, _heads(net, target, ids, runtime)
        runtime.weights.pack_head(
            net, tables=[net.module(i).shared_head.head for i in range(net.options.modules)]
        )
        super().__init__(
            net=net,
            embed=embed,
            head=self._heads[0],
            ids=ids,
            cache=cache,
            runtime=runtime,
            device=target.device,
            dtype=target.dtype,
        )

    def _logits(self, states: Tensor, depth: int) -> Tensor:
        index = min(depth, len(self._heads) - 1)
        return self._heads[index](self._modules.normed(states, index))

    def _stage(self, depth: int) -> int:
        count = len(self._heads)
        return min(depth, count) if count > 1 else 0

    def _entering(self, features: Tensor) -> Tensor:
        """The target's states, beside those of all modules but the last at the token before."""
        count, size = len(self._heads), features.shape[-1]
        before = features.new_zeros((len(features), (count - 1) * size))
        if self._outputs.parts:
            before[0] = self._outputs.parts[-1][-1, : (count - 1) * size]
        return torch.cat([features, before], dim=-1)


def _heads(net: MTPNet, target: Target, ids: Tensor | None, runtime: Runtime) -> list[Table]:
    """A head for each module, over tokens ids [Vd] (None: all)."""
    shared = [net.module(index).shared_head.head for index in range(net.options.modules)]
    if shared[0] is None:
        return [target_head(target, ids, runtime)] * len(shared)
    found: list[Table] = []
    for own in shared:
        assert own is not None, "all modules have one, or none"
        weight = own.weight
        if len(weight) != target.vocab_size:
            raise ConfigError(
                f"drafter.path: shared_head.head.weight has {len(weight)} rows, {target.name} has "
                f"{target.vocab_size} tokens; use modules of this target"
            )
        found.append(runtime.weights.pack_table(weight if ids is None else weight[ids]))
    return found
