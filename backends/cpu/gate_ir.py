"""The gate as LLVM IR text: a call of a model from Python without Python code in between.

A gate is a builtin function of the interpreter whose body is generated code. It holds the
interpreter's lock while it looks at its arguments and releases it while the kernels run:

    claim    the frame, if nobody has it and it stands ready for this binding
    inputs   type, element type, flags and sizes equal those of the row; pointer -> word
    outputs  a fresh array, a recycled one that nobody else holds, or the caller's; pointer -> word
    run      the entry, without the lock
    release  the frame; return the array, or a tuple of several

Whatever does not fit ends the gate with None before anything ran, and Python has the word.

Layout of what it reads: `PyArrayObject_fields` and the head of `PyArray_Descr`, which are part of
numpy's binary interface, and the head of an object. `frame.backends.cpu.gate` compares each of them
with what Python says of some arrays before the first gate is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

API: tuple[str, ...] = (
    "array_type",
    "new_array",
    "none",
    "tuple_new",
    "tuple_set",
    "retain",
    "drop",
    "save_thread",
    "restore_thread",
    "call",
)
"""Words of the exported table `frame_gate_api`: addresses in the interpreter and in numpy."""

STATE: tuple[str, ...] = (
    "epoch",
    "context",
    "token",
    "entry",
    "status",
    "fail",
    "inputs",
    "outputs",
    "held",
    "input_rows",
    "output_rows",
    "held_rows",
)
"""Words of the state of a gate: counts and addresses."""

ROW: tuple[str, ...] = ("word", "element", "kind", "rank", "sizes", "bytes", "recycled")
"""Words of the row of an input or output; a held row has the word and the bytes alone.

`word` is the address of the pointer word, `kind` the number of the element type with its byte order
from bit 32 up, `recycled` the list of arrays that wait for reuse, 0 for outputs that are always
fresh.
"""

BUSY, TOKEN = 10, 11
"""Words of a context: the epoch of the pool in which a gate claimed the frame, and the binding."""

ARRAY: Mapping[str, int] = {
    "type": 8,
    "data": 16,
    "rank": 24,
    "sizes": 32,
    "base": 48,
    "element": 56,
    "flags": 64,
    "weak": 72,
}
"""Byte offsets in an array object; the reference count comes first."""

ELEMENT: Mapping[str, int] = {"order": 26, "number": 28}
"""Byte offsets in an element type."""

LIST: Mapping[str, int] = {"length": 16, "items": 24}
"""Byte offsets in a list."""

ROW_MAJOR, OWNED, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400


def gate_module() -> str:
    """Return the text of three functions (self, arguments, count), to follow that of the pool.

    `frame_gate` takes the inputs, `frame_gate_into` the arrays to write into after them, and
    `frame_gate_claim` nothing: it claims the frame for Python, which may change its words then,
    and returns self, or None where a call has the frame.
    """
    offsets = {f"array_{name}": at for name, at in ARRAY.items()}
    offsets |= {f"element_{name}": at for name, at in ELEMENT.items()}
    offsets |= {f"list_{name}": at for name, at in LIST.items()}
    offsets |= {f"api_{name}": 8 * k for k, name in enumerate(API)}
    offsets |= {f"state_{name}": 8 * k for k, name in enumerate(STATE)}
    offsets |= {f"row_{name}": 8 * k for k, name in enumerate(ROW)}
    return Template(_TEXT).substitute(
        offsets,
        words=len(API),
        row_stride=8 * len(ROW),
        busy=8 * BUSY,
        token=8 * TOKEN,
        readable=ROW_MAJOR | ALIGNED,
        writable=ROW_MAJOR | ALIGNED | WRITEABLE,
        reusable=ROW_MAJOR | ALIGNED | WRITEABLE | OWNED,
    )


_TEXT = """
@frame_gate_api = dso_local global [$words x i64] zeroinitializer, align 8

define internal ptr @gate_word(ptr %block, i64 %offset) #2 {
  %at = getelementptr i8, ptr %block, i64 %offset
  %value = load ptr, ptr %at, align 8
  ret ptr %value
}

define internal i64 @gate_number(ptr %block, i64 %offset) #2 {
  %at = getelementptr i8, ptr %block, i64 %offset
  %value = load i64, ptr %at, align 8
  ret i64 %value
}

