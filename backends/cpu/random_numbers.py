"""Random numbers in native code: the words of `frame.core.philox`, and uniform numbers of a range.

One small object a machine, kept in the artefact store as the pool's is. A vector holds a counter
word of as many blocks as it has 64-bit lanes, and each pass of a loop makes one such group:

    for group in range(groups):
        w0, w1, w2, w3 = philox(blocks of the group)     10 rounds, all lanes at once
        out[group] = w0[0] w1[0] w2[0] w3[0] w0[1] ...   words, or low + uniform * range

The numbers are bit for bit those that numpy makes there: each step is the same operation, rounded
once, and nothing is contracted.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from frame.backends.cpu import elf, llvm
from frame.backends.cpu.target import host_target
from frame.core import philox
from frame.core.errors import FrameError, InternalError
from frame.core.logs import Logger

if TYPE_CHECKING:
    from frame.core.philox import Fixed, Store
    from frame.core.targets import TargetDescription

_LOG = Logger(__name__)
_LEVEL = 1
_ARGUMENTS = (ctypes.c_void_p, *(ctypes.c_int64,) * 6)


class NativeNumbers:
    """The loaded functions; see `frame.core.philox.Native`."""

    def __init__(self, loaded: elf.LoadedObject, lanes: int) -> None:
        self._loaded = loaded
        self.group = lanes
        self._words = _function(loaded, "frame_random_words")
        self._between = _function(loaded, "frame_random_between", ctypes.c_double, ctypes.c_double)

    def words(self, first: int, fixed: Fixed, out: np.ndarray) -> None:
        """Fill uint32 [blocks, 4] with the blocks from `first` on."""
        self._fill(self._words, first, fixed, out, ())

    def between(self, first: int, fixed: Fixed, low: float, width: float, out: np.ndarray) -> None:
        """Fill float32 [blocks, 4] with low + u * width, where u are uniform numbers."""
        self._fill(self._between, first, fixed, out, (low, width))

    def _fill(
        self,
        function: Callable[..., None],
        first: int,
        fixed: Fixed,
        out: np.ndarray,
        rest: tuple[float, ...],
    ) -> None:
        groups, left = divmod(len(out), self.group)
        function(out.ctypes.data, first, groups, *fixed, *rest)
        if left:  # the code writes whole groups
            last = np.empty((self.group, 4), out.dtype)
            done = groups * self.group
            function(last.ctypes.data, first + done, 1, *fixed, *rest)
            out[done:] = last[:left]


def load(store: Store | None) -> NativeNumbers | None:
    """Return the functions, from `store` where that has them; None where they can't be made."""
    try:
        target = host_target()
        return NativeNumbers(_load(store, target), _lanes(target))
    except FrameError as error:
        _LOG.warning("random numbers come from numpy, which takes longer: %s", error)
        return None


def _load(store: Store | None, target: TargetDescription) -> elf.LoadedObject:
    text = module_text(_lanes(target))
    told = f"{text}\n{target.triple} {target.cpu} {target.features}"
    key = hashlib.sha256(told.encode()).hexdigest()
    data = None if store is None else store.get(key)
    if data is not None:
        try:
            return elf.load(data)
        except InternalError as error:
            _LOG.warning("the stored code of random numbers is damaged and is rebuilt: %s", error)
    data = llvm.compile_ir(text, target, _LEVEL)
    if store is not None:
        store.put(key, data)
    return elf.load(data)


