"""Text, verifier, hash and plan on a graph of every sample of every op that is registered."""

from __future__ import annotations

import random
import re

import pytest

from frame.core.errors import InvalidArgumentError
from frame.ir.builder import GraphBuilder
from frame.ir.check_plan import check_plan
from frame.ir.graph import op_table
from frame.ir.hashing import structural_hash
from frame.ir.parser import parse_graph
from frame.ir.plan import plan_memory
from frame.ir.printer import constant_pool, print_graph
from frame.ir.verify import verify
from frame.ops import registry
from tests.ir.graphs import array_type

op_table()  # imports the families
RECORDS = {r.name: r for r in registry.records() if not r.name.startswith("t_")}


def graphs_of(record):
    for sample in record.samples():
        with GraphBuilder(record.name) as builder:
            arrays = [array for array in sample.operands if array is not None]
            operands = tuple(builder.input(array_type(array)) for array in arrays)
            for value in registry.create_node(record.name, operands, sample.attributes):
                builder.output(value)
        yield builder.finish()


@pytest.mark.parametrize("name", RECORDS)
def test_every_sample_round_trips(name):
    for graph in graphs_of(RECORDS[name]):
        text = print_graph(graph)
        back = parse_graph(text, constant_pool(graph))
        assert print_graph(back) == text
        assert structural_hash(back) == structural_hash(graph)
        verify(graph)
        check_plan(graph, plan_memory(graph))


@pytest.mark.parametrize("name", RECORDS)
def test_an_attribute_that_an_older_text_lacks_has_its_default(name):
    """Attributes are added with defaults that mean what was before: old files stay readable."""
    defaults = {a.name: a.default for a in RECORDS[name].attributes if not a.required}
    for graph in list(graphs_of(RECORDS[name]))[:3]:
        text = print_graph(graph)
        for attribute, default in defaults.items():
            shorter = re.sub(
                rf'(?<=[{{ ]){attribute}=(\([^)]*\)|"[^"]*"|[^,}}]+)(, )?', "", text, count=1
            )
            if graph.nodes[-1].attributes.get(attribute) == default and shorter != text:
                back = parse_graph(shorter.replace(", }", "}"), constant_pool(graph))
                assert print_graph(back) == text


PIECES = ["%0", "%1", "{", "}", "(", ")", ",", "=", '"', "-", "*", "nan", "inf", "batch", "0"]
PIECES += ["-1", "7", "()", "(1,)", "(0, 0)", "true", "1.5", '"max"', "float32", "int64", "[2]"]
PIECES += ["9223372036854775807", "[]"]


def mutate(text: str, source: random.Random) -> str:
    tokens = re.findall(r"\w+|\s+|.", text)
    for _ in range(source.randint(1, 3)):
        index = source.randrange(len(tokens))
        tokens[index] = source.choice([*PIECES, "", str(source.randrange(-3, 12))])
    return "".join(tokens)


@pytest.mark.parametrize("name", RECORDS)
def test_mutated_texts_of_every_op(name):
    """No attribute and no shape, however absurd, makes a type rule fail in another way."""
    source = random.Random(name)
    graphs = list(graphs_of(RECORDS[name]))[:20]
    for _ in range(12):
        graph = source.choice(graphs)
        try:
            parse_graph(mutate(print_graph(graph), source), constant_pool(graph))
        except InvalidArgumentError as error:
            assert "type rule failed" not in str(error)
