"""Attention layers: MultiheadAttention and the blocks of the transformer."""

from __future__ import annotations

from typing import Any

from frame import ops
from frame.core.dtypes import DTypeLike, float32
from frame.core.shapes import known
from frame.ir.graph import Value
from frame.nn.checks import choice, divides, layer, number, of_shape
from frame.nn.layers import Dropout, LayerNorm, Linear, positive
from frame.nn.module import Module, Scope
from frame.nn.parameters import xavier_uniform

ACTIVATIONS = ("relu", "gelu", "silu")


def _heads(x: Value, heads: int) -> Value:
    """Turn [N, T, E] into [N, heads, T, E / heads]."""
    batch, steps, features = x.shape
    width = known(features) // heads
    split = ops.reshape(x, (batch, steps, heads, width))
    return ops.transpose(split, permutation=(0, 2, 1, 3))


def _build_attention(
    self: Scope, query: Value, key: Value | None = None, value: Any = None, mask: Any = None
) -> Value:
    options = self.options
    embed, heads = options["embed_dim"], options["num_heads"]
    key = query if key is None else key
    value = key if value is None else value
    for x in (query, key, value):
        of_shape("MultiheadAttention", x, "N", "T", embed)
    parts = (self.q(query), self.k(key), self.v(value))
    q, k, v = (_heads(part, heads) for part in parts)
    y = ops.scaled_dot_product_attention(q, k, v, mask, causal=options["causal"])
    joined = ops.reshape(ops.transpose(y, permutation=(0, 2, 1, 3)), query.shape)
    return self.o(joined)  # type: ignore[no-any-return]


