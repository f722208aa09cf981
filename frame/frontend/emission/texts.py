"""The C texts around the generated functions: memory, files, and the two main programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from frame.core.errors import UnimplementedError
from frame.ir.graph import TensorType

# dtype -> (C type, printf conversion, cast of the printed value)
PRINTED: Mapping[str, tuple[str, str, str]] = {
    "float32": ("float", "%.{digits}g", "(double)"),
    "float64": ("double", "%.{digits}g", ""),
    "int64": ("int64_t", "%lld", "(long long)"),
    "int32": ("int32_t", "%ld", "(long)"),
    "int8": ("int8_t", "%d", "(int)"),
    "uint8": ("uint8_t", "%u", "(unsigned)"),
    "bool": ("uint8_t", "%u", "(unsigned)"),
}


def number_type(type_: TensorType) -> str:
    """Return the C type of the elements of a value that the main programs touch.

    Raises:
        UnimplementedError: C has no such type.
    """
    row = PRINTED.get(type_.dtype.name)
    if row is None:
        raise UnimplementedError(
            f"frame emit: {type_.dtype} has no type in C, and an output, the loss or a state of "
            "the optimizer has it; cast it to float32"
        )
    return row[0]


def printed(type_: TensorType, digits: int) -> tuple[str, str]:
    """Return the C type of an output and the arguments of printf for its element `v[i]`.

    Raises:
        UnimplementedError: C has no such type.
    """
    name = number_type(type_)
    _, conversion, cast = PRINTED[type_.dtype.name]
    return name, f'"{conversion.format(digits=digits)}", {cast}v[i]'


def quoted(text: str) -> str:
    """Return a text as a C string literal: ASCII, with octal escapes, and no trigraph."""
    made = []
    for byte in text.encode("utf-8", "surrogatepass"):
        plain = 32 <= byte < 127 and byte not in b'"\\?'
        made.append(chr(byte) if plain else f"\\{byte:03o}")
    return '"' + "".join(made) + '"'


def comment(text: str) -> str:
    """Return a text as it may stand in a comment."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("??", "? ?")


def target_name(text: str) -> str:
    """Return a text as the name of a CMake project and its programs."""
    made = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:60]
    return made if made and not made[0].isdigit() else f"model_{made}".rstrip("_")


CMAKE = """# {title}
cmake_minimum_required(VERSION 3.10)
project({name} C)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
if(NOT MSVC)
  # The numbers are those of the text: a product and a sum are rounded one after the other.
  add_compile_options(-ffp-contract=off)
endif()
find_library(MATH_LIBRARY m)

{programs}"""

CMAKE_PROGRAM = """add_executable({name} {sources})
if(MATH_LIBRARY)
  target_link_libraries({name} ${{MATH_LIBRARY}})
endif()
"""

HEADER = """/* {title} */
#ifndef FRAME_MODEL_H
#define FRAME_MODEL_H

#include <stddef.h>
#include <stdint.h>

#define MODEL_ROWS {rows}
#define MODEL_INPUTS {inputs}
#define MODEL_OUTPUT_BYTES {output_bytes}

/* Bytes of each input, and of the target after them where there is one. */
extern const size_t model_input_bytes[];
extern const char *const model_input_names[];

/* Read or write parameters and buffers, in the order of weights.txt. Return 0, or 1 with a message
   on stderr. */
int model_read_weights(const char *path);
int model_write_weights(const char *path);

/* Run on MODEL_ROWS rows. Return 0, or 1 with a message on stderr. */
int model_infer(const void *const *inputs, void *output);
{train}
/* Read exactly `bytes` bytes of a file from a position on; `whole`: and it must end there. */
int model_read_file(const char *path, size_t start, void *memory, size_t bytes, int whole);

#endif
"""

HEADER_TRAIN = """
/* Fill the state of the optimizer for a first step. */
void model_reset(void);

/* One step; `inputs` has the target last. The loss is that before the update. */
int model_train(const void *const *inputs, float learning_rate, double *loss);
"""

