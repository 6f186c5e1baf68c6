"""Config.json of the Llama family: Llama, Mistral, Qwen2 and 2.5, Qwen3.

A field that is absent means what `transformers` takes it to mean: a Mistral without `sliding_window` has one of 4,096.
Both layouts of rotary settings are read: `rope_theta` and `rope_scaling` at the top, and `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exegpt_planner.hf_reading import Reading, head_problems

MISTRAL_WINDOW = 4096  # tokens; transformers' default where a Mistral's config is silent

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim")
# Field: the value at which it changes nothing.
_NEUTRAL = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "partial_rotary_factor": 1,
    "use_qk_norm": False,
    "attention_multiplier": None,
    "embedding_multiplier": 1,
    "residual_multiplier": 1,
    "logits_scaling": 1,
    "logit_scale": 1,
}
_ROPE_FIELDS = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context",
    },
}
_ROPE_NAMES = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}


class LlamaReading(Reading):
    """A config.json of one of these."""

    def fields(self, architecture: str) -> dict[str, Any]:
        """The fields of a LlamaSpec, its end tokens apart."""
        fields: dict[str, Any] = {
            "architecture": architecture,
            "num_layers": self.count("num_hidden_layers"),
            "hidden": self.count("hidden_size"),
            "ffn": self.count("intermediate_size"),
            "vocab": self.count("vocab_size"),
            "context": self.count("max_position_embeddings"),
            "norm_eps": self.number("rms_norm_eps", 1e-6),
            "tied_embeddings": self.flag("tie_word_embeddings"),
            "bos_token": self.token("bos_token_id"),
        }
        fields |= self._extras(architecture)
        fields |= self._heads(fields["hidden"], architecture)
        fields |= self._rope()
        self._refuse(fields)
        return fields

    def _extras(self, architecture: str) -> dict[str, bool]:
        """Biases and norms beside the matrices: settings of a Llama, fixed in most others."""
        attention_bias, mlp_bias = self.flag("attention_bias"), self.flag("mlp_bias")
        match architecture:
            case "llama":
                return {
                    "qkv_bias": attention_bias,
                    "output_bias": attention_bias,
                    "mlp_bias": mlp_bias,
                }
            case "qwen3":
                if mlp_bias:
                    self.unsupported.append("biases (mlp_bias) in a Qwen3")
                return {"qkv_bias": attention_bias, "output_bias": attention_bias, "qk_norm": True}
            case _:
                if attention_bias or mlp_bias:
                    given = f"biases (attention_bias, mlp_bias) in a {architecture.title()}"
                    self.unsupported.append(given)
                return {"qkv_bias": architecture == "qwen2"}

    def _heads(self, hidden: int, architecture: str) -> dict[str, int]:
        num_heads = self.count("num_attention_heads")
        has_head_dim = self.config.get("head_dim") is not None
        if architecture == "qwen3" and not has_head_dim:
            self.wrong.append("head_dim: missing")  # it does not follow from hidden_size
        elif not self.wrong and not has_head_dim and hidden % num_heads:
            self.wrong.append(
                f"hidden_size {hidden} is no multiple of {num_heads} heads and head_dim is missing"
            )
        # Others' defaults, such as Mistral's 8 KV heads, are accidents of a first model: better to be told.
        is_guessable = architecture == "llama" or "num_key_value_heads" in self.config
        num_kv_heads = self.count("num_key_value_heads", num_heads if is_guessable else None)
        head_dim = self.count("head_dim") if has_head_dim else max(1, hidden // num_heads)
        if not self.wrong:
            self.unsupported += head_problems(num_heads, num_kv_heads, head_dim)
        return {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}

    def _rope(self) -> dict[str, Any]:
        """rope_theta and rope_scaling."""
        # Where both are given transformers 5 follows the older one, which is all that transformers 4 reads.
        name = "rope_scaling" if self.config.get("rope_scaling") else "rope_parameters"
        rope = self.config.get(name) or {}
        if not isinstance(rope, dict):
            self.wrong.append(f"{name}: expected an object (given: {rope!r})")
            return {"rope_theta": 10_000.0}
        theta = Reading({"rope_theta": rope.get("rope_theta") or self.config.get("rope_theta")})
        result: dict[str, Any] = {"rope_theta": theta.number("rope_theta", 10_000.0)}
        self.wrong += theta.wrong
        kind = rope.get("rope_type", rope.get("type", "default")) or "default"
        known = _ROPE_FIELDS.get(kind) if isinstance(kind, str) else None
        if known is None:
            accepted = ", ".join(_ROPE_FIELDS)
            self.unsupported.append(f"{name}: rotary scaling {kind!r}; supported are {accepted}")
            return result
        if unknown := sorted(set(rope) - _ROPE_NAMES - set(known)):
            # An exact engine cannot skip a setting whose effect it does not know.
            harmless = {"factor"} if kind == "default" else set()
            if more := [each for each in unknown if each not in harmless]:
                self.unsupported.append(f"{name}: {', '.join(more)} with rotary scaling {kind!r}")
        trained = "original_max_position_embeddings"
        if trained in known and self.config.get(trained, rope.get(trained)) != rope.get(trained):
            self.unsupported.append(f"{name}.{trained} unlike the one beside {name}")
        missing = [field for field in known if rope.get(field) is None]
        self.wrong += [f"{name}.{field}: missing" for field in missing]
        if known and not missing:
            result["rope_scaling"] = {"type": kind} | {known[f]: rope[f] for f in known}
        return result

    def _refuse(self, fields: Mapping[str, Any]) -> None:
        """Lists whatever changes the computation in a way that the engine does not follow."""
        config = self.config
        for names, what in ((_EXPERTS, "mixture of experts"), (_LATENT, "latent attention")):
            if given := [f"{name} = {config[name]}" for name in names if config.get(name)]:
                self.unsupported.append(f"{what} ({', '.join(given)})")
        kinds = config.get("layer_types") or []
        if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
            self.unsupported.append("layers that do not attend fully (layer_types)")
        self.refuse_quantised()
        is_mistral = fields["architecture"] == "mistral"
        window = config.get("sliding_window", MISTRAL_WINDOW if is_mistral else None)
        if fields["architecture"].startswith("qwen") and not self.flag("use_sliding_window"):
            window = None  # these name a window that they do not use
        if window is not None and not (isinstance(window, int) and window >= fields["context"]):
            where = (
                "" if "sliding_window" in config else ", the default of a Mistral that names none"
            )
            self.unsupported.append(
                f"sliding_window {window}{where}, shorter than the context of {fields['context']}"
            )
        if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
            self.unsupported.append(f"activation {activation!r} (hidden_act); supported is silu")
        rope = config.get("rope_scaling") or config.get("rope_parameters")
        everywhere = {**config, **rope} if isinstance(rope, dict) else config
        self.unsupported += [
            f"{name} = {everywhere[name]}"
            for name, neutral in _NEUTRAL.items()
            if everywhere.get(name, neutral) not in (neutral, None)
        ]