def MultiheadAttention(
    embed_dim: int,
    num_heads: int,
    bias: bool = True,
    causal: bool = False,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return multi-head attention: (query, key=query, value=key, mask=None) -> [N, T, embed_dim].

    Inputs are [N, T, embed_dim]; with the query alone it is self-attention, with a key cross-
    attention. The mask broadcasts to [N, heads, queries, keys]: bool says which keys count, floats
    are added to the scores. Children q, k, v and o are Linear, of Xavier's initial values.
    Source: Vaswani et al., arXiv 1706.03762.

    Args:
        embed_dim: features of all inputs and of the result.
        num_heads: how many parts the features are cut into.
        bias: whether the four products have a bias.
        causal: whether a query sees no later key.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    divides("embed_dim", embed_dim, "num_heads", num_heads)
    options = {"embed_dim": embed_dim, "num_heads": num_heads, "bias": bias, "causal": causal}
    children = {
        part: Linear(embed_dim, embed_dim, bias, dtype=dtype, init=xavier_uniform())
        for part in ("q", "k", "v", "o")
    }
    return layer("MultiheadAttention", _build_attention, options, (), children, name)


# --- transformer blocks ---------------------------------------------------------------------------


def _feed_forward(self: Scope, x: Value) -> Value:
    activation = getattr(ops, self.options["activation"])
    return self.ffn2(self.dropout(activation(self.ffn1(x))))  # type: ignore[no-any-return]


def _add(self: Scope, x: Value, norm: Any, branch: Any) -> Value:
    """Return x plus the branch, normalised before the branch or after the sum."""
    if self.options["norm"] == "pre":
        return x + self.dropout(branch(norm(x)))
    return norm(x + self.dropout(branch(x)))  # type: ignore[no-any-return]


def _build_encoder(self: Scope, x: Value, mask: Any = None) -> Value:
    def attend(v: Value) -> Value:
        return self.mha(v, v, v, mask)  # type: ignore[no-any-return]

    x = _add(self, x, self.ln1, attend)
    return _add(self, x, self.ln2, lambda v: _feed_forward(self, v))


def _build_decoder(
    self: Scope, x: Value, memory: Value, mask: Any = None, memory_mask: Any = None
) -> Value:
    def attend(v: Value) -> Value:
        return self.mha(v, v, v, mask)  # type: ignore[no-any-return]

    def cross(v: Value) -> Value:
        return self.cross(v, memory, memory, memory_mask)  # type: ignore[no-any-return]

    x = _add(self, x, self.ln1, attend)
    x = _add(self, x, self.ln2, cross)
    return _add(self, x, self.ln3, lambda v: _feed_forward(self, v))


def _options(
    ffn_dim: int, dropout: float, norm: str, activation: str, causal: bool
) -> dict[str, Any]:
    return {
        "ffn_dim": positive("ffn_dim", ffn_dim),
        "dropout": number("dropout", dropout, 0.0, 1.0),
        "norm": choice("norm", norm, ("post", "pre")),
        "activation": choice("activation", activation, ACTIVATIONS),
        "causal": causal,
    }


def _feed_children(
    embed_dim: int, ffn_dim: int, bias: bool, dropout: float, dtype: DTypeLike
) -> dict[str, Module]:
    return {
        "ffn1": Linear(embed_dim, ffn_dim, bias, dtype=dtype),
        "ffn2": Linear(ffn_dim, embed_dim, bias, dtype=dtype),
        "dropout": Dropout(dropout),
    }


def TransformerEncoderBlock(
    embed_dim: int,
    num_heads: int,
    ffn_dim: int,
    dropout: float = 0.0,
    norm: str = "post",
    activation: str = "relu",
    bias: bool = True,
    causal: bool = False,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return a block of the transformer's encoder: (x [N, T, embed_dim], mask=None) -> the same.

    Self-attention, then a network of two Linear layers, each with a residual and LayerNorm: behind
    the sum (`norm="post"`, the paper's) or before the branch ("pre", Xiong et al., arXiv
    2002.04745). Children mha, ln1, ln2, ffn1, ffn2. Source: Vaswani et al., arXiv 1706.03762.

    Args:
        embed_dim: features of x.
        num_heads: heads of the attention.
        ffn_dim: features between the two Linear layers.
        dropout: the rate of dropout of each branch, in training.
        norm: "post" or "pre".
        activation: "relu", "gelu" or "silu".
        bias: whether products have a bias.
        causal: whether a step sees no later one.
        name: the name in the parent.
        dtype: the dtype of the parameters.
    """
    options = _options(ffn_dim, dropout, norm, activation, causal)
    children = {
        "mha": MultiheadAttention(embed_dim, num_heads, bias, causal, dtype=dtype),
        "ln1": LayerNorm(embed_dim, dtype=dtype),
        "ln2": LayerNorm(embed_dim, dtype=dtype),
        **_feed_children(embed_dim, ffn_dim, bias, options["dropout"], dtype),
    }
    return layer("TransformerEncoderBlock", _build_encoder, options, (), children, name)


def TransformerDecoderBlock(
    embed_dim: int,
    num_heads: int,
    ffn_dim: int,
    dropout: float = 0.0,
    norm: str = "post",
    activation: str = "relu",
    bias: bool = True,
    causal: bool = True,
    *,
    name: str = "",
    dtype: DTypeLike = float32,
) -> Module:
    """Return a block of the decoder: (x, memory, mask=None, memory_mask=None) -> like x.

    Causal self-attention, attention to the memory [N, S, embed_dim], then the two Linear layers.
    Arguments are those of TransformerEncoderBlock; children mha, cross, ln1, ln2, ln3, ffn1, ffn2.
    Source: Vaswani et al., arXiv 1706.03762.
    """
    options = _options(ffn_dim, dropout, norm, activation, causal)
    children = {
        "mha": MultiheadAttention(embed_dim, num_heads, bias, causal, dtype=dtype),
        "cross": MultiheadAttention(embed_dim, num_heads, bias, dtype=dtype),
        **{f"ln{k}": LayerNorm(embed_dim, dtype=dtype) for k in (1, 2, 3)},
        **_feed_children(embed_dim, ffn_dim, bias, options["dropout"], dtype),
    }
    return layer("TransformerDecoderBlock", _build_decoder, options, (), children, name)
