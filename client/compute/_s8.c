/* The module client.compute._s8: the kernel in _s8_kernel.h for Python.
 *
 * Every size is checked against the buffers that Python hands over before a pointer is used; they
 * stay locked while the interpreter is free and numbers are worked on. The instruction set is chosen when the module is loaded. State: the list of those that the processor has.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "_s8_kernel.h"

typedef struct {
    const char *name;
    int (*encode)(const Tensor *, uint8_t *);
    int (*decode)(const Tensor *, uint8_t *);
    void (*sum)(const Tensor *, float *, float *);
    Probed (*probe)(const Tensor *, size_t);
} Variant;

#define VARIANT(NAME, TARGET)                                                                      \
    TARGET static int encode_##NAME(const Tensor *t, uint8_t *b) { return encode_tensor(t, b); }   \
    TARGET static int decode_##NAME(const Tensor *t, uint8_t *b) { return decode_tensor(t, b); }   \
    TARGET static void sum_##NAME(const Tensor *t, float *o, float *l) { sum_channels(t, o, l); }  \
    TARGET static Probed probe_##NAME(const Tensor *t, size_t s) { return probe_rows(t, s); }      \
    static const Variant NAME = {#NAME, encode_##NAME, decode_##NAME, sum_##NAME, probe_##NAME};

VARIANT(portable, )
#if defined(__x86_64__) && defined(__GNUC__)
VARIANT(avx2, __attribute__((target("avx2"))))
VARIANT(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

/* Those that this processor runs, best first. */
static const Variant *variants[4];

static void find_variants(void) {
    const Variant **next = variants;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        *next++ = &avx512;
    if (__builtin_cpu_supports("avx2"))
        *next++ = &avx2;
#endif
    *next++ = &portable;
    *next = NULL;
}

static const Variant *variant_at(int index) {
    for (int i = 0; i <= index && variants[i]; i++)
        if (i == index)
            return variants[i];
    PyErr_SetString(PyExc_ValueError, "no such variant of the kernel");
    return NULL;
}

/* The buffers of one call; `release` releases the acquired ones. */
typedef struct {
    Py_buffer numbers, other, factors;
} Buffers;

static void release(Buffers *held) {
    PyBuffer_Release(&held->numbers); /* does nothing to one that was never filled */
    PyBuffer_Release(&held->other);
    PyBuffer_Release(&held->factors);
}

static int refuse(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return 0;
}

static int holds_floats(const Py_buffer *buffer) {
    return buffer->len % (Py_ssize_t)sizeof(float) == 0 && (uintptr_t)buffer->buf % sizeof(float) == 0;
}

/* Fill `tensor` from buffers whose sizes agree; 0 and an exception if they do not. */
static int open_tensor(Tensor *tensor, Buffers *held, PyObject *numbers, Py_ssize_t width,
                       PyObject *factors, int rotated, int flags) {
    if (PyObject_GetBuffer(numbers, &held->numbers, flags) < 0)
        return 0;
    if (width <= 0 || !holds_floats(&held->numbers))
        return refuse("numbers are not rows of fp32");
    size_t count = (size_t)held->numbers.len / sizeof(float);
    if (count == 0 || count % (size_t)width)
        return refuse("numbers are not whole rows of that width");
    *tensor = (Tensor){
        .numbers = held->numbers.buf,
        .rows = count / (size_t)width,
        .width = (size_t)width,
        .blocks_per_row = ((size_t)width - 1) / BLOCK + 1,
        .rotated = rotated,
    };
    if (factors == Py_None)
        return 1;
    if (PyObject_GetBuffer(factors, &held->factors, PyBUF_SIMPLE) < 0)
        return 0;
    if (!holds_floats(&held->factors) ||
        (size_t)held->factors.len / sizeof(float) != tensor->blocks_per_row * BLOCK)
        return refuse("factors are not one fp32 number per padded channel");
    tensor->factors = held->factors.buf;
    return 1;
}

static int open_body(const Tensor *tensor, Buffers *held, PyObject *body, int flags) {
    if (PyObject_GetBuffer(body, &held->other, flags) < 0)
        return 0;
    /* rows * blocks_per_row <= the bytes of the numbers, which are in memory: no overflow */
    size_t blocks = tensor->rows * tensor->blocks_per_row;
    if ((size_t)held->other.len / (BLOCK + 2) != blocks || held->other.len % (BLOCK + 2))
        return refuse("the body has another size than the numbers need");
    return 1;
}