define internal void @gate_retain(ptr %object) #2 {
  %retain = call ptr @gate_word(ptr @frame_gate_api, i64 $api_retain)
  call void %retain(ptr %object)
  ret void
}

define internal void @gate_drop(ptr %object) #2 {
  %drop = call ptr @gate_word(ptr @frame_gate_api, i64 $api_drop)
  call void %drop(ptr %object)
  ret void
}

; The memory of an object that is an array as a row wants it, else null.
define internal ptr @gate_fit(ptr %object, ptr %row, i32 %wanted_flags) #0 {
entry:
  %type = call ptr @gate_word(ptr %object, i64 $array_type)
  %array = call ptr @gate_word(ptr @frame_gate_api, i64 $api_array_type)
  %is_array = icmp eq ptr %type, %array
  br i1 %is_array, label %element, label %no
element:
  %descr = call ptr @gate_word(ptr %object, i64 $array_element)
  %wanted_descr = call ptr @gate_word(ptr %row, i64 $row_element)
  %same = icmp eq ptr %descr, %wanted_descr
  br i1 %same, label %layout, label %kind
kind:
  %number_at = getelementptr i8, ptr %descr, i64 $element_number
  %number = load i32, ptr %number_at, align 4
  %order_at = getelementptr i8, ptr %descr, i64 $element_order
  %order = load i8, ptr %order_at, align 1
  %low = zext i32 %number to i64
  %wide = zext i8 %order to i64
  %high = shl i64 %wide, 32
  %found = or i64 %high, %low
  %wanted_kind = call i64 @gate_number(ptr %row, i64 $row_kind)
  %equal = icmp eq i64 %found, %wanted_kind
  br i1 %equal, label %layout, label %no
layout:
  %flags_at = getelementptr i8, ptr %object, i64 $array_flags
  %flags = load i32, ptr %flags_at, align 4
  %kept = and i32 %flags, %wanted_flags
  %flagged = icmp eq i32 %kept, %wanted_flags
  %rank_at = getelementptr i8, ptr %object, i64 $array_rank
  %short = load i32, ptr %rank_at, align 4
  %rank = zext i32 %short to i64
  %wanted_rank = call i64 @gate_number(ptr %row, i64 $row_rank)
  %ranked = icmp eq i64 %rank, %wanted_rank
  %fits = and i1 %flagged, %ranked
  %sizes = call ptr @gate_word(ptr %object, i64 $array_sizes)
  %wanted_sizes = call ptr @gate_word(ptr %row, i64 $row_sizes)
  br i1 %fits, label %axis, label %no
axis:
  %k = phi i64 [ 0, %layout ], [ %next, %size ]
  %past = icmp eq i64 %k, %rank
  br i1 %past, label %yes, label %size
size:
  %size_at = getelementptr i64, ptr %sizes, i64 %k
  %length = load i64, ptr %size_at, align 8
  %wanted_at = getelementptr i64, ptr %wanted_sizes, i64 %k
  %wanted_length = load i64, ptr %wanted_at, align 8
  %next = add i64 %k, 1
  %agrees = icmp eq i64 %length, %wanted_length
  br i1 %agrees, label %axis, label %no
yes:
  %data = call ptr @gate_word(ptr %object, i64 $array_data)
  ret ptr %data
no:
  ret ptr null
}

; Put the memory of an argument into the word of its row; false where it does not fit.
define internal i1 @gate_take(ptr %object, ptr %row, i32 %wanted_flags) #0 {
  %data = call ptr @gate_fit(ptr %object, ptr %row, i32 %wanted_flags)
  %word = call ptr @gate_word(ptr %row, i64 $row_word)
  store ptr %data, ptr %word, align 8
  %fits = icmp ne ptr %data, null
  ret i1 %fits
}

; Whether the memory behind a row and that behind one of `count` rows overlap.
define internal i1 @gate_overlaps(ptr %row, ptr %others, i64 %count) #0 {
entry:
  %word = call ptr @gate_word(ptr %row, i64 $row_word)
  %low = load i64, ptr %word, align 8
  %bytes = call i64 @gate_number(ptr %row, i64 $row_bytes)
  %high = add i64 %low, %bytes
  br label %check
