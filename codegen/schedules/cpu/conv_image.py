"""Where the kernels of a convolution find the pixels of x: a flat buffer, offsets and a table.

Units are what a tile is made of: pieces of an output row, or single outputs.
"""

from __future__ import annotations

from frame.codegen.loops import builder as b
from frame.codegen.loops.ir import Buffer, Expr, Scope
from frame.codegen.schedules.cpu.chunks import unflatten
from frame.codegen.schedules.cpu.conv_plan import ConvPlan
from frame.codegen.schedules.group import Group
from frame.core.dtypes import int64


class Image:
    """x, or its padded copy, as micro-kernels read it; sizes and strides are elements."""

    def __init__(self, group: Group, plan: ConvPlan) -> None:
        self.group, self.plan = group, plan
        self.channels = group.extent(plan.channels)
        all_channels = b.mul(self.channels, plan.groups)
        if plan.copy_x:
            rows, phases, self.phase = plan.padded
            self.row = phases * self.phase
            self.plane, self.origin = rows * self.row, 0
            self.memory = group.workspaces[0]
        else:
            position = group.body.input_values.index(plan.node.operands[0])
            self.row, self.phase = plan.width.size, 0
            self.plane = plan.height.size * self.row
            self.origin = -plan.height.low * self.row - plan.width.low
            self.memory = group.captures[position]
        self.image = b.mul(all_channels, self.plane)
        self.step = plan.vectors if plan.along_window else plan.piece
        self.units_of_row = -(-plan.width.positions // self.step)
        rows_of_image = plan.height.positions * self.units_of_row
        self.units = b.mul(group.extent(plan.batch), rows_of_image)

    @property
    def size(self) -> Expr:
        """The elements of x, or of its copy."""
        return b.mul(self.group.extent(self.plan.batch), self.image)

    def column(self, position: Expr) -> Expr:
        """Return the offset of a column of the padded image."""
        phases = self.plan.phases
        if phases == 1:
            return position
        return b.add(b.mul(b.rem(position, phases), self.phase), b.div(position, phases))

    def unit(self, position: Expr) -> tuple[Expr, Expr, Expr]:
        """Return image, output row and first output column of a unit."""
        rows = b.index(self.plan.height.positions)
        image, row, part = unflatten(position, [b.index(1), rows, b.index(self.units_of_row)])
        return image, row, b.mul(part, self.step)

    def places(self, body: b.Body, channel: Expr, first: Expr, count: int) -> list[Expr]:
        """Return where `count` pieces (or outputs) of a channel start, from a unit on."""
        plan = self.plan
        last = body.let("last", b.sub(self.units, 1))
        found = []
        for i in range(count):
            unit = first if plan.along_window else b.min_(b.add(first, i), last)
            found.append(self.place(channel, body.let("unit", unit), i))
        return [body.let("place", place) for place in found]

    def place(self, channel: Expr, unit: Expr, output: int = 0) -> Expr:
        """Return where a unit of a channel starts, or one of its outputs."""
        plan = self.plan
        number, row, column = self.unit(unit)
        if plan.along_window:
            column = b.min_(b.add(column, output), plan.width.positions - 1)
            column = self.column(b.mul(column, plan.width.stride))
        place = b.add(b.mul(number, self.image), self.origin)
        place = b.add(place, b.mul(channel, self.plane))
        place = b.add(place, b.mul(row, plan.height.stride * self.row))
        return b.add(place, column)

    def crossings(self, body: b.Body, channel: Expr, first: Expr, pieces: int) -> list[Expr]:
        """Return three places of each piece of joined rows, from a pixel on; units are pixels.

        Where it begins, where it would begin if it was all in the next row, and how many of its
        pixels are in the first: all, if all are.
        """
        width, last = self.plan.width.positions, b.sub(self.units, 1)
        found = []
        for start in range(0, self.plan.pieces_of_panel, self.plan.pieces_of_panel // pieces):
            pixel = body.let("pixel", b.min_(b.add(first, start), last))
            left = body.let("left", b.sub(width, b.rem(pixel, width)))
            following = b.min_(b.add(pixel, left), b.sub(self.units, width))
            low = body.let("low", self.place(channel, pixel))
            high = b.sub(self.place(channel, body.let("following", following)), left)
            # Where there is one row in all, no pixel comes from a next one: none is read before x.
            found += [low, body.let("high", b.max_(high, 0)), left]
        return found

    def write_table(self, body: b.Body) -> Buffer:
        """Write the offset in x of each point of the window, or of each piece of it."""
        plan = self.plan
        columns = plan.pieces_of_row if plan.along_window else plan.width.window
        count = plan.height.window * columns
        table = body.alloc("table", int64, (count,), Scope.LOCAL)
        with body.loop(b.index(count), "k") as k:
            row, column = b.div(k, columns), b.rem(k, columns)
            place = b.mul(row, plan.height.dilation * self.row)
            if plan.along_window:
                place = b.add(place, b.mul(column, plan.piece))
            else:
                place = b.add(place, self.column(b.mul(column, plan.width.dilation)))
            body.store(table, [k], place)
        return table

    def write_channels(self, body: b.Body, channels: int) -> Buffer:
        """Write the offset in x of each channel, which is the table of a window of one point."""
        table = body.alloc("table", int64, (channels,), Scope.LOCAL)
        with body.loop(self.channels, "k") as k:
            body.store(table, [k], b.mul(k, self.plane))
        return table
