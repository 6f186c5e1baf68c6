"""Config.json of OPT and GPT-2, whose blocks are the same but for where the norms stand."""

from __future__ import annotations

from typing import Any

from exegpt_planner.hf_reading import Reading

# Field: the only value that the engine computes; absent, it has it.
_OPT_FIXED = {"activation_function": "relu", "layer_norm_elementwise_affine": True}
_GPT2_FIXED = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
_OPT_NORM_EPS = 1e-5  # torch's, which its code does not set


class OptReading(Reading):
    """A config.json of one of these."""

    def fields(self, architecture: str) -> dict[str, Any]:
        """The fields of an OptSpec, its end tokens apart."""
        self.refuse_quantised()
        fields = self._opt() if architecture == "opt" else self._gpt2()
        hidden, num_heads = fields["hidden"], fields["num_heads"]
        if not self.wrong and hidden % num_heads:
            self.wrong.append(f"a width of {hidden} is no multiple of {num_heads} heads")
        elif not self.wrong and hidden // num_heads % 2:
            self.unsupported.append(f"heads of {hidden // num_heads} numbers, which is odd")
        return fields | {
            "architecture": architecture,
            "num_kv_heads": num_heads,
            "head_dim": max(1, hidden // num_heads),
            "vocab": self.count("vocab_size"),
            "tied_embeddings": self.flag("tie_word_embeddings", default=True),
            "bos_token": self.token("bos_token_id"),
        }

    def _opt(self) -> dict[str, Any]:
        self._refuse_other(_OPT_FIXED)
        hidden = self.count("hidden_size")
        norm_first = self.flag("do_layer_norm_before", default=True)
        return {
            "num_layers": self.count("num_hidden_layers"),
            "hidden": hidden,
            "ffn": self.count("ffn_dim"),
            "num_heads": self.count("num_attention_heads"),
            "context": self.count("max_position_embeddings"),
            "norm_eps": _OPT_NORM_EPS,
            "activation": "relu",
            "embedding": self.count("word_embed_proj_dim", hidden),
            "position_offset": 2,
            "bias": self.flag("enable_bias", default=True),
            "norm_first": norm_first,
            "final_norm": norm_first and not self.flag("_remove_final_layer_norm"),
        }

    def _gpt2(self) -> dict[str, Any]:
        self._refuse_other(_GPT2_FIXED)
        hidden = self.count("n_embd")
        return {
            "num_layers": self.count("n_layer"),
            "hidden": hidden,
            "ffn": self.count("n_inner", 4 * hidden),
            "num_heads": self.count("n_head"),
            "context": self.count("n_positions"),
            "norm_eps": self.number("layer_norm_epsilon", 1e-5),
            "activation": "gelu_tanh",
            "embedding": hidden,
            "position_offset": 0,
            "bias": True,
            "norm_first": True,
            "final_norm": True,
        }

    def _refuse_other(self, fixed: dict[str, Any]) -> None:
        """Lists settings that differ from what the engine computes."""
        self.unsupported += [
            f"{name} = {self.config[name]!r}; supported is {value!r}"
            for name, value in fixed.items()
            if self.config.get(name) not in (None, value)
        ]
