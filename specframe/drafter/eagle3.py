"""EAGLE-3: three fused layers of the target, an own head over few tokens, its state fed back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specframe.cache.base import CacheManager
from specframe.drafter.base import DRAFTERS, Traits
from specframe.drafting.feature_drafter import FeatureDrafter
from specframe.heads.choice import HeadChoice
from specframe.heads.eagle_file import load_eagle3
from specframe.heads.eagle_net import Eagle3Net
from specframe.heads.embeddings import embedding
from specframe.heads.fitting import check_vocabulary_size, eagle3_head, fused_layers, placed
from specframe.heads.head_drafter import HeadDrafter
from specframe.runtime.base import Runtime
from specframe.target.base import Target
from specframe.types import Needs


@DRAFTERS.register("eagle3")
class Eagle3(HeadDrafter, FeatureDrafter):
    """a(t) = layer([norm(e(x(t+1))); norm(g(t))]), logits = own head(norm(a(t))) for x(t+2).

    g(t) = fc([r2; rm; rh](t)) from the residual streams that enter blocks 2, L // 2 and L - 3,
    un-normed; a drafted token is fed with its parent's a instead. The head covers the most frequent
    tokens, mapped to the target's by d2t.
    path: hub name, folder or file of a head, null for the one that ships for the target. layers:
    blocks whose input is fused, null for the checkpoint's own. vocabulary: file of the token ids
    that the draft may propose, null for all it knows, auto for the file beside the head.
    Lossless under every lossless rule. Needs: features of all committed tokens, own cache.
    Draft forwards per step: one per expanded level. Target forwards per step: 1.
    Paper: EAGLE-3, arXiv 2503.01840.
    """

    word = "eagle3"
    # The lowest of the usual three; a loaded head names its own.
    traits = Traits(needs=Needs(taps=("resid:2",), own_cache=True), laws="logits")

    def __init__(
        self,
        *,
        path: str | None,
        layers: list[int] | None,
        vocabulary: str | None,
        target: Target,
        new_cache: Callable[[], CacheManager],
        runtime: Runtime,
    ) -> None:
        chosen = HeadChoice.of(self.word, path, vocabulary, target.name)
        net = load_eagle3(chosen.path)
        self._adopt(
            net,
            target=target,
            cache=new_cache(),
            runtime=runtime,
            layers=layers,
            vocabulary=chosen.vocabulary,
        )
        check_vocabulary_size(net.options.vocab_size, target)
        if self._embed == target.embed:
            net.embed_tokens = None  # a copy of the target's

    def _adopt(
        self,
        net: Eagle3Net,
        *,
        target: Target,
        cache: CacheManager,
        runtime: Runtime,
        layers: list[int] | None = None,
        vocabulary: str | None = None,
    ) -> None:
        taps = fused_layers(layers or net.options.taps, net, target)
        needs = Needs(taps=tuple(f"resid:{layer}" for layer in taps), own_cache=True)
        self.traits = replace(self.traits, needs=needs)
        own = net.embed_tokens
        embed = embedding(own, target, hidden=net.hidden_size, where="drafter.path")
        net = placed(net, target)
        head, ids = eagle3_head(net, target, vocabulary, runtime)
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