check:
  %k = phi i64 [ 0, %entry ], [ %next, %compare ]
  %past = icmp eq i64 %k, %count
  br i1 %past, label %apart, label %compare
compare:
  %offset = mul i64 %k, $row_stride
  %other = getelementptr i8, ptr %others, i64 %offset
  %other_word = call ptr @gate_word(ptr %other, i64 $row_word)
  %start = load i64, ptr %other_word, align 8
  %length = call i64 @gate_number(ptr %other, i64 $row_bytes)
  %end = add i64 %start, %length
  %below = icmp ult i64 %low, %end
  %above = icmp ult i64 %start, %high
  %shared = and i1 %below, %above
  %next = add i64 %k, 1
  br i1 %shared, label %overlap, label %check
apart:
  ret i1 false
overlap:
  ret i1 true
}

; A new reference to an array for an output; None where Python must make it, null for an error.
define internal ptr @gate_make(ptr %row) #0 {
entry:
  %list = call ptr @gate_word(ptr %row, i64 $row_recycled)
  %plain = icmp eq ptr %list, null
  br i1 %plain, label %fresh, label %some
some:
  %length = call i64 @gate_number(ptr %list, i64 $list_length)
  %items = call ptr @gate_word(ptr %list, i64 $list_items)
  br label %slot
slot:
  %k = phi i64 [ 0, %some ], [ %next, %skip ]
  %past = icmp eq i64 %k, %length
  br i1 %past, label %none, label %look
look:
  %slot_at = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %slot_at, align 8
  %holders = load i32, ptr %object, align 8
  %alone = icmp eq i32 %holders, 1
  br i1 %alone, label %unwatched, label %skip
unwatched:
  %weak = call ptr @gate_word(ptr %object, i64 $array_weak)
  %unseen = icmp eq ptr %weak, null
  br i1 %unseen, label %whole, label %skip
whole:
  %data = call ptr @gate_fit(ptr %object, ptr %row, i32 $reusable)
  %fits = icmp ne ptr %data, null
  br i1 %fits, label %reuse, label %skip
skip:
  %next = add i64 %k, 1
  br label %slot
reuse:
  call void @gate_retain(ptr %object)
  ret ptr %object
none:
  %no = call ptr @gate_word(ptr @frame_gate_api, i64 $api_none)
  call void @gate_retain(ptr %no)
  ret ptr %no
fresh:
  %descr = call ptr @gate_word(ptr %row, i64 $row_element)
  call void @gate_retain(ptr %descr)
  %rank = call i64 @gate_number(ptr %row, i64 $row_rank)
  %short = trunc i64 %rank to i32
  %sizes = call ptr @gate_word(ptr %row, i64 $row_sizes)
  %type = call ptr @gate_word(ptr @frame_gate_api, i64 $api_array_type)
  %new = call ptr @gate_word(ptr @frame_gate_api, i64 $api_new_array)
  %array = call ptr %new(ptr %type, ptr %descr, i32 %short, ptr %sizes, ptr null, ptr null,
                         i32 0, ptr null)
  ret ptr %array
}

; Check the caller's arrays for the outputs; false where one does not fit or shares memory.
define internal i1 @gate_targets(ptr %state, ptr %targets) #0 {
entry:
  %rows = call ptr @gate_word(ptr %state, i64 $state_output_rows)
  %count = call i64 @gate_number(ptr %state, i64 $state_outputs)
  %input_rows = call ptr @gate_word(ptr %state, i64 $state_input_rows)
  %inputs = call i64 @gate_number(ptr %state, i64 $state_inputs)
  %held_rows = call ptr @gate_word(ptr %state, i64 $state_held_rows)
  %held = call i64 @gate_number(ptr %state, i64 $state_held)
  br label %target
target:
  %k = phi i64 [ 0, %entry ], [ %next, %apart ]
  %past = icmp eq i64 %k, %count
  br i1 %past, label %yes, label %take
take:
  %offset = mul i64 %k, $row_stride
  %row = getelementptr i8, ptr %rows, i64 %offset
  %target_at = getelementptr ptr, ptr %targets, i64 %k
  %object = load ptr, ptr %target_at, align 8
  %fits = call i1 @gate_take(ptr %object, ptr %row, i32 $writable)
  br i1 %fits, label %compare, label %no