def _lanes(target: TargetDescription) -> int:
    return max(2, target.vector_bits // 64)


def _function(loaded: elf.LoadedObject, name: str, *more: Any) -> Callable[..., None]:
    made: Callable[..., None] = ctypes.CFUNCTYPE(None, *_ARGUMENTS, *more)(loaded.symbol(name))
    return made


def module_text(lanes: int) -> str:
    """Return the module's text for vectors of `lanes` 64-bit words.

    It exports `frame_random_words(out, first, groups, iteration, stream, key low, key high)` and
    `frame_random_between`, which takes `low` and `width` as well.
    """
    names = {
        "n": str(lanes),
        "rounds": str(philox.ROUNDS),
        "twice": str(2 * lanes),
        "four": str(4 * lanes),
        "ramp": _vector("i64", range(lanes)),
        "mask": _same("i64", lanes, 0xFFFFFFFF),
        "thirty_two": _same("i64", lanes, 32),
        "eight": _same("i64", lanes, 8),
        "unit": _same("double", lanes, 2.0**-24),
        "pairs": _indices(range(2 * lanes)),
        "by_pair": _indices(i + lanes * j for i in range(lanes) for j in range(2)),
        "by_block": _indices(i + lanes * j for i in range(lanes) for j in range(4)),
    }
    for index, (factor, grown) in enumerate(zip(philox.MULTIPLIERS, philox.WEYL, strict=True)):
        names |= {f"factor{index}": _same("i64", lanes, factor)}
        names |= {f"weyl{index}": _same("i64", lanes, grown)}
    functions = (
        _LOOP.format(name=name, parameters=parameters, before=before, store=store)
        for name, parameters, before, store in _FUNCTIONS
    )
    return llvm.filled("".join(functions) + _ATTRIBUTES, names)


def _vector(element: str, values: Any) -> str:
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


def _same(element: str, lanes: int, value: float) -> str:
    return _vector(element, [value if element == "i64" else f"{value:.17e}"] * lanes)


def _indices(values: Any) -> str:
    return _vector("i32", values)


def _splats(element: str, **scalars: str) -> str:
    """Return the lines that fill a vector of each name with a scalar of this element type."""
    return "".join(
        f"""
  %{name}_one = insertelement <$n x {element}> poison, {element} %{scalar}, i32 0
  %{name} = shufflevector <$n x {element}> %{name}_one, <$n x {element}> poison,
                          <$n x i32> zeroinitializer"""
        for name, scalar in scalars.items()
    )


_COMMON = _splats("i64", iterations="iteration", streams="stream", keys0="key0", keys1="key1")
_LOOP = """
define dso_local void @{name}(ptr %out, i64 %first, i64 %groups, i64 %iteration, i64 %stream,
                              i64 %key0, i64 %key1{parameters}) #0 {{
entry:
  %empty = icmp sle i64 %groups, 0
  br i1 %empty, label %done, label %start
start:
{before}
  br label %loop
loop:
  %group = phi i64 [ 0, %start ], [ %next, %finish ]
  %offset = mul i64 %group, $n
  %begin = add i64 %first, %offset
  %begin_one = insertelement <$n x i64> poison, i64 %begin, i32 0
  %begins = shufflevector <$n x i64> %begin_one, <$n x i64> poison, <$n x i32> zeroinitializer
  %blocks = add <$n x i64> %begins, $ramp
  %above = lshr <$n x i64> %blocks, $thirty_two
  br label %round
round:
  %index = phi i64 [ 0, %loop ], [ %index_next, %round ]
  %k0 = phi <$n x i64> [ %keys0, %loop ], [ %k0_next, %round ]
  %k1 = phi <$n x i64> [ %keys1, %loop ], [ %k1_next, %round ]
  %c0 = phi <$n x i64> [ %blocks, %loop ], [ %c0_next, %round ]
  %c1 = phi <$n x i64> [ %above, %loop ], [ %product2, %round ]
  %c2 = phi <$n x i64> [ %iterations, %loop ], [ %c2_next, %round ]
  %c3 = phi <$n x i64> [ %streams, %loop ], [ %product0, %round ]
  %c0_word = and <$n x i64> %c0, $mask
  %c2_word = and <$n x i64> %c2, $mask
  %product0 = mul <$n x i64> %c0_word, $factor0
  %product2 = mul <$n x i64> %c2_word, $factor1
  %carry2 = lshr <$n x i64> %product2, $thirty_two
  %carry0 = lshr <$n x i64> %product0, $thirty_two
  %mixed0 = xor <$n x i64> %carry2, %c1
  %mixed2 = xor <$n x i64> %carry0, %c3
  %c0_next = xor <$n x i64> %mixed0, %k0
  %c2_next = xor <$n x i64> %mixed2, %k1
  %k0_next = add <$n x i64> %k0, $weyl0
  %k1_next = add <$n x i64> %k1, $weyl1
  %index_next = add i64 %index, 1
  %again = icmp slt i64 %index_next, $rounds
  br i1 %again, label %round, label %finish
finish:
  %w0 = and <$n x i64> %c0_next, $mask
  %w1 = and <$n x i64> %product2, $mask
  %w2 = and <$n x i64> %c2_next, $mask
  %w3 = and <$n x i64> %product0, $mask
  %place = getelementptr [$four x i32], ptr %out, i64 %group
{store}
  %next = add i64 %group, 1
  %more = icmp slt i64 %next, %groups
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


_STORE_WORDS = """
  %up1 = shl <$n x i64> %w1, $thirty_two
  %up3 = shl <$n x i64> %w3, $thirty_two
  %w01 = or <$n x i64> %w0, %up1
  %w23 = or <$n x i64> %w2, %up3
  %words = shufflevector <$n x i64> %w01, <$n x i64> %w23, <$twice x i32> $by_pair
  store <$twice x i64> %words, ptr %place, align 4"""
_STORE_BETWEEN = (
    "".join(
        f"""
  %bits{w} = lshr <$n x i64> %w{w}, $eight
  %small{w} = trunc <$n x i64> %bits{w} to <$n x i32>
  %whole{w} = sitofp <$n x i32> %small{w} to <$n x double>
  %uniform{w} = fmul <$n x double> %whole{w}, $unit
  %scaled{w} = fmul <$n x double> %uniform{w}, %widths
  %moved{w} = fadd <$n x double> %lows, %scaled{w}
  %number{w} = fptrunc <$n x double> %moved{w} to <$n x float>"""
        for w in range(4)
    )
    + """
  %n01 = shufflevector <$n x float> %number0, <$n x float> %number1, <$twice x i32> $pairs
  %n23 = shufflevector <$n x float> %number2, <$n x float> %number3, <$twice x i32> $pairs
  %numbers = shufflevector <$twice x float> %n01, <$twice x float> %n23, <$four x i32> $by_block
  store <$four x float> %numbers, ptr %place, align 4"""
)
_RANGE = _splats("double", lows="low", widths="width")
_FUNCTIONS = (  # name, further parameters, what stands before the loop, what a group ends with
    ("frame_random_words", "", _COMMON, _STORE_WORDS),
    ("frame_random_between", ", double %low, double %width", _COMMON + _RANGE, _STORE_BETWEEN),
)
_ATTRIBUTES = """
attributes #0 = { nounwind "no-builtins" }
"""
