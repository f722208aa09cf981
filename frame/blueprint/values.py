"""The value that the factories make: an immutable tree that says what a network is.

A blueprint holds no parameter and touches no number. Equal programs are equal values, and `repr`
gives the program back: `frame.blueprint.parse(repr(net)) == net`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from frame.core.dataclass import dataclass
from frame.core.dtypes import DTypeLike, float32
from frame.core.errors import InvalidArgumentError
from frame.core.shapes import shape_text

if TYPE_CHECKING:
    from frame.blueprint.plan import ArchPlan
    from frame.ir.graph import TensorType
    from frame.nn.module import Module


class BlockStyle(StrEnum):
    """The structure of `block`: the kernel sizes of the stem; `_DS` halves height and width.

    The ResNet styles follow He et al., arXiv 1512.03385, with the stride in the 3 x 3 convolution
    of a bottleneck; the MB styles are the inverted residuals of Sandler et al., arXiv 1801.04381,
    with the expansion 1 or 6.
    """

    RESNET_1_3_1 = "RESNET_1_3_1"
    RESNET_1_3_1_DS = "RESNET_1_3_1_DS"
    RESNET_3_3 = "RESNET_3_3"
    RESNET_3_3_DS = "RESNET_3_3_DS"
    MB_E1_K3 = "MB_E1_K3"
    MB_E1_K3_DS = "MB_E1_K3_DS"
    MB_E6_K3 = "MB_E6_K3"
    MB_E6_K3_DS = "MB_E6_K3_DS"

    def __repr__(self) -> str:
        return f"BlockStyle.{self.name}"


@dataclass(frozen=True, slots=True, repr=False)
class BluePrint:
    """A network, or a part of one. Make it with the factories (`seq`, `conv`, ...).

    The data layout is NHWC: an input is [batch, height, width, channels], or [batch, features].

    Attributes:
        factory: the name of the factory.
        arguments: its arguments, in its order, checked, with the defaults filled in.
        children: the parts that it is composed of.
    """

    factory: str
    arguments: tuple[Any, ...] = ()
    children: tuple[BluePrint, ...] = ()

    def plan(
        self,
        input_shape: Sequence[int],
        *,
        num_classes: int | None = None,
        fuse: bool = False,
    ) -> ArchPlan:
        """Return the layers for an input [height, width, channels], or [features].

        Arguments as for `ArchPlan.from_blueprint`.

        Raises:
            InvalidArgumentError: the layers don't fit together; the message names the place.
        """
        from frame.blueprint.plan import ArchPlan, InputSpec

        spec = InputSpec.of(input_shape)
        return ArchPlan.from_blueprint(self, spec, num_classes=num_classes, fuse=fuse)

    def module(
        self, input_shape: Sequence[int], *, name: str = "", dtype: DTypeLike = float32
    ) -> Module:
        """Return the Module for an input [height, width, channels], or [features]."""
        return self.plan(input_shape).module(name=name, dtype=dtype)

    def module_for(self, inputs: Sequence[TensorType]) -> Module:
        """Return the Module for the types of the inputs: what `frame.compile` asks for.

        Raises:
            InvalidArgumentError: there is not exactly one float input [batch, height, width,
                channels] or [batch, features] with numbers behind the batch.
        """
        found = tuple(inputs)
        fits = len(found) == 1 and found[0].rank in (2, 4) and found[0].dtype.is_float
        if not fits or not all(isinstance(size, int) for size in found[0].shape[1:]):
            received = ", ".join(f"{type_.dtype}{shape_text(type_.shape)}" for type_ in found)
            raise InvalidArgumentError(
                "a blueprint takes one float input [batch, height, width, channels] or [batch, "
                f"features], with numbers behind the batch; received {received or 'no input'}. "
                "Other resolutions are variants: model.variant(inputs=[...])"
            )
        return self.module(found[0].shape[1:], dtype=found[0].dtype)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        from frame.blueprint.text import program_text

        return program_text(self)
