"""Medusa-2: the heads and low-rank adapters of the trunk are trained together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from specframe.errors import IncompatibleComponents, MissingResource
from specframe.heads.medusa_file import save_medusa
from specframe.heads.medusa_net import MedusaNet
from specframe.registry import Range
from specframe.target.base import Target
from specframe.train.base import FINAL, RECIPES, FrozenTarget, Guesses, Recipe
from specframe.train.medusa1 import Medusa1Recipe
from specframe.training import losses
from specframe.training.batches import Batch
from specframe.training.schedule import Schedule
from specframe.training.teacher_laws import TeacherLaws

if TYPE_CHECKING:
    from peft import PeftModel

Weight = Annotated[float, Range(0.0, None)]
# Projections of a Llama that adapters are put on.
_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class AdaptedTrunk(nn.Module):
    """Heads on a trunk with adapters.

    Only heads and adapters are parameters of this module: the trunk stays the target's, in eval
    mode but for the adapters' dropout.
    """

    def __init__(self, heads: MedusaNet, peft: PeftModel) -> None:
        super().__init__()
        self.heads = heads
        self.adapters = nn.ParameterList(x for x in peft.parameters() if x.requires_grad)
        self._outside = [peft]  # a list, so that the trunk is no submodule
        self._dropouts = [each for name, each in peft.named_modules() if "lora_dropout" in name]

    @property
    def peft(self) -> PeftModel:
        """The trunk under adapters."""
        return self._outside[0]

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, L, H] final-normed states of right-padded tokens [B, L]."""
        for dropout in self._dropouts:
            dropout.train(self.training)
        trunk: Any = self.peft.get_base_model().base_model
        return trunk(input_ids=tokens, use_cache=False)[0]


