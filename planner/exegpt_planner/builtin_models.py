"""Shapes of well-known models by name, so that planning needs no download.

The ExeGPT paper's six (arXiv 2404.07947, Table 1) and five of today's, with the values of their published config.json.
GPT-3 of a size the paper made up has GPT-3's form (arXiv 2005.14165): a feed-forward of 4 h, heads of 128, a vocabulary
of 50,257 and a context of 2,048.
"""

from __future__ import annotations

from exegpt_planner.model_spec import Llama3RopeScaling, LlamaSpec, ModelSpec, OptSpec, T5Spec
from exegpt_planner.named import named


def builtin_model(name: str) -> ModelSpec:
    """The shape of a model known by name; raises `InvalidSpec` that lists the names."""
    return named(BUILTIN_MODELS, name, what="model")


def _gpt3(num_layers: int, num_heads: int) -> OptSpec:
    hidden = 128 * num_heads
    return OptSpec(
        architecture="gpt2",
        num_layers=num_layers,
        hidden=hidden,
        ffn=4 * hidden,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=128,
        vocab=50_257,
        context=2048,
        norm_eps=1e-5,
        tied_embeddings=True,
        bos_token=50_256,
        end_tokens=(50_256,),
        activation="gelu_tanh",
        embedding=hidden,
        position_offset=0,
        bias=True,
        norm_first=True,
        final_norm=True,
    )


def _llama31(num_layers: int, num_heads: int, ffn: int) -> LlamaSpec:
    return LlamaSpec(
        architecture="llama",
        num_layers=num_layers,
        hidden=128 * num_heads,
        ffn=ffn,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        vocab=128_256,
        context=131_072,
        norm_eps=1e-5,
        tied_embeddings=False,
        bos_token=128_000,
        end_tokens=(128_001, 128_008, 128_009),
        rope_theta=500_000.0,
        rope_scaling=Llama3RopeScaling(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
        ),
    )


def _qwen25(num_layers: int, num_heads: int, num_kv_heads: int, ffn: int, eps: float) -> LlamaSpec:
    return LlamaSpec(
        architecture="qwen2",
        num_layers=num_layers,
        hidden=128 * num_heads,
        ffn=ffn,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
        vocab=152_064,
        context=131_072,
        norm_eps=eps,
        tied_embeddings=False,
        bos_token=151_643,
        end_tokens=(151_643,),
        rope_theta=1e6,
        qkv_bias=True,
    )


# google-t5/t5-11b, config.json
_T5_11B = T5Spec(
    architecture="t5",
    num_layers=24,
    num_encoder_layers=24,
    hidden=1024,
    ffn=65_536,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    vocab=32_128,
    context=2048,  # relative positions have no last one; the paper's longest task needs 1,664
    norm_eps=1e-6,
    tied_embeddings=True,
    end_tokens=(1,),
    gated=False,
    activation="relu",
    relative_buckets=32,
    relative_distance=128,
)

# facebook/opt-13b, config.json
_OPT_13B = OptSpec(
    architecture="opt",
    num_layers=40,
    hidden=5120,
    ffn=20_480,
    num_heads=40,
    num_kv_heads=40,
    head_dim=128,
    vocab=50_272,
    context=2048,
    norm_eps=1e-5,
    tied_embeddings=True,
    bos_token=2,
    end_tokens=(2,),
    activation="relu",
    embedding=5120,
    position_offset=2,
    bias=True,
    norm_first=True,
    final_norm=True,
)

# mistralai/Mistral-7B-v0.3, config.json: the first without a sliding window and with its own vocabulary
_MISTRAL_7B = LlamaSpec(
    architecture="mistral",
    num_layers=32,
    hidden=4096,
    ffn=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab=32_768,
    context=32_768,
    norm_eps=1e-5,
    tied_embeddings=False,
    bos_token=1,
    end_tokens=(2,),
    rope_theta=1e6,
)

BUILTIN_MODELS: dict[str, ModelSpec] = {
    "t5-11b": _T5_11B,
    "opt-13b": _OPT_13B,
    "gpt3-39b": _gpt3(48, 64),
    "gpt3-101b": _gpt3(80, 80),
    "gpt3-175b": _gpt3(96, 96),
    "gpt3-341b": _gpt3(120, 120),
    "llama-3.1-8b": _llama31(32, 32, 14_336),  # meta-llama/Llama-3.1-8B-Instruct, config.json
    "llama-3.1-70b": _llama31(80, 64, 28_672),  # meta-llama/Llama-3.1-70B-Instruct
    "qwen2.5-7b": _qwen25(28, 28, 4, 18_944, 1e-6),  # Qwen/Qwen2.5-7B, config.json
    "qwen2.5-32b": _qwen25(64, 40, 8, 27_648, 1e-5),  # Qwen/Qwen2.5-32B
    "mistral-7b": _MISTRAL_7B,
}
