"""The files of an emitted project, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from frame._version import __version__
from frame.core.errors import InvalidArgumentError, UnimplementedError
from frame.frontend.emission import programs, texts
from frame.frontend.emission.programs import Function, Program, nbytes
from frame.frontend.plan import SHOWN, TARGET, Plan, rows_of
from frame.frontend.run import Batches, kept_apart
from frame.hal.interfaces import Port
from frame.ir.graph import Role, TensorType
from frame.nn.parameters import materialize

MOST_ROWS = 2**31 - 1


def emit_project(
    plan: Plan, folder: str | os.PathLike[str], *, train: bool = True, rows: int | None = None
) -> tuple[str, ...]:
    """Write the C99 project of a plan; return the names of its files.

    The project holds the generated functions, a main program for inference and one for training,
    CMakeLists.txt, the initial weights and the data. It needs a C99 compiler and nothing else.

    Args:
        plan: the checked spec.
        folder: where to write; made if it does not exist.
        train: whether to emit training, too.
        rows: the rows of a batch; those of a training step by default.

    Raises:
        InvalidArgumentError: the batches of training differ in size, or `rows` is no such number.
        UnimplementedError: an op has no code that runs without Python.
    """
    files = _Project(plan, train, rows).files()
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return tuple(files)


class _Project:
    """The contents of the files."""

    def __init__(self, plan: Plan, train: bool, rows: int | None) -> None:
        from frame.data import TensorDataset

        self.plan = plan
        self.columns = plan.columns()
        rows_of(plan, self.columns)
        self.kept = kept_apart(plan, TensorDataset(self.columns))[0]
        self.batches = Batches(plan, self.kept)
        self.rows = self.batches.size if rows is None else rows
        self._check(train, rows)
        self.infer = programs.inference(plan, self.rows)
        self.train = programs.training(plan, self.rows) if train else None
        self.state = programs.state_of(self.programs)
        self.weights = [spec for spec in plan.module.parameters() if spec.name in self.state]
        self.name = texts.target_name(plan.name)
        self.title = f"{texts.comment(plan.name)}: emitted by frame {__version__}"
        self.places = {name: f"value{k}" for k, name in enumerate(self.state)}

    def _check(self, train: bool, rows: int | None) -> None:
        if not 1 <= self.rows <= MOST_ROWS:
            raise InvalidArgumentError(f"rows: expected an integer of 1 or more, received {rows}")
        if not self.plan.has_symbols and self.rows != self.batches.size:
            raise InvalidArgumentError(
                f"rows: expected the batch of the model, {self.batches.size}, received {rows}"
            )
        if train and self.rows != self.batches.size:
            raise InvalidArgumentError(
                f"rows: expected the batch of training, {self.batches.size}, received {rows}; "
                "emit inference alone for another"
            )
        rule = self.plan.training.resolution
        if train and rule is not None and len(rule.train) > 1:
            raise UnimplementedError(
                f"training.resolution.train: expected one size to emit training, received "
                f"{len(rule.train)}; emit inference alone, or train with frame train"
            )
        if train and not self.batches.are_even:
            raise InvalidArgumentError(
                f"training.drop_last: expected true to emit training, as {len(self.kept)} rows "
                f"are no multiple of training.batch_size, {self.batches.size}"
            )

    @property
    def programs(self) -> list[Program]:
        """The programs that are emitted."""
        return [self.infer, *([self.train] if self.train else [])]

    @property
    def functions(self) -> list[Function]:
        """The functions, each a source file."""
        found = [function for p in self.programs for function in (p.load, p.run)]
        return [function for function in found if function is not None]

    def files(self) -> dict[str, bytes]:
        """Return the files by name."""
        made = {
            "CMakeLists.txt": self._cmake(),
            "model.h": self._header(),
            "model.c": self._model(),
        }
        for function in self.functions:
            note = f"/* {self.title} */\n"
            made[f"{function.symbol}.c"] = note + function.text
        made["main_infer.c"] = self._main_infer()
        if self.train is not None:
            made["main_train.c"] = self._main_train()
        made["weights.txt"] = self._weight_list()
        files = {name: text.encode("ascii") for name, text in made.items()}
        files["weights.bin"] = self._weight_bytes()
        for k, column in enumerate(self._first()):
            files[f"input{k}.bin"] = column.tobytes()
        if self.train is not None:
            files["training.bin"] = self._training_bytes()
        return files

    # --- C texts ---------------------------------------------------------------------------------

    def _cmake(self) -> str:
        sources = ["model.c", *(f"{function.symbol}.c" for function in self.functions)]
        kinds = ["infer", *(["train"] if self.train else [])]
        blocks = [
            texts.CMAKE_PROGRAM.format(
                name=f"{self.name}_{kind}", sources=" ".join((f"main_{kind}.c", *sources))
            )
            for kind in kinds
        ]
        return texts.CMAKE.format(title=self.title, name=self.name, programs="\n".join(blocks))

    def _header(self) -> str:
        return texts.HEADER.format(
            title=self.title,
            rows=self.rows,
            inputs=len(self.plan.inputs),
            output_bytes=nbytes(self._output),
            train=texts.HEADER_TRAIN if self.train else "",
        )

    @property
    def _output(self) -> TensorType:
        return self.infer.run.outputs[0].type

    def _model(self) -> str:
        parts = [
            texts.MODEL_HEAD.format(
                title=self.title,
                declarations="\n".join(map(_declaration, self.functions)),
                memory=self._memory(),
            ),
            self._weight_table(),
            self._infer(),
        ]
        if self.train is not None:
            parts += [self._reset(self.train), self._step(self.train)]
        return "\n".join(parts)

    def _memory(self) -> str:
        """Static memory: values that stay, what is prepared, and an arena a function."""
        lines = [
            f"static uint64_t {place}[CELLS({nbytes(self.state[name].type)})]; "
            f"/* {texts.comment(name)}: {self.state[name].type} */"
            for name, place in self.places.items()
        ]
        for owner, program in enumerate(self.programs):
            made = () if program.load is None else program.load.outputs
            lines += [
                f"static uint64_t derived{owner}_{k}[CELLS({nbytes(port.type)})];"
                for k, port in enumerate(made)
            ]
        for function in self.functions:
            cells = f"CELLS({function.arena} + 64)"
            lines.append(f"static uint64_t arena_{function.symbol}[{cells}];")
            checks = ", ".join(map(texts.quoted, function.checks)) or "NULL"
            lines.append(f"static const char *const checks_{function.symbol}[] = {{{checks}}};")
        return "\n".join((*lines, *self._input_tables()))

    def _input_tables(self) -> tuple[str, str]:
        ports = self._free_ports()
        sizes = ", ".join(str(nbytes(port.type)) for port in ports)
        names = ", ".join(texts.quoted(port.name) for port in ports)
        return (
            f"const size_t model_input_bytes[] = {{{sizes}}};",
            f"const char *const model_input_names[] = {{{names}}};",
        )

    def _free_ports(self) -> list[Port]:
        """Return the inputs in their order, then the target where training has one."""
        program = self.train or self.infer
        by_name = {port.name: port for port in program.run.inputs if port.role is Role.INPUT}
        names = [*self.plan.inputs, *([TARGET] if self.train else [])]
        return [by_name[name] for name in names]

    def _weight_table(self) -> str:
        rows = [
            f"    {{{self.places[spec.name]}, {nbytes(spec.type)}}}, "
            f"/* {texts.comment(spec.name)} */"
            for spec in self.weights
        ]
        return texts.WEIGHTS.format(rows="\n".join(rows)) if rows else texts.NO_WEIGHTS

    def _infer(self) -> str:
        run, names = self.infer.run, list(self.plan.inputs)
        counted = _has_counter(self.infer)
        lines = ["int model_infer(const void *const *inputs, void *output) {"]
        if counted:
            lines.append(f"    static uint64_t counter[2] = {{UINT64_C({self._seed}), 0}};")
        if self.infer.load is not None:
            made = [f"derived0_{k}" for k in range(len(self.infer.load.outputs))]
            lines.append("    if (!prepared)")
            lines.append(self._call(self.infer, self.infer.load, {}, made).rstrip("\n"))
        lines.append("    prepared = 1;")
        given = {name: f"(void *)(uintptr_t)inputs[{k}]" for k, name in enumerate(names)}
        lines.append(self._call(self.infer, run, given, ["output"]).rstrip("\n"))
        if counted:
            lines.append("    ++counter[1];")
        return "\n".join((*lines, "    return 0;", "}", ""))

    def _step(self, program: Program) -> str:
        names = [*self.plan.inputs, TARGET]
        given = {name: f"(void *)(uintptr_t)inputs[{k}]" for k, name in enumerate(names)}
        given["learning_rate"] = "&learning_rate"
        loss, *rest = program.run.outputs
        extra = [f"result{k}" for k in range(len(rest))]
        type_ = texts.number_type(loss.type)
        lines = [
            "int model_train(const void *const *inputs, float learning_rate, double *loss) {",
            *(
                f"    static uint64_t {name}[CELLS({nbytes(port.type)})];"
                for name, port in zip(extra, rest, strict=True)
            ),
            f"    {type_} value = 0;",
            self._call(program, program.run, given, ["&value", *extra]).rstrip("\n"),
            "    *loss = (double)value;",
            "    prepared = 0;",
        ]
        if _has_counter(program):
            lines.insert(1, "    static uint64_t *const counter = step_counter;")
            lines.append("    ++step_counter[1];")
        return "\n".join((*lines, "    return 0;", "}", ""))

    @property
    def _seed(self) -> int:
        return self.plan.training.seed

    def _reset(self, program: Program) -> str:
        lines = ["void model_reset(void) {"]
        counter = []
        if _has_counter(program):
            counter = [f"static uint64_t step_counter[2] = {{UINT64_C({self._seed}), 0}};", ""]
            lines.append("    step_counter[1] = 0;")
        for name, port in self.state.items():
            if port.role is not Role.OPTIMIZER_STATE:
                continue
            count = nbytes(port.type) // port.type.dtype.itemsize
            type_ = texts.number_type(port.type)
            value = repr(float(program.initial.get(name, 0.0)))
            lines.append(
                f"    for (long i = 0; i < {count}L; ++i) "
                f"(({type_} *){self.places[name]})[i] = ({type_}){value};"
            )
        return "\n".join((*counter, *lines, "}", ""))

    def _call(
        self, program: Program, function: Function, given: Mapping[str, str], made: Sequence[str]
    ) -> str:
        """Return the block that calls a function: buffers in the order of its signature."""
        owner, derived = self.programs.index(program), iter(program.derived)
        buffers = []
        for port in function.inputs:
            if port.role is Role.DERIVED:
                buffers.append(f"derived{owner}_{next(derived)}")
            elif port.role is Role.COUNTER:
                buffers.append("counter")
            else:
                buffers.append(given.get(port.name) or self.places[port.name])
        return texts.CALL.format(
            buffers=", ".join((*buffers, *made)),
            symbol=function.symbol,
            checks=len(function.checks),
        )

    def _main_infer(self) -> str:
        type_, call = texts.printed(self._output, 9)
        columns = max(nbytes(self._output) // self._output.dtype.itemsize // self.rows, 1)
        return texts.MAIN_INFER.format(
            title=self.title, name=self.name, type=type_, print=call, columns=columns
        )

    def _main_train(self) -> str:
        type_, call = texts.printed(self._output, 6)
        return texts.MAIN_TRAIN.format(
            title=self.title,
            name=self.name,
            type=type_,
            print=call,
            steps=self.batches.steps,
            rows=self.rows,
            count=len(self.kept),
            log_every=self.plan.training.log_every,
            shown=SHOWN,
        )

    # --- numbers ---------------------------------------------------------------------------------

    def _weight_list(self) -> str:
        lines = [f"{texts.comment(spec.name)}: {spec.type}" for spec in self.weights]
        return "".join(f"{line}\n" for line in lines)

    def _weight_bytes(self) -> bytes:
        """Parameters and buffers one after another, little-endian, row-major."""
        values = self.plan.values()
        arrays = [
            np.asarray(values[spec.name]) if spec.name in values else materialize(spec, self._seed)
            for spec in self.weights
        ]
        return b"".join(_little(array) for array in arrays)

    def _first(self) -> list[np.ndarray]:
        """Return the first rows of each input, repeated where there are fewer than a batch."""
        rows = np.arange(self.rows) % len(self.columns[0])
        return [np.ascontiguousarray(column[rows]) for column in self.columns[:-1]]

    def _training_bytes(self) -> bytes:
        from frame.train.schedules import checked_rate

        batches = self.batches
        rates = [checked_rate(batches.schedule, k, batches.steps) for k in range(batches.steps)]
        order = np.concatenate(list(batches.row_numbers()))
        parts = [np.array(rates, np.float32), order.astype(np.int32)]
        return b"".join(map(_little, (*parts, *self.kept.columns, *self._first())))


def _declaration(function: Function) -> str:
    return (
        f"int {function.symbol}(void *const *buffers, const int64_t *symbols, "
        "unsigned char *arena,\n    const int64_t *offsets, int64_t *status);"
    )


def _has_counter(program: Program) -> bool:
    return any(port.role is Role.COUNTER for port in program.run.inputs)


def _little(array: Any) -> bytes:
    made = np.ascontiguousarray(array)
    return made.astype(made.dtype.newbyteorder("<")).tobytes()