static PyObject *transcode(PyObject *args, int encoding) {
    PyObject *numbers, *body, *factors, *answer = NULL;
    Py_ssize_t width;
    int rotated, index, done = 0;
    if (!PyArg_ParseTuple(args, "OnOOpi", &numbers, &width, &body, &factors, &rotated, &index))
        return NULL;
    const Variant *variant = variant_at(index);
    Buffers held = {0};
    Tensor tensor;
    if (variant &&
        open_tensor(&tensor, &held, numbers, width, factors, rotated,
                    encoding ? PyBUF_SIMPLE : PyBUF_WRITABLE) &&
        open_body(&tensor, &held, body, encoding ? PyBUF_WRITABLE : PyBUF_SIMPLE)) {
        Py_BEGIN_ALLOW_THREADS
        done = (encoding ? variant->encode : variant->decode)(&tensor, held.other.buf);
        Py_END_ALLOW_THREADS
        answer = PyBool_FromLong(done);
    }
    release(&held);
    return answer;
}

static PyObject *encode(PyObject *module, PyObject *args) {
    (void)module;
    return transcode(args, 1);
}

static PyObject *decode(PyObject *module, PyObject *args) {
    (void)module;
    return transcode(args, 0);
}

static PyObject *channel_sums(PyObject *module, PyObject *args) {
    PyObject *numbers, *totals, *answer = NULL;
    Py_ssize_t width;
    int index;
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOi", &numbers, &width, &totals, &index))
        return NULL;
    const Variant *variant = variant_at(index);
    Buffers held = {0};
    Tensor tensor;
    float *levels = NULL;
    if (!variant || !open_tensor(&tensor, &held, numbers, width, Py_None, 0, PyBUF_SIMPLE) ||
        PyObject_GetBuffer(totals, &held.other, PyBUF_WRITABLE) < 0)
        goto end;
    if (!holds_floats(&held.other) || (size_t)held.other.len / sizeof(float) != tensor.width) {
        refuse("totals are not one fp32 number per channel");
        goto end;
    }
    size_t depth = 1;
    for (size_t leaves = (tensor.rows - 1) / LEAF_ROWS + 1; leaves; leaves >>= 1)
        depth++;
    if (tensor.width <= SIZE_MAX / sizeof(float) / depth)
        levels = PyMem_Malloc(depth * tensor.width * sizeof(float));
    if (!levels) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    variant->sum(&tensor, held.other.buf, levels);
    Py_END_ALLOW_THREADS
    PyMem_Free(levels);
    Py_INCREF(Py_None);
    answer = Py_None;
end:
    release(&held);
    return answer;
}

static PyObject *probe(PyObject *module, PyObject *args) {
    PyObject *numbers, *answer = NULL;
    Py_ssize_t width, step;
    int index;
    (void)module;
    if (!PyArg_ParseTuple(args, "Onni", &numbers, &width, &step, &index))
        return NULL;
    const Variant *variant = variant_at(index);
    Buffers held = {0};
    Tensor tensor;
    Probed found;
    if (variant && open_tensor(&tensor, &held, numbers, width, Py_None, 0, PyBUF_SIMPLE)) {
        if (step > 0) {
            Py_BEGIN_ALLOW_THREADS
            found = variant->probe(&tensor, (size_t)step);
            Py_END_ALLOW_THREADS
            answer = Py_BuildValue("ddd", found.signal, found.peaks, (double)found.highest);
        } else {
            refuse("the step between probed rows must be positive");
        }
    }
    release(&held);
    return answer;
}

static PyObject *names(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && variants[i]; i++) {
        PyObject *name = PyUnicode_FromString(variants[i]->name);
        if (!name || PyList_Append(list, name) < 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, "False if the numbers are poisoned."},
    {"decode", decode, METH_VARARGS, "False if a scale or a value is refused."},
    {"channel_sums", channel_sums, METH_VARARGS, "Sum of magnitudes per channel."},
    {"probe", probe, METH_VARARGS, "Sums of squares and the peak of every step-th row."},
    {"variants", names, METH_NOARGS, "Instruction sets that this processor runs, best first."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_s8", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__s8(void) {
    find_variants();
    return PyModuleDef_Init(&module);
}