compare:
  %on_input = call i1 @gate_overlaps(ptr %row, ptr %input_rows, i64 %inputs)
  %on_held = call i1 @gate_overlaps(ptr %row, ptr %held_rows, i64 %held)
  %on_other = call i1 @gate_overlaps(ptr %row, ptr %rows, i64 %k)
  %either = or i1 %on_input, %on_held
  %shared = or i1 %either, %on_other
  br i1 %shared, label %no, label %apart
apart:
  %next = add i64 %k, 1
  br label %target
yes:
  ret i1 true
no:
  ret i1 false
}

; A new reference to what the call returns, with the words of the outputs set.
define internal ptr @gate_results(ptr %state, ptr %targets) #0 {
entry:
  %rows = call ptr @gate_word(ptr %state, i64 $state_output_rows)
  %count = call i64 @gate_number(ptr %state, i64 $state_outputs)
  %given = icmp ne ptr %targets, null
  %no = call ptr @gate_word(ptr @frame_gate_api, i64 $api_none)
  %single = icmp eq i64 %count, 1
  br i1 %single, label %output, label %many
many:
  %tuple_new = call ptr @gate_word(ptr @frame_gate_api, i64 $api_tuple_new)
  %tuple = call ptr %tuple_new(i64 %count)
  %lost = icmp eq ptr %tuple, null
  br i1 %lost, label %error, label %output
output:
  %holder = phi ptr [ null, %entry ], [ %tuple, %many ], [ %holder, %keep ]
  %k = phi i64 [ 0, %entry ], [ 0, %many ], [ %next, %keep ]
  %past = icmp eq i64 %k, %count
  br i1 %past, label %whole, label %choose
choose:
  %offset = mul i64 %k, $row_stride
  %row = getelementptr i8, ptr %rows, i64 %offset
  br i1 %given, label %theirs, label %ours
theirs:
  %target_at = getelementptr ptr, ptr %targets, i64 %k
  %target = load ptr, ptr %target_at, align 8
  call void @gate_retain(ptr %target)
  br label %have
ours:
  %made = call ptr @gate_make(ptr %row)
  %failed = icmp eq ptr %made, null
  %absent = icmp eq ptr %made, %no
  %unusable = or i1 %failed, %absent
  br i1 %unusable, label %undo, label %place
place:
  %data = call ptr @gate_word(ptr %made, i64 $array_data)
  %word = call ptr @gate_word(ptr %row, i64 $row_word)
  store ptr %data, ptr %word, align 8
  br label %have
have:
  %object = phi ptr [ %target, %theirs ], [ %made, %place ]
  br i1 %single, label %alone, label %keep
alone:
  ret ptr %object
keep:
  %tuple_set = call ptr @gate_word(ptr @frame_gate_api, i64 $api_tuple_set)
  %status = call i32 %tuple_set(ptr %holder, i64 %k, ptr %object)
  %next = add i64 %k, 1
  br label %output
undo:
  br i1 %single, label %undone, label %release
release:
  call void @gate_drop(ptr %holder)
  br label %undone
undone:
  ret ptr %made
whole:
  ret ptr %holder
error:
  ret ptr null
}

; Claim the frame in this run of the pool; false where a call is on it, or the pool has not begun.
define internal i1 @gate_enter(ptr %state, ptr %busy_at) #2 {
  %epoch_at = call ptr @gate_word(ptr %state, i64 $state_epoch)
  %epoch = load i64, ptr %epoch_at, align 8
  %busy = load i64, ptr %busy_at, align 8
  %started = icmp ne i64 %epoch, 0
  %idle = icmp ne i64 %busy, %epoch
  %free = and i1 %started, %idle
  %word = select i1 %free, i64 %epoch, i64 %busy
  store i64 %word, ptr %busy_at, align 8
  ret i1 %free
}

define internal ptr @gate(ptr %self, ptr %arguments, i64 %given, i1 %into) #0 {
entry:
  %state = call ptr @gate_word(ptr %self, i64 $array_data)
  %no = call ptr @gate_word(ptr @frame_gate_api, i64 $api_none)
  %inputs = call i64 @gate_number(ptr %state, i64 $state_inputs)
  %outputs = call i64 @gate_number(ptr %state, i64 $state_outputs)
  %both = add i64 %inputs, %outputs
  %wanted = select i1 %into, i64 %both, i64 %inputs
  %complete = icmp eq i64 %given, %wanted
  br i1 %complete, label %claim, label %refuse