MODEL_HEAD = """/* {title} */
#include "model.h"

#include <stdio.h>
#include <string.h>

#define CELLS(bytes) (((bytes) + 7) / 8 + 1)

{declarations}
{memory}

static unsigned char *aligned(uint64_t *memory) {{
    return (unsigned char *)memory + (64 - ((uintptr_t)memory & 63)) % 64;
}}

static int failed(const int64_t *status, const char *const *checks, size_t count) {{
    const char *check = (size_t)(status[0] - 1) < count ? checks[status[0] - 1] : "a check";
    fprintf(stderr, "expected %s, received %lld at position %lld\\n", check,
            (long long)status[2], (long long)status[1]);
    return 1;
}}

int model_read_file(const char *path, size_t start, void *memory, size_t bytes, int whole) {{
    FILE *file = fopen(path, "rb");
    size_t got = 0;
    int more = 0;
    if (file == NULL) {{
        fprintf(stderr, "%s: can't be opened\\n", path);
        return 1;
    }}
    if (fseek(file, (long)start, SEEK_SET) == 0) got = fread(memory, 1, bytes, file);
    if (whole) more = fgetc(file) != EOF;
    fclose(file);
    if (got != bytes || more) {{
        fprintf(stderr, "%s: expected %lu bytes from byte %lu on, received %s\\n", path,
                (unsigned long)bytes, (unsigned long)start, more ? "more" : "fewer");
        return 1;
    }}
    return 0;
}}
"""

WEIGHTS = """
static const struct {{ void *memory; size_t bytes; }} weights[] = {{
{rows}
}};
#define WEIGHTS (sizeof weights / sizeof weights[0])

static int prepared;

int model_read_weights(const char *path) {{
    size_t start = 0;
    for (size_t i = 0; i < WEIGHTS; ++i) {{
        if (model_read_file(path, start, weights[i].memory, weights[i].bytes, i + 1 == WEIGHTS))
            return 1;
        start += weights[i].bytes;
    }}
    prepared = 0;
    return 0;
}}

int model_write_weights(const char *path) {{
    FILE *file = fopen(path, "wb");
    int good = file != NULL;
    for (size_t i = 0; good && i < WEIGHTS; ++i)
        good = fwrite(weights[i].memory, 1, weights[i].bytes, file) == weights[i].bytes;
    if (file != NULL && fclose(file) != 0) good = 0;
    if (!good) fprintf(stderr, "%s: can't be written\\n", path);
    return !good;
}}
"""

NO_WEIGHTS = """
static int prepared;

int model_read_weights(const char *path) {
    (void)path;
    return 0;
}

int model_write_weights(const char *path) {
    (void)path;
    return 0;
}
"""

CALL = """    {{
        void *buffers[] = {{{buffers}}};
        int64_t status[3] = {{0, 0, 0}};
        if ({symbol}(buffers, NULL, aligned(arena_{symbol}), NULL, status) != 0)
            return failed(status, checks_{symbol}, {checks});
    }}
"""

MAIN_INFER = """/* {title}

   usage: {name}_infer WEIGHTS INPUT...
   Each INPUT is a file of the raw numbers of one input, row-major, as input0.bin is.
   Prints one line a row. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {{
    const void *inputs[MODEL_INPUTS + 1] = {{NULL}};
    static {type} v[MODEL_OUTPUT_BYTES / sizeof({type}) + 1];
    if (count != MODEL_INPUTS + 2) {{
        fprintf(stderr, "usage: %s WEIGHTS INPUT... (%d of them:", words[0], MODEL_INPUTS);
        for (int k = 0; k < MODEL_INPUTS; ++k) fprintf(stderr, " %s", model_input_names[k]);
        fprintf(stderr, ")\\n");
        return 2;
    }}
    if (model_read_weights(words[1])) return 1;
    for (int k = 0; k < MODEL_INPUTS; ++k) {{
        void *memory = malloc(model_input_bytes[k] + 1);
        if (memory == NULL) return 1;
        if (model_read_file(words[k + 2], 0, memory, model_input_bytes[k], 1)) return 1;
        inputs[k] = memory;
    }}
    if (model_infer(inputs, v)) return 1;
    for (size_t i = 0; i < MODEL_OUTPUT_BYTES / sizeof({type}); ++i) {{
        printf({print});
        putchar((i + 1) % {columns} == 0 ? '\\n' : ' ');
    }}
    return 0;
}}
"""

