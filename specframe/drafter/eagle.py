"""EAGLE-1 and EAGLE-2: a one-layer network predicts the target's own next feature."""

from __future__ import annotations

from collections.abc import Callable

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Traits
from specframe.drafting.feature_drafter import FeatureDrafter
from specframe.heads.choice import HeadChoice
from specframe.heads.eagle_file import load_eagle
from specframe.heads.eagle_net import EagleNet
from specframe.heads.embeddings import embedding, target_head
from specframe.heads.fitting import (
    check_vocabulary_size,
    check_width,
    eagle_head,
    listed_ids,
    placed,
)
from specframe.heads.head_drafter import HeadDrafter
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.types import Needs


@DRAFTERS.register("eagle")
class Eagle(HeadDrafter, FeatureDrafter):
    """f'(t+1) = layer(fc([e(x(t+1)); f(t)])), logits = target's head(f'(t+1)) for x(t+2).

    f(t): what enters the target's head at token t. The pair stands at position t. A drafted token
    is fed with its parent's own prediction. Embedding and head are the target's, frozen.
    path: hub name, folder or file of a head, null for the one that ships for the target.
    vocabulary: file of the token ids that the draft may propose (FR-Spec), null for all, auto for
    the file beside the head.
    Lossless under every lossless rule. Needs: features of all committed tokens, own cache.
    Draft forwards per step: one per expanded level. Target forwards per step: 1.
    Papers: EAGLE, arXiv 2401.15077; EAGLE-2, arXiv 2406.16858; FR-Spec, arXiv 2502.14856.
    """

    word = "eagle"
    traits = Traits(needs=Needs(taps=("final_postnorm",), own_cache=True), laws="logits")

    def __init__(
        self,
        *,
        path: str | None,
        vocabulary: str | None,
        target: Target,
        new_cache: Callable[[], CacheManager],
        runtime: Runtime,
    ) -> None:
        chosen = HeadChoice.of(self.word, path, vocabulary, target.name)
        net, cache = load_eagle(chosen.path), new_cache()
        self._adopt(net, target=target, cache=cache, runtime=runtime, vocabulary=chosen.vocabulary)
        check_vocabulary_size(net.options.vocab_size, target)
        if self._embed == target.embed:
            net.embed_tokens = None  # a copy of the target's

    def _adopt(
        self,
        net: EagleNet,
        *,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
        vocabulary: str | None = None,
    ) -> None:
        check_width(net, target)
        ids = listed_ids(vocabulary, target)
        own = net.embed_tokens
        embed = embedding(own, target, hidden=net.hidden_size, where="drafter.path")
        net = placed(net, target)
        head = (
            target_head(target, ids, runtime)
            if net.lm_head is None
            else eagle_head(net, ids, target, runtime)
        )
        runtime.weights.pack_head(net, tables=[net.lm_head])
        super().__init__(
            net=net,
            embed=embed,
            head=head,
            ids=ids,
            cache=cache,
            runtime=runtime,
            device=target.device,
            dtype=target.dtype,
        )
