"""The picture of a graph for notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from frame.ir import html
from frame.ir.builder import GraphBuilder
from tests.ir.graphs import mlp, op, tensor


def test_a_picture_of_every_node():
    text = mlp()._repr_html_()
    root = ElementTree.fromstring(text)
    boxes = [element for element in root.iter() if element.tag.endswith("rect")]
    assert len(boxes) == 2 + 6
    assert "t_matmul" in text and "float32[batch, 4]" in text
    assert "mlp: 2 inputs, 6 nodes" in text


def test_names_are_escaped():
    with GraphBuilder("<script>alert(1)</script>") as builder:
        x = builder.input(tensor(2), name='<img src=x onerror="alert(2)">')
        builder.output(op("t_relu", x), "</pre><b>&")
    text = builder.finish()._repr_html_()
    assert "<script" not in text and "<img" not in text and "<b>" not in text
    ElementTree.fromstring(text)


def test_large_graphs_are_cut(monkeypatch):
    monkeypatch.setattr(html, "MAX_PICTURED", 5)
    monkeypatch.setattr(html, "MAX_CHARACTERS", 300)
    with GraphBuilder() as builder:
        value = builder.input(tensor(2))
        for _ in range(50):
            value = op("t_relu", value)
        builder.output(value)
    text = builder.finish()._repr_html_()
    assert text.count("<rect") == 6 and "the first 5 nodes are drawn" in text
    assert "more characters" in text and len(text) < 8000