MAIN_TRAIN = """/* {title}

   usage: {name}_train [WEIGHTS [TRAINING [RESULT]]]
   Reads weights.bin and training.bin, trains, and writes the weights to trained.bin.

   training.bin: {steps} rates (float), {steps} x {rows} row numbers (int32_t), {count} rows of each
   input and of the target, and the {rows} rows of each input that are predicted at the end. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS {steps}L
#define ROWS {count}L
#define LOG_EVERY {log_every}L
#define COLUMNS (MODEL_INPUTS + 1)

static unsigned char *data[COLUMNS], *batch[COLUMNS], *first[MODEL_INPUTS];
static float rates[STEPS];
static {type} v[MODEL_OUTPUT_BYTES / sizeof({type}) + 1];

static int read_training(const char *path, int32_t *order) {{
    size_t start = sizeof rates, bytes = (size_t)STEPS * MODEL_ROWS * sizeof *order;
    if (model_read_file(path, 0, rates, sizeof rates, 0)) return 1;
    if (model_read_file(path, start, order, bytes, 0)) return 1;
    start += bytes;
    for (int k = 0; k < COLUMNS; ++k) {{
        bytes = model_input_bytes[k] / MODEL_ROWS * ROWS;
        data[k] = malloc(bytes + 1);
        batch[k] = malloc(model_input_bytes[k] + 1);
        if (data[k] == NULL || batch[k] == NULL) return 1;
        if (model_read_file(path, start, data[k], bytes, 0)) return 1;
        start += bytes;
    }}
    for (int k = 0; k < MODEL_INPUTS; ++k) {{
        first[k] = malloc(model_input_bytes[k] + 1);
        if (first[k] == NULL) return 1;
        bytes = model_input_bytes[k];
        if (model_read_file(path, start, first[k], bytes, k + 1 == MODEL_INPUTS)) return 1;
        start += bytes;
    }}
    for (long i = 0; i < STEPS * MODEL_ROWS; ++i)
        if (order[i] < 0 || order[i] >= ROWS) {{
            fprintf(stderr, "%s: a row number is out of range\\n", path);
            return 1;
        }}
    return 0;
}}

static void gather(const int32_t *rows) {{
    for (int k = 0; k < COLUMNS; ++k) {{
        size_t bytes = model_input_bytes[k] / MODEL_ROWS;
        for (long i = 0; i < MODEL_ROWS; ++i)
            memcpy(batch[k] + i * bytes, data[k] + (size_t)rows[i] * bytes, bytes);
    }}
}}

int main(int count, char **words) {{
    const char *weights = count > 1 ? words[1] : "weights.bin";
    const char *training = count > 2 ? words[2] : "training.bin";
    const char *result = count > 3 ? words[3] : "trained.bin";
    int32_t *order = malloc((size_t)STEPS * MODEL_ROWS * sizeof *order + 1);
    double loss = 0;
    if (order == NULL || model_read_weights(weights) || read_training(training, order)) return 1;
    model_reset();
    for (long step = 0; step < STEPS; ++step) {{
        gather(order + step * MODEL_ROWS);
        if (model_train((const void *const *)batch, rates[step], &loss)) return 1;
        if (!isfinite(loss)) {{
            fprintf(stderr, "the loss is %g at step %ld\\n", loss, step);
            return 1;
        }}
        if (step + 1 == STEPS || (LOG_EVERY > 0 && step % LOG_EVERY == 0))
            printf("step %ld loss %.6g\\n", step, loss);
    }}
    printf("final_loss %.6g\\npredictions =", loss);
    if (model_infer((const void *const *)first, v)) return 1;
    for (size_t i = 0; i < MODEL_OUTPUT_BYTES / sizeof({type}) && i < {shown}; ++i) {{
        putchar(' ');
        printf({print});
    }}
    printf(MODEL_OUTPUT_BYTES / sizeof({type}) > {shown} ? " ...\\n" : "\\n");
    free(order);
    return model_write_weights(result);
}}
"""
