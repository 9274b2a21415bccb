/* Arithmetic progressions in arrays of numbers. */

#include "arguments.h"
#include "passes.h"

PyObject *put_span(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Arguments a;
    if (open_arguments(args, count, "Vnnnn", &a) < 0)
        return NULL;
    Ints *to = &a.ints[0];
    Py_ssize_t start = a.numbers[0], end = a.numbers[1];
    int ok = start >= 0 && start <= end && end <= to->columns;
    if (!ok)
        PyErr_Format(PyExc_IndexError, "entries [%zd, %zd) are not in [0, %zd)", start, end, to->columns);
    uint32_t value = (uint32_t)a.numbers[2], step = (uint32_t)a.numbers[3];
    if (ok && to->stride == sizeof value) { /* a loop of its own, which compilers vectorize */
        uint32_t *at = (uint32_t *)to->data;
        for (Py_ssize_t j = start; j < end; j++)
            at[j] = value + (uint32_t)(j - start) * step;
    } else
        for (Py_ssize_t j = start; ok && j < end; j++, value += step)
            AT(to, 0, j) = (int32_t)value;
    close_arguments(&a);
    return ok ? Py_NewRef(Py_None) : NULL;
}