claim:
  %context = call ptr @gate_word(ptr %state, i64 $state_context)
  %busy_at = getelementptr i8, ptr %context, i64 $busy
  %settled = call i64 @gate_number(ptr %context, i64 $token)
  %token = call i64 @gate_number(ptr %state, i64 $state_token)
  %mine = icmp eq i64 %settled, %token
  br i1 %mine, label %enter, label %refuse
enter:
  %claimed = call i1 @gate_enter(ptr %state, ptr %busy_at)
  br i1 %claimed, label %begin, label %refuse
begin:
  %rows = call ptr @gate_word(ptr %state, i64 $state_input_rows)
  br label %input
input:
  %k = phi i64 [ 0, %begin ], [ %next, %take ]
  %past = icmp eq i64 %k, %inputs
  br i1 %past, label %targets, label %take
take:
  %offset = mul i64 %k, $row_stride
  %row = getelementptr i8, ptr %rows, i64 %offset
  %argument_at = getelementptr ptr, ptr %arguments, i64 %k
  %argument = load ptr, ptr %argument_at, align 8
  %next = add i64 %k, 1
  %fits = call i1 @gate_take(ptr %argument, ptr %row, i32 $readable)
  br i1 %fits, label %input, label %release
targets:
  %behind = getelementptr ptr, ptr %arguments, i64 %inputs
  %target = select i1 %into, ptr %behind, ptr null
  br i1 %into, label %check, label %results
check:
  %apart = call i1 @gate_targets(ptr %state, ptr %target)
  br i1 %apart, label %results, label %release
results:
  %result = call ptr @gate_results(ptr %state, ptr %target)
  %failed = icmp eq ptr %result, null
  %absent = icmp eq ptr %result, %no
  %unusable = or i1 %failed, %absent
  br i1 %unusable, label %leave, label %run
run:
  %status = call ptr @gate_word(ptr %state, i64 $state_status)
  %site = getelementptr i64, ptr %status, i64 1
  store i64 0, ptr %site, align 8
  %start = call ptr @gate_word(ptr %state, i64 $state_entry)
  %save = call ptr @gate_word(ptr @frame_gate_api, i64 $api_save_thread)
  %restore = call ptr @gate_word(ptr @frame_gate_api, i64 $api_restore_thread)
  %thread = call ptr %save()
  %code = call i64 %start(ptr %context)
  call void %restore(ptr %thread)
  %good = icmp eq i64 %code, 0
  br i1 %good, label %leave, label %report
report:
  call void @gate_drop(ptr %result)
  %fail = call ptr @gate_word(ptr %state, i64 $state_fail)
  %call = call ptr @gate_word(ptr @frame_gate_api, i64 $api_call)
  %raised = call ptr %call(ptr %fail)
  br label %leave
leave:
  %returned = phi ptr [ %result, %results ], [ %result, %run ], [ %raised, %report ]
  store i64 0, ptr %busy_at, align 8
  ret ptr %returned
release:
  store i64 0, ptr %busy_at, align 8
  br label %refuse
refuse:
  call void @gate_retain(ptr %no)
  ret ptr %no
}

define dso_local ptr @frame_gate(ptr %self, ptr %arguments, i64 %given) #0 {
  %result = call ptr @gate(ptr %self, ptr %arguments, i64 %given, i1 false)
  ret ptr %result
}

define dso_local ptr @frame_gate_into(ptr %self, ptr %arguments, i64 %given) #0 {
  %result = call ptr @gate(ptr %self, ptr %arguments, i64 %given, i1 true)
  ret ptr %result
}

define dso_local ptr @frame_gate_claim(ptr %self, ptr %arguments, i64 %given) #0 {
  %state = call ptr @gate_word(ptr %self, i64 $array_data)
  %no = call ptr @gate_word(ptr @frame_gate_api, i64 $api_none)
  %context = call ptr @gate_word(ptr %state, i64 $state_context)
  %busy_at = getelementptr i8, ptr %context, i64 $busy
  %free = call i1 @gate_enter(ptr %state, ptr %busy_at)
  %result = select i1 %free, ptr %self, ptr %no
  call void @gate_retain(ptr %result)
  ret ptr %result
}
"""
