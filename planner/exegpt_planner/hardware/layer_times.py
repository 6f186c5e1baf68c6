"""Times of a layer, and of what lies outside the layers, on a tensor-parallel group of devices.

Every weight is met once: all parameters of a layer count as its products' (biases and norms are a thousandth).
Attention of a decode reads its KV, that of an encode computes its pairs, 4 * heads * head_dim operations each. A group
of d devices has a d-th of the weights, heads and KV; the embedding is whole on each, of the head each has a part and
logits are gathered.

T5: the decoder's layer only decodes, the encoder's also projects its share of all decoder layers' cross-attention KV.
Encoders attend both ways, t * t pairs of a prompt in place of the t (t + 1) / 2 of a shape. `LAYER_REDUCES` all-reduces
a layer are apart, in `DegreeCurves.sync`; the third of T5's decoder layer is counted with its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from exegpt_planner.hardware.links import Link
from exegpt_planner.hardware.rooflines import Rates, line, unless_none
from exegpt_planner.model_spec import BYTES_PER_NUMBER, LlamaSpec, ModelSpec, T5Spec
from exegpt_planner.profile_table import Curve, LayerCurves, OutsideCurves

# Ends of the curves, which no schedule reaches.
MOST_TOKENS = 2.0**22
MOST_QUERIES = 2.0**16
# Assumed; at the paper's own points none of them is more than a few per cent of a step.
KERNEL_S = 2e-6  # a kernel that waits for the one before starts and drains
SEQUENCE_S = 5e-8  # one more query or chunk in an attention kernel
BLOCK_KERNELS = 4  # of attention or feed-forward, the attention itself apart
LOGIT_PASSES = 3  # over float32 logits, to sample: maximum, sum, draw

LAYER_REDUCES = 2  # behind attention and behind the feed-forward


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """What a token passes through in one layer."""

    parameters: int
    attentions: int
    made: int  # numbers between the products

    @property
    def count(self) -> int:
        return self.attentions + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Times on `degree` devices joined by `link`, both at the rates they reach."""

    model: ModelSpec
    rates: Rates
    link: Link
    degree: int
    context_end: float  # KV tokens

    def decoder_layer(self) -> LayerCurves:
        """A decoder layer; in an encoder-decoder model it only decodes."""
        model = self.model
        kv_bytes = 2 * model.num_kv_heads * model.head_dim * self.rates.number_bytes / self.degree
        if isinstance(model, T5Spec):
            blocks = self._blocks(model.layer_parameters - model.cross_kv_parameters, attentions=2)
            chunks, pairs = line(0.0, MOST_QUERIES), self._pairs(directions=0)
        else:
            blocks = self._blocks(model.layer_parameters, attentions=1)
            chunks, pairs = _attentions(1), self._pairs(directions=1)
        return LayerCurves(
            tokens=self._tokens(blocks),
            decode_queries=_attentions(blocks.attentions),
            decode_context=line(kv_bytes / self.rates.bytes_per_s, self.context_end),
            encode_chunks=chunks,
            encode_pairs=pairs,
        )

    def encoder_layer(self, model: T5Spec) -> LayerCurves:
        """An encoder layer with its share of the projections to cross-attention's KV."""
        cross = model.cross_kv_parameters * model.num_layers // model.num_encoder_layers
        return LayerCurves(
            tokens=self._tokens(self._blocks(model.encoder_layer_parameters + cross, attentions=1)),
            decode_queries=line(0.0, MOST_QUERIES),
            decode_context=line(0.0, self.context_end),
            encode_chunks=_attentions(1),
            encode_pairs=self._pairs(directions=2),
        )

    def outside(self) -> OutsideCurves:
        """Embedding; head, gathered logits and sampling."""
        model, rates = self.model, self.rates
        logits_s = LOGIT_PASSES * model.vocab * BYTES_PER_NUMBER["float32"] / rates.bytes_per_s
        gather = self.link.all_gather(model.vocab * rates.number_bytes, self.degree)
        head = rates.products(
            model.table_parameters / self.degree,
            row_s=logits_s + gather.unit_s,
            fixed_s=2 * KERNEL_S + gather.fixed_s,
            last=MOST_QUERIES,
        )
        return OutsideCurves(
            tokens=line(rates.moved_s(2 * model.hidden), MOST_TOKENS, at_zero=KERNEL_S),
            sampled=unless_none(head),
        )

    def sync(self) -> Curve:
        """The all-reduces that every layer has."""
        reduce = self.link.all_reduce(self._row_bytes, self.degree)
        return line(
            LAYER_REDUCES * reduce.unit_s, MOST_TOKENS, at_zero=LAYER_REDUCES * reduce.fixed_s
        )

    @property
    def _row_bytes(self) -> int:
        return self.model.hidden * self.rates.number_bytes

    def _blocks(self, parameters: int, *, attentions: int) -> _Blocks:
        model = self.model
        gated = isinstance(model, LlamaSpec) or (isinstance(model, T5Spec) and model.gated)
        heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim  # q, k, v and the sum
        return _Blocks(
            parameters=parameters,
            attentions=attentions,
            made=attentions * heads + model.ffn * (3 if gated else 1),
        )

    def _tokens(self, blocks: _Blocks) -> Curve:
        """Products, what lies between them, and all-reduces beyond the common ones.

        A block reads and writes the residual and what its norm makes of it, on every device; what one product makes and
        the next one takes is written and read, on each device its part.
        """
        whole, parts = 4 * self.model.hidden * blocks.count, 2 * blocks.made
        reduces = blocks.count - LAYER_REDUCES
        reduce = self.link.all_reduce(self._row_bytes, self.degree)
        return self.rates.products(
            blocks.parameters / self.degree,
            row_s=self.rates.moved_s(whole + parts / self.degree) + reduces * reduce.unit_s,
            fixed_s=BLOCK_KERNELS * blocks.count * KERNEL_S + reduces * reduce.fixed_s,
            last=MOST_TOKENS,
        )

    def _pairs(self, *, directions: int) -> Curve:
        model = self.model
        flops = directions * 4 * model.num_heads * model.head_dim / self.degree
        return line(flops / self.rates.attention_flops_per_s, MOST_TOKENS * model.context)


def _attentions(num: int) -> Curve:
    """So many attention kernels, what their KV and pairs take apart."""
    return unless_none(line(num * SEQUENCE_S, MOST_QUERIES, at_zero=num * KERNEL_S))
