"""ArchPlan: the layers of a blueprint for one input, with shapes, parameters and operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frame.blueprint.checks import flag, whole
from frame.blueprint.expand import expand
from frame.blueprint.layers import ArchLayer, Shape
from frame.blueprint.merge import merge
from frame.blueprint.normalise import normalise
from frame.blueprint.shapes import Flow, multiply_adds, operations, parameter_count
from frame.blueprint.values import BluePrint
from frame.core.dataclass import dataclass
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from frame.ir.graph import TensorType
    from frame.nn.module import Module


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An image of `h` x `w` pixels with `c` channels; `features` marks a vector of `c` numbers."""

    c: int = 3
    h: int = 224
    w: int = 224
    features: bool = False

    def __post_init__(self) -> None:
        for name in ("c", "h", "w"):
            object.__setattr__(self, name, whole("InputSpec", name, getattr(self, name)))
        object.__setattr__(self, "features", flag("InputSpec", "features", self.features))
        if self.features and (self.h, self.w) != (1, 1):
            raise InvalidArgumentError(
                f"InputSpec: features have h and w of 1, received {self.h} and {self.w}"
            )

    @staticmethod
    def of(shape: Sequence[int]) -> InputSpec:
        """Return the spec of [height, width, channels] or [features].

        Raises:
            InvalidArgumentError: the shape has another number of axes, or a size below 1.
        """
        sizes = tuple(shape) if isinstance(shape, (list, tuple)) else ()
        if len(sizes) == 3:
            return InputSpec(sizes[2], sizes[0], sizes[1])
        if len(sizes) == 1:
            return InputSpec(sizes[0], 1, 1, features=True)
        raise InvalidArgumentError(
            "expected an input shape [height, width, channels] or [features], without the batch, "
            f"received {shape!r:.60}"
        )

    @property
    def flow(self) -> Flow:
        """What the first layer reads."""
        shape: Shape = (1, self.h, self.w, self.c)
        return Flow(shape, self.features)


@dataclass(frozen=True, slots=True, repr=False)
class ArchPlan:
    """The layers of a network in order, normalised, with shapes. Make it with `from_blueprint`.

    Attributes:
        input_spec: the input.
        layers: the layers; a fused plan has known blocks as one layer each.
        fused: whether the plan is fused; its module folds batch normalisation into the
            convolution before it when it is built for inference.
    """

    input_spec: InputSpec
    layers: tuple[ArchLayer, ...]
    fused: bool = False

    @staticmethod
    def from_blueprint(
        blueprint: BluePrint,
        input_spec: InputSpec | None = None,
        *,
        num_classes: int | None = None,
        fuse: bool = False,
    ) -> ArchPlan:
        """Return the plan of a blueprint.

        Args:
            blueprint: the network.
            input_spec: the input, an RGB image of 224 x 224 by default.
            num_classes: for a classifier: its last layer must give this number for each image, and
                a layer SoftmaxCE marks the end. The module gives the logits; the loss is the
                training's.
            fuse: whether known blocks become one layer each.

        Raises:
            InvalidArgumentError: a layer does not fit; the message names its place.
        """
        if not isinstance(blueprint, BluePrint):
            raise InvalidArgumentError(f"expected a blueprint, received {blueprint!r:.80}")
        spec = input_spec or InputSpec()
        if num_classes is not None:
            whole("ArchPlan", "num_classes", num_classes)
        layers = normalise(expand(blueprint, spec.flow), spec.flow, num_classes)
        return ArchPlan(spec, merge(layers) if fuse else layers, fuse)

    @property
    def primitives(self) -> tuple[ArchLayer, ...]:
        """The layers with every fused layer replaced by its parts."""
        return tuple(part for layer in self.layers for part in layer.primitives())

    @property
    def output_shape(self) -> Shape:
        """The shape of the result for one image, [1, height, width, channels]."""
        return self.layers[-1].out_shape if self.layers else self.input_spec.flow.shape

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(map(parameter_count, self.layers))

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of convolutions and products for one image."""
        return sum(map(multiply_adds, self.layers))

    @property
    def operations(self) -> int:
        """The floating-point operations of inference for one image, see `shapes.operations`."""
        return sum(map(operations, self.layers))

    def module(self, *, name: str = "", dtype: DTypeLike = float32) -> Module:
        """Return the Module: [N, H, W, C] (or [N, features]) to [N, H', W', C'] or [N, features].

        Fused and unfused plans of one blueprint have the same parameters under the same paths.
        """
        from frame.blueprint.lower import lower

        return lower(self, name, dtype)

    def module_for(self, inputs: Sequence[TensorType]) -> Module:
        """Return the Module for the types of the inputs: what `frame.compile` asks for.

        Raises:
            InvalidArgumentError: there is not exactly one float input of the plan's shape.
        """
        spec = self.input_spec
        wanted = (spec.c,) if spec.features else (spec.h, spec.w, spec.c)
        fits = len(inputs) == 1 and inputs[0].dtype.is_float and inputs[0].shape[1:] == wanted
        if not fits or inputs[0].rank != len(wanted) + 1:
            raise InvalidArgumentError(
                f"this plan takes one float input [batch, {', '.join(map(str, wanted))}], "
                f"received {', '.join(map(str, inputs)) or 'none'}; a blueprint makes a plan for "
                "any resolution"
            )
        return self.module(dtype=inputs[0].dtype)

    def table(self) -> str:
        """Return a table: one row a layer with shapes, parameters and operations, and the sums."""
        from frame.blueprint.table import layer_table

        return layer_table(self)

    def to_string(self) -> str:
        """Return the plan as text for people: one line a layer."""
        from frame.blueprint.table import plan_text

        return plan_text(self)

    def to_yaml(self) -> str:
        """Return the plan as YAML, which `from_yaml` reads.

        Raises:
            NotFoundError: PyYAML is not installed.
        """
        from frame.blueprint.yaml_text import to_yaml

        return to_yaml(self)

    @staticmethod
    def from_yaml(text: str) -> ArchPlan:
        """Return the plan that `to_yaml` wrote; no object is ever constructed from the text.

        Raises:
            NotFoundError: PyYAML is not installed.
            InvalidArgumentError: the text is no plan, or its layers don't fit together.
        """
        from frame.blueprint.yaml_text import from_yaml

        return from_yaml(text)

    def _repr_html_(self) -> str:
        from frame.blueprint.table import layer_html

        return layer_html(self)

    def __repr__(self) -> str:
        spec = self.input_spec
        form = "fused" if self.fused else "unfused"
        return (
            f"<ArchPlan {form}: input [1, {spec.h}, {spec.w}, {spec.c}], {len(self.layers)} "
            f"layers, {self.parameters:,} parameters>"
        )
