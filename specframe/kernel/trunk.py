"""Runs the blocks of Llama's family in one call of the compiled kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from ctypes import byref, c_long, c_uint8, c_void_p
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from specframe.cache.base import Layout, Opened
from specframe.kernel.library import Block, KernelPass, Matrix, library
from specframe.kernel.packed_linear import PackedLinear
from specframe.runtime.base import Trunk

# Model types with rotary halves, RMS norms, gated SiLU and a residual stream; `fits_kernel` checks
# what else they may have.
FAMILY = ("llama", "mistral", "qwen2", "qwen3")
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_VECTOR = 16  # floats of the widest vectors, of which all widths must be multiples


class FusedTrunk(Trunk):
    """Runs blocks of a model whose linear layers are packed. `blocks`: the model's own modules."""

    def __init__(self, config: Any, blocks: nn.ModuleList, rotary: nn.Module) -> None:
        attention: Any = blocks[0].self_attn
        self._rotary = rotary
        self._size: int = attention.head_dim
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._fixed = {
            "hidden": config.hidden_size,
            "heads": self._heads,
            "kv_heads": self._kv_heads,
            "size": self._size,
            "inner": config.intermediate_size,
            "eps": config.rms_norm_eps,
            "scale": attention.scaling,
        }
        self._held: list[Any] = []  # what the structures point at
        self._blocks = (Block * len(blocks))(*[self._block(block) for block in blocks])
        self._like = torch.empty((1, self._kv_heads, 0, self._size))
        self._scratch = torch.empty(0)

    def __call__(
        self,
        hidden: Tensor,
        opened: Opened,
        *,
        layers: tuple[int, int],
        skip: frozenset[str] = frozenset(),
        taps: Collection[str] = (),
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        count, (first, last) = len(hidden), layers
        layouts = [lane.layout(range(first, last), self._like) for lane in opened.lanes]
        memory = [layout for layout in layouts if layout is not None and self._reads(layout)]
        if len(memory) < len(layouts):
            return None
        stream = hidden.clone(memory_format=torch.contiguous_format)
        cos, sin = self._rotary(stream[None], opened.positions[None])
        cos, sin = cos[0].contiguous(), sin[0].contiguous()
        names = [f"resid:{layer}" for layer in range(first, last + 1)]
        found = {name: torch.empty_like(stream) for name in names if name in taps}
        lanes = _LaneArrays(memory, num_layers=len(self._blocks))
        seen = torch.empty((count, lanes.widest + 2), dtype=torch.int32)
        what = KernelPass(
            blocks=self._blocks,
            first=first,
            last=last,
            rows=count,
            **self._fixed,
            stream=stream.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            **lanes.fields,
            seen=seen.data_ptr(),
            threads=torch.get_num_threads(),
        )
        self._run(what, skip, found)
        return stream, found

    def _reads(self, layout: Layout) -> bool:
        """Whether the kernel, which is given addresses, may take all buffers for its own kind."""
        shape = (1, self._kv_heads, self._size)
        return all(
            buffer.is_contiguous()
            and buffer.dtype == torch.float32
            and (buffer.shape[0], buffer.shape[1], buffer.shape[3]) == shape
            for side in (layout.keys, layout.values)
            for buffer in side.values()
        )

    def _run(self, what: KernelPass, skip: frozenset[str], taps: dict[str, Tensor]) -> None:
        count = len(self._blocks)
        parts = [f"{part}:{i}" in skip for i in range(count) for part in ("attention", "mlp")]
        skipped = (c_uint8 * len(parts))(*parts) if skip else (c_uint8 * len(parts))()
        pointers = (c_void_p * (count + 1))()
        for name, tap in taps.items():
            pointers[int(name.partition(":")[2])] = tap.data_ptr()
        need = library().scratch_floats(byref(what))
        if self._scratch.numel() < need:
            self._scratch = torch.empty(need)
        what.skip, what.taps = ctypes.addressof(skipped), ctypes.addressof(pointers)
        what.scratch = self._scratch.data_ptr()
        library().run(byref(what))

    def _block(self, block: Any) -> Block:
        attention, mlp = block.self_attn, block.mlp
        named = {name: getattr(attention, key) for name, key in _ATTENTION.items()}
        named |= {name: getattr(mlp, key) for name, key in _MLP.items()}
        return Block(
            norm=self._vector(block.input_layernorm),
            mlp_norm=self._vector(block.post_attention_layernorm),
            query_norm=self._vector(getattr(attention, "q_norm", None)),
            key_norm=self._vector(getattr(attention, "k_norm", None)),
            **{name: self._matrix(layer) for name, layer in named.items()},
        )

    def _vector(self, norm: Any) -> int | None:
        if norm is None:
            return None
        self._held.append(norm.weight.detach().contiguous())
        return int(self._held[-1].data_ptr())

    def _matrix(self, layer: PackedLinear) -> Matrix:
        self._held.append(layer)
        return layer.packed.matrix


class _LaneArrays:
    """The memory of each lane of a pass, as arrays that the kernel reads while this is alive."""

    def __init__(self, memory: Sequence[Layout], *, num_layers: int) -> None:
        count = len(memory)
        sizes = [len(lane.slots) for lane in memory]
        widths = [lane.visible.shape[1] for lane in memory]
        self.widest = max(widths)
        self._slots = torch.cat([lane.slots for lane in memory]) if count > 1 else memory[0].slots
        self._masks = [lane.visible for lane in memory]
        starts = (c_long * (count + 1))(0, *accumulate(sizes))
        masks = (c_void_p * count)(*(mask.data_ptr() for mask in self._masks))
        places = num_layers * count
        keys, values, capacity = (c_void_p * places)(), (c_void_p * places)(), (c_long * places)()
        for lane, layout in enumerate(memory):
            for layer, buffer in layout.keys.items():
                place = layer * count + lane
                keys[place], values[place] = buffer.data_ptr(), layout.values[layer].data_ptr()
                capacity[place] = buffer.shape[2]
        self._arrays: dict[str, Any] = {
            "starts": starts,
            "width": (c_long * count)(*widths),
            "visible": masks,
            "keys": keys,
            "values": values,
            "capacity": capacity,
        }
        self.fields = {
            "slots": self._slots.data_ptr(),
            "lanes": count,
            "widest": self.widest,
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        }


def fits_kernel(model: Any) -> bool:
    """Whether the kernel's blocks compute exactly what this model of packed linear layers does."""
    config: Any = getattr(model, "config", None)
    if not is_supported_family(config):
        return False
    types = set(getattr(config, "layer_types", None) or ("full_attention",))
    windowed = getattr(config, "sliding_window", None) and getattr(
        config, "use_sliding_window", True
    )
    block = model.model.layers[0]
    linear = [getattr(block.self_attn, key, None) for key in _ATTENTION.values()]
    linear += [getattr(block.mlp, key, None) for key in _MLP.values()]
    size = block.self_attn.head_dim
    widths = (config.hidden_size, config.intermediate_size, size)
    rotated = model.model.rotary_emb.inv_freq.numel() * 2 == size
    return (
        types == {"full_attention"}
        and not windowed
        and rotated
        and all(isinstance(layer, PackedLinear) for layer in linear)
        and all(width % _VECTOR == 0 for width in widths)
    )


def is_supported_family(config: Any) -> bool:
    """Whether a model of this config may be one that `fits_kernel`, once its layers are packed."""
    return getattr(config, "model_type", None) in FAMILY and config.hidden_act == "silu"
