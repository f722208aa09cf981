"""Run emitted modules: kernels through their thunks, entries with a serial launch."""

import ctypes

import numpy as np

from frame.backends.cpu.elf import load
from frame.backends.cpu.llvm import compile_ir
from frame.backends.cpu.target import host_target
from frame.codegen.emit import llvm
from frame.codegen.loops import ir

WORD = ctypes.c_int64
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, WORD)
ENTRY = ctypes.CFUNCTYPE(WORD, ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, WORD)
FAIL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, WORD, WORD, WORD)
CLOCK = ctypes.CFUNCTYPE(WORD)


def empty_entry():
    return ir.Entry("entry", (), (), ())


def module_of(*kernels, entry=None, constants=()):
    return ir.Module("test", kernels, entry or empty_entry(), constants)


def launch_serially(pool, kernel, args, chunks):
    function = KERNEL(kernel)
    for chunk in range(chunks):
        function(args, chunk)


def keep_smallest(status, site, position, value):
    words = (WORD * 4).from_address(status)
    if words[1] == 0 or (site, position) < (words[1], words[2]):
        words[1], words[2], words[3] = site, position, value


class Native:
    """A compiled module. `target` and `profile` go to the emitter."""

    def __init__(self, module, target=None, profile=False, level=2):
        target = target or host_target()
        self.module = module
        self.text = llvm.emit_module(module, target, profile)
        self.object = load(compile_ir(self.text, target, level))

    def kernel(self, name, arrays, scalars=(), chunks=1):
        """Run a kernel over arrays in place; returns the status words (site, position, value)."""
        thunk = KERNEL(self.object.symbol(llvm.kernel_symbols(self.module)[name]))
        status = (WORD * 4)()
        fail = FAIL(keep_smallest)
        words = [array.ctypes.data for array in arrays] + list(scalars)
        words += [ctypes.cast(fail, ctypes.c_void_p).value, ctypes.addressof(status)]
        args = (WORD * len(words))(*words)
        for chunk in range(chunks):
            thunk(ctypes.addressof(args), chunk)
        return tuple(status)[1:]

    def entry(self, arrays, symbols=(), arena=0, offsets=(), launches=0):
        """Run the entry; returns (result, status words, profile words)."""
        self.memory = np.zeros(arena + 64, np.uint8)
        tables = [
            (WORD * max(len(words), 1))(*words)
            for words in ([a.ctypes.data for a in arrays], symbols, offsets, [0] * 2 * launches)
        ]
        buffers, symbol_words, offset_words, profile = tables
        status = (WORD * 4)()
        ticks = iter(range(0, 1 << 20, 5))
        functions = LAUNCH(launch_serially), FAIL(keep_smallest), CLOCK(lambda: next(ticks))
        launch, fail, clock = (ctypes.cast(f, ctypes.c_void_p).value for f in functions)
        words = [0, launch, fail, ctypes.addressof(status), self.memory.ctypes.data]
        words += [
            ctypes.addressof(table) for table in (buffers, symbol_words, offset_words, profile)
        ]
        context = (WORD * 10)(*words, clock)
        result = ENTRY(self.object.symbol(llvm.entry_symbol(self.module)))(
            ctypes.addressof(context)
        )
        return result, tuple(status)[1:], tuple(profile)