@RECIPES.register("medusa2")
class Medusa2Recipe(Recipe):
    """loss = trunk + lambda_0 f(s) sum_k decay^k CE_k over the heads k = 1 .. K, on adapted states.

    CE_k: of head k against the token k after the root, a mean over the answers' tokens. The sum is
    the paper's, whose weights are not normed. trunk: `kl` is KL(original || adapted), for answers
    of the target itself; `cross_entropy` is that of the adapted model against the answers' tokens,
    for answers of a data set that the target was tuned on. f: 1, or sin(pi/2 s/S) at step s of S.
    rank, alpha, dropout: of the adapters on all projections of the trunk (not on the output head,
    which is often the embedding too). head_lr: the heads' rate, biases included, over the
    adapters'. The head's folder gets `target/`, the merged model, which is what the heads are for.
    Paper: Medusa, arXiv 2401.10774.
    """

    drafter = "medusa"

    def __init__(
        self,
        *,
        heads: Annotated[int, Range(1, 16)],
        layers: Annotated[int, Range(1, 8)],
        decay: Annotated[float, Range(0.0, 1.0, low_open=True)],
        trunk: Literal["kl", "cross_entropy"],
        lambda_0: Weight,
        ramp: Literal["constant", "sine"],
        rank: Annotated[int, Range(1, 1024)],
        alpha: Weight,
        dropout: Annotated[float, Range(0.0, 1.0)],
        head_lr: Annotated[float, Range(0.0, None, low_open=True)],
    ) -> None:
        self.trunk, self.lambda_0, self.ramp = trunk, lambda_0, ramp
        # The weights of the heads' sum, of which Medusa-1's loss is the mean.
        self._weight_of_heads = sum(decay**head for head in range(1, heads + 1))
        self.rank, self.alpha, self.dropout, self.head_lr = rank, alpha, dropout, head_lr
        self._heads = Medusa1Recipe(
            heads=heads,
            layers=layers,
            own_head=False,
            decay=decay,
            hard=1.0,
            soft=0.0,
            prompt_weight=0.0,
            vocabulary=None,
            min_coverage=0.0,
            negatives=None,
        )
        self._peft: PeftModel | None = None

    def taps(self, target: Target) -> tuple[str, ...]:
        return (FINAL,)  # the original's states, from which its laws follow

    def make(self, target: Target, ids: Tensor | None) -> AdaptedTrunk:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise MissingResource(
                "train=medusa2 needs peft, of the extra `train`: pip install 'specframe[train]'"
            ) from None
        model: Any = target.model  # type: ignore[attr-defined]
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]
            lora_dropout=self.dropout,
            target_modules=_projections(model, target.name),
            task_type="CAUSAL_LM",
        )
        model.requires_grad_(False)
        self._peft = get_peft_model(model, config)
        assert self._peft is not None
        self._peft.eval()
        return AdaptedTrunk(self._heads.make(target, ids), self._peft).train()

    def load(self, path: str) -> MedusaNet:
        return self._heads.load(path)

    def head_in(self, net: AdaptedTrunk) -> MedusaNet:
        return net.heads

    @contextmanager
    def original(self) -> Iterator[None]:
        if self._peft is None:
            yield
            return
        with self._peft.disable_adapter():
            yield

    def release(self) -> None:
        if self._peft is not None:
            self._peft.unload()
            self._peft = None

    def groups(self, net: Any, schedule: Schedule) -> list[dict[str, Any]]:
        return [
            {"params": list(net.adapters), "lr": schedule.lr},
            {"params": list(net.heads.parameters()), "lr": schedule.lr * self.head_lr},
        ]

    def losses(
        self, net: AdaptedTrunk, frozen: FrozenTarget, batch: Batch, progress: float
    ) -> dict[str, Tensor]:
        states = net(batch.tokens)
        name, of_trunk = self._of_trunk(states, frozen, batch)
        parts = self._heads.losses_on(net.heads, frozen, batch, states)
        ramp = 1.0 if self.ramp == "constant" else math.sin(math.pi / 2 * progress)
        of_heads = self._weight_of_heads * parts.pop("loss")
        loss = of_trunk + self.lambda_0 * ramp * of_heads
        return {"loss": loss, name: of_trunk.detach(), **parts}

    def _of_trunk(self, states: Tensor, frozen: FrozenTarget, batch: Batch) -> tuple[str, Tensor]:
        """Name and value of the loss of the adapted model itself, by states [B, L, H] of its."""
        laws = TeacherLaws.of(
            batch, frozen, batch.features[FINAL], soft=1.0 if self.trunk == "kl" else 0.0
        )
        sequence, token = (laws.place >= 0).nonzero(as_tuple=True)
        places = laws.place[sequence, token]
        weight = batch.weight[sequence, token + 1]
        if self.trunk == "cross_entropy":
            laws = laws.with_followed_token(batch, frozen, 1.0)
        rows = losses.cross_entropy(frozen.head(states[sequence, token]), laws.shares[places])
        # A law's own entropy makes a divergence of a cross entropy; that of one token is 0.
        entropy = torch.special.entr(laws.shares).sum(-1)[places]
        return self.trunk, losses.weighted_mean(rows - entropy, weight)

    @torch.no_grad()
    def guesses(
        self, net: AdaptedTrunk, frozen: FrozenTarget, batch: Batch, *, depth: int, top: int
    ) -> Guesses:
        return self._heads.guesses_on(net.heads, frozen, batch, net(batch.tokens), depth, top)

    def export(self, net: AdaptedTrunk, folder: Path, *, target: Target) -> None:
        merged = _merged(net.peft)
        self.release()  # its modules have their plain names again, and their first weights
        model: Any = target.model  # type: ignore[attr-defined]
        whole = {**model.state_dict(), **merged}
        model.save_pretrained(folder / "target", state_dict=whole)
        tokenizer = getattr(target.tokenizer, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / "target")
        save_medusa(net.heads, folder, base=str(folder / "target"))


def _projections(model: nn.Module, name: str) -> list[str]:
    """The usual projections that the trunk has. Raises IncompatibleComponents if it has none."""
    last = {path.rpartition(".")[2] for path, _ in model.named_modules()}
    present = [part for part in _PARTS if part in last]
    if not present:
        raise IncompatibleComponents(
            f"train=medusa2 adapts {', '.join(_PARTS)}, of which {name} has none; use train=medusa1"
        )
    return present


@torch.no_grad()
def _merged(peft: PeftModel) -> dict[str, Tensor]:
    """The adapted matrices under the names that the plain model has for them."""
    merged = {}
    for name, layer in peft.get_base_model().named_modules():
        if hasattr(layer, "get_delta_weight"):
            weight = layer.base_layer.weight
            delta = layer.get_delta_weight("default").to(weight)
            merged[f"{name}.weight"] = weight + delta
    return merged
